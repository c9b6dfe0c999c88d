"""What recipes estimate of their configurations, and how well that orders what was measured."""

import json
import math
import statistics
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from scipy.stats import spearmanr

from evaluator.recipes.catalog import recipe_of
from records.study import Command, Dimension, Environment, Launch, SearchSpace
from records.trial import Config
from records.workload import Message, Workload
from search.study.spaces import completed, space_of
from search.study.study_file import builtin_defaults, builtin_study, collective_study

MEASURED = Path(__file__).parents[3] / "benchmarks" / "data" / "landscape.jsonl"
MACHINE = Environment(
    name="measured", device="cpu", accelerator="A CPU, 2 cores", world_size=4, ranks_per_node=4
)
GPUS = Environment(name="gpus", device="cuda", accelerator="H100", world_size=16, ranks_per_node=8)


def estimates(study, configs=None):
    study = completed(study)
    recipe = recipe_of(study)
    return [recipe.estimate(study, config) for config in configs or space_of(study).feasible]


def test_the_order_of_the_measured_landscape_is_foreseen():
    times = defaultdict(list)
    for line in MEASURED.read_text(encoding="utf-8").splitlines()[1:]:
        launch = json.loads(line)
        if launch["status"] == "measured":
            times[Config(launch["config"])].append(statistics.median(launch["step_times_s"]))
    measured = [statistics.median(each) for each in times.values()]

    foreseen = [sum(each.values()) for each in estimates(builtin_study(MACHINE), list(times))]

    assert spearmanr(foreseen, measured).statistic > 0.95


@pytest.mark.parametrize("environment", [MACHINE, replace(MACHINE, world_size=8)])
def test_every_configuration_of_the_builtin_study_has_finite_parts(environment):
    seen = estimates(builtin_study(environment))

    assert len({tuple(parts) for parts in seen}) == 1
    assert all(math.isfinite(s) and s >= 0 for parts in seen for s in parts.values())
    assert all(parts["compute"] > 0 for parts in seen)


@pytest.mark.parametrize("phase", ["training", "inference"])
def test_so_has_every_kind_of_configuration_of_many_gpus(phase):
    study = builtin_study(GPUS)
    workload = replace(study.workload, phase=phase, output_length=8)
    drawn = space_of(completed(replace(study, workload=workload))).feasible[::97]

    seen = estimates(replace(study, workload=workload), drawn)

    assert all(math.isfinite(s) and s >= 0 for parts in seen for s in parts.values())


def test_setups_of_collectives_are_told_apart_by_their_calls():
    study = collective_study(builtin_study(MACHINE))
    knobs = {"in_flight": (1, 4), "fusion_bytes": (0, 1 << 20), "chunk_count": (1, 4)}
    dimensions = [Dimension(name=name, choices=choices) for name, choices in knobs.items()]

    seen = estimates(replace(study, space=SearchSpace(dimensions=tuple(dimensions))))

    assert len({tuple(parts.values()) for parts in seen}) == len(seen) == 8
    assert all(math.isfinite(s) and s >= 0 for parts in seen for s in parts.values())


def test_algorithms_that_libraries_are_told_count():
    messages = (Message(collective="all_reduce", size_bytes=1 << 20),)
    base = collective_study(builtin_study(GPUS))
    knobs = builtin_defaults("cuda").collective_knobs
    study = replace(base, workload=replace(base.workload, messages=messages))
    space = [Dimension(name=name, choices=has or None) for name, has in knobs.items()]

    ring, tree = estimates(
        replace(study, space=SearchSpace(dimensions=tuple(space))),
        [Config({"nccl_algo": name}) for name in ("Ring", "Tree")],
    )

    assert tree["rounds"] < ring["rounds"]
    assert tree["transfers"] > ring["transfers"]


def test_mpi_is_told_its_algorithm_by_name():
    study = collective_study(builtin_study(MACHINE))
    knobs = ("comm_adapter", "ompi_allreduce_algorithm")
    space = SearchSpace(dimensions=tuple(Dimension(name=name) for name in knobs))

    ring, linear = estimates(
        replace(study, space=space),
        [
            Config({"comm_adapter": "mpi", "ompi_allreduce_algorithm": name})
            for name in ("ring", "linear")
        ],
    )

    assert sum(linear.values()) > 1.5 * sum(ring.values())


def test_a_script_is_estimated_by_the_names_of_its_knobs():
    study = script_study(Workload(name="x", model="debug", global_batch=16, sequence_length=128))

    seen = estimates(study)

    assert len(seen) == 6
    assert all(parts["compute"] > 0 for parts in seen)


def test_a_script_is_estimated_where_it_could_not_be_started():
    study = script_study(Workload(name="x", model="debug", global_batch=16, sequence_length=128))
    halved = replace(study, command=replace(study.command, rank_count="dp * tp / 2"))

    assert all(parts["compute"] > 0 for parts in estimates(halved))


def test_a_script_of_unknown_sizes_is_not():
    study = script_study(Workload(name="x", global_batch=16, sequence_length=128))

    assert set(estimates(study)) == {None}


def script_study(workload):
    return replace(
        builtin_study(MACHINE),
        workload=workload,
        launch=Launch(recipe="command"),
        command=Command(run=("bash", "run.sh")),
        space=SearchSpace(
            dimensions=(
                Dimension(name="dp", choices=(1, 2, 4)),
                Dimension(name="tp", choices=(1, 2, 4)),
            ),
            constraints=(),
            defaults={"micro_batch": 2},
        ),
    )
