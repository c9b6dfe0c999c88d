"""The built-in study has enough to search, uses every rank, and begins with a valid seed."""

import json
from dataclasses import replace

import pytest

from evaluator.recipes.builtin import BuiltinRecipe
from policies.contract import decide, seed_policy
from records.codec import from_json, to_json
from records.study import Environment, Study
from records.trial import Config
from search.study.spaces import completed, space_of
from search.study.study_file import builtin_study


def machine(device: str, world_size: int, memory_gib: int | None = None) -> Environment:
    return Environment(
        name="m",
        device=device,
        accelerator="some",
        world_size=world_size,
        ranks_per_node=world_size,
        memory_bytes=None if memory_gib is None else memory_gib << 30,
    )


MACHINES = [
    *(machine("cpu", ranks) for ranks in (1, 2, 4, 8)),
    machine("cuda", 1, 16),
    *(machine("cuda", ranks, 80) for ranks in range(1, 9)),
]


@pytest.mark.parametrize("environment", MACHINES, ids=lambda m: f"{m.device}{m.world_size}")
def test_the_seed_is_valid_on_every_machine(environment):
    study = completed(builtin_study(environment))
    space = space_of(study)

    seed = seed_policy(study.seed_policy, space)
    decided = decide(seed, study.workload, study.usable_environment, space)

    assert isinstance(decided, Config), decided
    assert BuiltinRecipe().job(study, decided).world_size == environment.world_size


def test_four_cpu_ranks_make_a_landscape_that_can_be_measured():
    study = completed(builtin_study(machine("cpu", 4)))
    feasible = space_of(study).feasible

    assert 60 <= len(feasible) <= 130
    assert {BuiltinRecipe().job(study, config).world_size for config in feasible} == {4}
    schedules = {config.values.get("pipeline_schedule") for config in feasible}
    assert schedules == {None, "1f1b", "interleaved_1f1b", "zbv_zero_bubble"}


def test_one_gpu_has_more_to_search_than_its_batch():
    study = completed(builtin_study(machine("cuda", 1, 141)))
    searched = {knob.name for knob in space_of(study).knobs}

    assert searched == {
        *("micro_batch", "activation_checkpointing", "compile"),
        *("attention_backend", "optimizer_loop"),
    }
    assert len(space_of(study).feasible) > 60


def test_what_surely_does_not_fit_is_told_with_its_size():
    small = completed(builtin_study(machine("cuda", 1, 16)))

    (fault,) = space_of(small).check({"micro_batch": 32})
    assert fault.startswith("breaks memory: estimated_memory_bytes <= 1.3 * memory_bytes")
    assert "GiB, memory_bytes=16 GiB" in fault


@pytest.mark.parametrize("ranks", [3, 5, 6, 7])
def test_a_machine_with_an_odd_number_of_gpus_leaves_none_idle(ranks):
    study = completed(builtin_study(machine("cuda", ranks, 80)))

    assert study.workload.global_batch % ranks == 0
    assert study.workload.global_batch >= builtin_study(machine("cuda", 1)).workload.global_batch
    assert space_of(study).feasible


def test_a_completed_study_survives_its_record():
    study = completed(builtin_study(machine("cpu", 4)))

    back = from_json(Study, to_json(study))
    assert back == study
    assert completed(back) == study
    assert json.loads(to_json(study))["space"]["defaults"]["pipeline_schedule"] == "1f1b"


def test_fewer_ranks_are_searched_where_the_objective_counts_them():
    study = builtin_study(machine("cpu", 4))
    cheap = replace(
        study, objective=replace(study.objective, expression="rank_count", direction="minimize")
    )

    ranks = {
        BuiltinRecipe().job(completed(cheap), config).world_size
        for config in space_of(completed(cheap)).feasible
    }
    assert ranks == {1, 2, 4}
