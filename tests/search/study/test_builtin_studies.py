"""The built-in studies have enough to search, use every rank, and are estimated in order."""

import json
import math
import statistics
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
import scipy

from evaluator.recipes import builtin
from evaluator.recipes.builtin import BuiltinRecipe
from evaluator.recipes.catalog import recipe_of
from policies.contract import FIRST, decide, is_feasible_seed, seed_policy
from records.codec import from_json, to_json
from records.study import Command, Dimension, Environment, Launch, SearchSpace, Study
from records.trial import Config
from records.workload import Message, Workload
from search.study.spaces import completed, space_of
from search.study.study_file import builtin_defaults, builtin_study, collective_study

MEASURED = Path(__file__).parents[3] / "benchmarks" / "data" / "landscape.jsonl"


def machine(device: str, world_size: int, memory_gib: int | None = None) -> Environment:
    return Environment(
        name="m",
        device=device,
        accelerator="H100" if device == "cuda" else "A CPU, 2 cores",
        world_size=world_size,
        ranks_per_node=min(world_size, 8),
        memory_bytes=None if memory_gib is None else memory_gib << 30,
    )


FOUR_CORES = machine("cpu", 4)
MACHINES = [
    *(machine("cpu", ranks) for ranks in (1, 2, 4, 8)),
    *(machine("cuda", ranks, 80 if ranks > 1 else 16) for ranks in range(1, 9)),
]


@pytest.mark.parametrize("environment", MACHINES, ids=lambda m: f"{m.device}{m.world_size}")
def test_the_seed_is_valid_on_every_machine_and_no_rank_is_idle(environment):
    study = completed(builtin_study(environment))
    space = space_of(study)
    seed = seed_policy(study.seed_policy, space)
    decided = decide(seed, study.workload, study.usable_environment, space)
    assert isinstance(decided, Config), decided
    assert BuiltinRecipe().job(study, decided).world_size == environment.world_size
    assert study.workload.global_batch % environment.world_size == 0


@pytest.mark.parametrize("release", [(2, 6), (2, 9)])
def test_before_torch_2_9_cpu_ranks_have_no_shards_and_a_search_starts_without_the_seed(
    release, monkeypatch
):
    monkeypatch.setattr(builtin, "torch_release", lambda _: release)
    study = builtin_study(FOUR_CORES)
    study = completed(replace(study, launch=replace(study.launch, memory_budget_bytes=64 << 20)))
    space = space_of(study)

    usable = is_feasible_seed("sharded", study.workload, study.usable_environment, space)

    assert usable is (release == (2, 9))
    assert len(space.feasible) > 30
    assert is_feasible_seed(FIRST, study.workload, study.usable_environment, space)
    stages = {"dp_replicate": 2, "dp_shard": 1, "tp": 1, "pp": 2, "pipeline_schedule": "1f1b"}
    asked = {**stages, "micro_batch": 4, "activation_checkpointing": "none"}
    assert isinstance(space.check(asked), Config) is (release == (2, 9))


def test_four_cpu_ranks_make_a_landscape_that_can_be_measured():
    study = completed(builtin_study(FOUR_CORES))
    feasible = space_of(study).feasible
    assert 60 <= len(feasible) <= 130
    assert {BuiltinRecipe().job(study, config).world_size for config in feasible} == {4}
    schedules = {config.values.get("pipeline_schedule") for config in feasible}
    assert schedules == {None, "1f1b", "interleaved_1f1b", "zbv_zero_bubble"}


def test_one_gpu_has_more_to_search_than_its_batch():
    space = space_of(completed(builtin_study(machine("cuda", 1, 141))))
    assert {knob.name for knob in space.knobs} == {
        *("micro_batch", "activation_checkpointing", "compile"),
        *("attention_backend", "optimizer_loop"),
    }
    assert len(space.feasible) > 60


def test_what_surely_does_not_fit_is_told_with_its_size():
    small = completed(builtin_study(machine("cuda", 1, 16)))
    (fault,) = space_of(small).check({"micro_batch": 32})
    assert fault.startswith("breaks memory: estimated_memory_bytes <= 1.3 * memory_bytes")
    assert "GiB, memory_bytes=16 GiB" in fault


def test_a_completed_study_survives_its_record():
    study = completed(builtin_study(FOUR_CORES))
    back = from_json(Study, to_json(study))
    assert back == study == completed(back)
    assert json.loads(to_json(study))["space"]["defaults"]["pipeline_schedule"] == "1f1b"


