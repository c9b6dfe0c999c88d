"""Numbers that make no sense in a study are refused where they are given, in one sentence."""

import math
from dataclasses import replace

import pytest

from records.codec import from_json, to_json
from records.errors import StudyError
from records.study import Budget, Environment, Launch, Link, Llm, Measure, Study
from records.workload import Message, Workload
from tests.support.records import WORKLOAD, study

MACHINE = {"name": "m", "device": "cpu", "accelerator": "cpu", "world_size": 4, "ranks_per_node": 4}
WORK = {"name": "w", "global_batch": 4, "sequence_length": 8}


@pytest.mark.parametrize(
    ("kind", "fields", "sentence"),
    [
        (Budget, {"trials": 0}, "[budget] trials is 0; it must be at least 1"),
        (Budget, {"max_wall_s": 0.0}, "[budget] max_wall_s is 0.0; it must be finite and above 0"),
        (Budget, {"max_wall_s": math.nan}, "[budget] max_wall_s is nan"),
        (Measure, {"timed_steps": 4}, "[measure] timed_steps is 4; it must be at least 5"),
        (Measure, {"profiled_steps": -1}, "[measure] profiled_steps is -1"),
        (Measure, {"timeout_s": 0.0}, "[measure] timeout_s is 0.0; it must be at least 1"),
        (Measure, {"timeout_s": math.nan}, "[measure] timeout_s is nan"),
        (Launch, {"threads_per_rank": 0}, "[launch] threads_per_rank is 0"),
        (Llm, {"timeout_s": 0.0}, "[llm] timeout_s is 0.0; it must be finite and above 0"),
        (Llm, {"max_output_tokens": 0}, "[llm] max_output_tokens is 0"),
        (Link, {"bandwidth_bytes_per_s": 0.0}, "[environment] bandwidth_bytes_per_s is 0.0"),
        (Link, {"bandwidth_bytes_per_s": math.inf}, "[environment] bandwidth_bytes_per_s is inf"),
        (Link, {"bandwidth_bytes_per_s": 1.0, "latency_s": -1.0}, "[environment] latency_s is -1"),
        (Environment, MACHINE | {"world_size": 0}, "[environment] world_size is 0"),
        (Environment, MACHINE | {"memory_bytes": 0}, "[environment] memory_bytes is 0"),
        (Workload, WORK | {"global_batch": 0}, "[workload] global_batch is 0"),
        (Workload, WORK | {"layer_count": 0}, "[workload] layer_count is 0"),
        (Workload, WORK | {"parameter_count": 0}, "[workload] parameter_count is 0"),
        (Workload, WORK | {"expert_count": -1}, "[workload] expert_count is -1"),
    ],
)
def test_a_number_out_of_bounds_is_named_with_its_bound(kind, fields, sentence):
    with pytest.raises(StudyError) as refused:
        kind(**fields)
    assert str(refused.value).startswith(sentence)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Budget, {"trials": 1, "patience": 1, "max_failures": 1, "max_wall_s": 0.5}),
        (Measure, {"timed_steps": 5, "warmup_steps": 1, "profiled_steps": 0, "timeout_s": 1.0}),
        (Measure, {"confirm_top": 0, "confirm_rounds": 0, "infrastructure_retries": 0}),
        (Link, {"bandwidth_bytes_per_s": 1.0, "latency_s": 0.0}),
        (Workload, WORK | {"layer_count": None, "expert_count": 0}),
        (Environment, MACHINE | {"ranks_per_node": 8}),
    ],
)
def test_the_bounds_themselves_are_allowed(kind, fields):
    for name, value in fields.items():
        assert getattr(kind(**fields), name) == value


MIX = Workload(
    name="mix",
    phase="communication",
    global_batch=1,
    sequence_length=1,
    messages=(
        Message(collective="all_reduce", size_bytes=4096, dtype="bfloat16", reduce_op="avg"),
        Message(collective="barrier"),
    ),
)


def test_a_study_of_messages_reads_back_as_it_was():
    asked = replace(study(), workload=MIX)
    assert from_json(Study, to_json(asked)) == asked


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"messages": ()}, "phase 'communication' needs messages; give a"),
        ({"phase": "training"}, "phase 'training' exchanges no separate messages; leave"),
        (
            {"phase": "inference", "output_length": 4},
            "phase 'inference' exchanges no separate messages",
        ),
    ],
)
def test_messages_belong_to_communication_and_to_nothing_else(changed, complaint):
    with pytest.raises(StudyError, match=complaint):
        replace(MIX, **changed)


@pytest.mark.parametrize(
    ("workload", "tokens"),
    [
        (WORKLOAD, 16 * 128),
        (replace(WORKLOAD, output_length=32), 16 * 128),
        (replace(WORKLOAD, phase="inference", output_length=32), 16 * (128 + 32)),
        (MIX, 0),
    ],
)
def test_a_step_processes_prompts_and_answers_and_no_tokens_of_messages(workload, tokens):
    assert workload.tokens_per_step == tokens
