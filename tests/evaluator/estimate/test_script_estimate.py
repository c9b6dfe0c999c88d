"""The estimate of a user's script: by the names of its knobs and the sizes of its model."""

from dataclasses import replace

import pytest

from evaluator.estimate.step_time import estimate_script
from records.study import Environment
from records.workload import Workload

THERE = Environment(
    name="there", device="cuda", accelerator="NVIDIA A100", world_size=16, ranks_per_node=4
)
LLAMA = Workload(
    name="llama", model="Llama-3.1-8B", precision="bf16", global_batch=32, sequence_length=1024
)
KNOBS = {"dp": 2, "tp": 2, "pp": 4, "micro_batch_size": 4}


def parts(workload=LLAMA, ranks=16, **knobs):
    return estimate_script(workload, THERE, knobs, ranks)


def test_a_known_model_takes_the_time_of_its_products():
    seen = parts(dp=1, micro_batch=1)

    # 6 operations for each of 7.5e9 parameters that tokens meet, at half of 312 TFLOP/s.
    assert seen["compute"] == pytest.approx(6 * 7.5e9 * 32 * 1024 / 156e12, rel=0.05)


@pytest.mark.parametrize(
    "knobs",
    [
        {"DP": 2, "TP": 2, "PP": 4, "MBS": 4},
        {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 4, "micro_batch": 4},
        {"dp_replicate": 2, "tp_size": 2, "pipeline_parallel_size": 4, "micro_batch_size": 4},
    ],
)
def test_spellings_mean_the_same(knobs):
    assert parts(**knobs) == parts(**KNOBS)


@pytest.mark.parametrize("spelling", ["Interleaved1F1B", "interleaved_1f1b"])
def test_schedules_are_known_in_usual_spellings(spelling):
    seen = parts(**KNOBS, pipeline_schedule=spelling)

    assert seen["bubble"] < 0.6 * parts(**KNOBS)["bubble"]
    assert parts(**KNOBS, schedule="another") == parts(**KNOBS)


@pytest.mark.parametrize(
    ("told", "repeats"), [(True, True), ("full", True), (False, False), ("none", False)]
)
def test_checkpointing_is_a_word_or_a_boolean(told, repeats):
    assert (parts(**KNOBS, activation_checkpointing=told)["recompute"] > 0) is repeats


def test_a_micro_batch_is_at_most_what_a_replica_gets():
    assert parts(dp=16, micro_batch=8) == parts(dp=16, micro_batch=2) == parts(dp=16)


@pytest.mark.parametrize(
    ("changes", "knobs"),
    [
        ({"model": None}, KNOBS),
        ({"model": "a model that nobody knows"}, KNOBS),
        ({"model": None, "layer_count": 2, "hidden_size": 64}, KNOBS),
        ({}, {"alpha": 2, "beta": True}),
        ({}, {"dp": 64}),
        ({}, {"pp": 64}),
        ({"phase": "inference", "output_length": 16}, {"tp": 4, "pp": 2}),
    ],
)
def test_without_sizes_or_knobs_that_fit_nothing_is_estimated(changes, knobs):
    assert parts(replace(LLAMA, **changes), **knobs) is None


def test_sizes_of_the_workload_come_before_those_of_the_name():
    whole, half = parts(**KNOBS), parts(replace(LLAMA, layer_count=16), **KNOBS)
    eager, compiled = (parts(**KNOBS, compile_mode=mode) for mode in ("eager", "inductor"))

    assert half["compute"] < 0.65 * whole["compute"]
    assert eager == whole
    assert compiled["launch_overhead"] < whole["launch_overhead"]
    assert "slicing_overhead" not in whole


def test_answers_are_estimated_too():
    serving = replace(LLAMA, phase="inference", output_length=16)
    assert parts(serving, tp=4)["memory_reads"] > 0