def test_fewer_ranks_are_searched_where_the_objective_counts_them():
    study = builtin_study(FOUR_CORES)
    objective = replace(study.objective, expression="rank_count", direction="minimize")
    cheap = completed(replace(study, objective=objective))
    jobs = (BuiltinRecipe().job(cheap, config) for config in space_of(cheap).feasible)
    assert {job.world_size for job in jobs} == {1, 2, 4}


# What recipes estimate of their configurations.


def estimates(study, configs=None):
    study = completed(study)
    recipe = recipe_of(study)
    return [recipe.estimate(study, config) for config in configs or space_of(study).feasible]


def with_knobs(study, knobs):
    dimensions = (Dimension(name=name, choices=choices or None) for name, choices in knobs.items())
    return replace(study, space=SearchSpace(dimensions=tuple(dimensions)))


def are_finite(found):
    return all(math.isfinite(s) and s >= 0 for parts in found for s in parts.values())


def test_the_order_of_the_measured_landscape_is_foreseen():
    times = defaultdict(list)
    for line in MEASURED.read_text(encoding="utf-8").splitlines()[1:]:
        launch = json.loads(line)
        if launch["status"] == "measured":
            times[Config(launch["config"])].append(statistics.median(launch["step_times_s"]))
    measured = [statistics.median(each) for each in times.values()]
    foreseen = [sum(each.values()) for each in estimates(builtin_study(FOUR_CORES), list(times))]
    assert scipy.stats.spearmanr(foreseen, measured).statistic > 0.95


@pytest.mark.parametrize("ranks", [4, 8])
def test_every_configuration_of_the_builtin_study_has_finite_parts(ranks):
    seen = estimates(builtin_study(machine("cpu", ranks)))
    assert len({tuple(parts) for parts in seen}) == 1
    assert are_finite(seen)
    assert all(parts["compute"] > 0 for parts in seen)


@pytest.mark.parametrize("phase", ["training", "inference"])
def test_so_has_every_kind_of_configuration_of_many_gpus(phase):
    study = builtin_study(machine("cuda", 16))
    study = replace(study, workload=replace(study.workload, phase=phase, output_length=8))
    assert are_finite(estimates(study, space_of(completed(study)).feasible[::97]))


def test_setups_of_collectives_are_told_apart_by_their_calls():
    knobs = {"in_flight": (1, 4), "fusion_bytes": (0, 1 << 20), "chunk_count": (1, 4)}
    seen = estimates(with_knobs(collective_study(builtin_study(FOUR_CORES)), knobs))
    assert len({tuple(parts.values()) for parts in seen}) == len(seen) == 8
    assert are_finite(seen)


def test_algorithms_that_libraries_are_told_count():
    base = collective_study(builtin_study(machine("cuda", 16)))
    messages = (Message(collective="all_reduce", size_bytes=1 << 20),)
    study = replace(base, workload=replace(base.workload, messages=messages))
    ring, tree = estimates(
        with_knobs(study, builtin_defaults("cuda").collective_knobs),
        [Config({"nccl_algo": name}) for name in ("Ring", "Tree")],
    )
    assert tree["rounds"] < ring["rounds"]
    assert tree["transfers"] > ring["transfers"]


def test_mpi_is_told_its_algorithm_by_name():
    knobs = dict.fromkeys(("comm_adapter", "ompi_allreduce_algorithm"))
    ring, linear = estimates(
        with_knobs(collective_study(builtin_study(FOUR_CORES)), knobs),
        [
            Config({"comm_adapter": "mpi", "ompi_allreduce_algorithm": name})
            for name in ("ring", "linear")
        ],
    )
    assert sum(linear.values()) > 1.5 * sum(ring.values())


@pytest.mark.parametrize("rank_count", [None, "dp * tp / 2"], ids=["runs", "cannot be started"])
@pytest.mark.parametrize("model", ["debug", None])
def test_a_script_of_known_sizes_is_estimated_by_the_names_of_its_knobs(rank_count, model):
    study = with_knobs(builtin_study(FOUR_CORES), {"dp": (1, 2, 4), "tp": (1, 2, 4)})
    study = replace(
        study,
        workload=Workload(name="x", model=model, global_batch=16, sequence_length=128),
        launch=Launch(recipe="command"),
        command=Command(run=("bash", "run.sh"), rank_count=rank_count),
        space=replace(study.space, defaults={"micro_batch": 2}),
    )
    seen = estimates(study)
    assert all(each is None if model is None else each["compute"] > 0 for each in seen)
    assert rank_count or len(seen) == 6
