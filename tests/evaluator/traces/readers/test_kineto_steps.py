"""The steps of a Kineto trace: whose they are, where they begin and end, and what they do."""

import pytest

from evaluator.traces.model import StepKind
from tests.support.kineto import NCCL, kernel, launch, span, trace_of


def windows(steps):
    starts, ends = steps.start_ns.tolist(), steps.end_ns.tolist()
    return [(n, a // 1000, b // 1000) for n, a, b in zip(steps.number, starts, ends, strict=True)]


def test_device_steps_reach_over_all_streams_and_win_over_host_steps(tmp_path):
    trace = trace_of(
        tmp_path,
        span("kernel", "gemm", 100, 10),
        span("user_annotation", "ProfilerStep#4", 0, 90),
        span("gpu_user_annotation", "ProfilerStep#4", 100, 30, tid=7),
        span("gpu_user_annotation", "ProfilerStep#4", 95, 20, tid=8),
        distributed=NCCL,
    )
    assert trace.steps.number.tolist() == [4]
    assert (trace.steps.start_ns.tolist(), trace.steps.end_ns.tolist()) == ([95_000], [130_000])


def test_host_steps_serve_where_the_device_has_none(tmp_path):
    trace = trace_of(
        tmp_path,
        span("user_annotation", "ProfilerStep#11", 100, 50),
        span("user_annotation", "ProfilerStep#9", 0, 50),
    )
    assert trace.steps.number.tolist() == [9, 11]
    assert trace.steps.end_ns.tolist() == [50_000, 150_000]


def test_work_that_was_launched_in_a_step_belongs_to_it_however_late_it_runs(tmp_path):
    trace = trace_of(
        tmp_path,
        span("user_annotation", "ProfilerStep#1", 0, 50),
        span("user_annotation", "ProfilerStep#2", 50, 50),
        launch(10, 5),
        launch(20, 6),
        launch(60, 7),
        kernel("a", 30, 10, correlation=5),
        kernel("b", 45, 40, tid=21, correlation=6),
        kernel("c", 110, 10, correlation=7),
        distributed=NCCL,
    )
    assert windows(trace.steps) == [(1, 30, 85), (2, 110, 120)]
    assert windows(trace.host_steps) == [(1, 0, 50), (2, 50, 100)]


def test_a_step_recorded_on_a_stream_reaches_over_all_work_that_was_launched_in_it(tmp_path):
    trace = trace_of(
        tmp_path,
        span("user_annotation", "ProfilerStep#1", 0, 50),
        span("gpu_user_annotation", "ProfilerStep#1", 40, 5, tid=20),
        launch(10, 5),
        kernel("a", 20, 60, correlation=5),
        distributed=NCCL,
    )
    assert windows(trace.steps) == [(1, 20, 80)]


def test_the_host_s_windows_stand_where_no_launch_is_known(tmp_path):
    step = span("user_annotation", "ProfilerStep#1", 0, 50)
    trace = trace_of(tmp_path, step, kernel("a", 20, 60), distributed=NCCL)
    assert windows(trace.steps) == [(1, 0, 50)]


def test_steps_of_2021_are_operators(tmp_path):
    trace = trace_of(tmp_path, span("Operator", "ProfilerStep#5", 0, 9))
    assert windows(trace.steps) == [(5, 0, 9)]


@pytest.mark.parametrize(
    ("cat", "name", "kind"),
    [
        ("user_annotation", "execute_context_1(888_788544)_generation_0(0)", StepKind.PREFILL),
        ("user_annotation", "execute_context_0(0)_generation_8(8_99)", StepKind.DECODE),
        ("user_annotation", "execute_9_context_1(sq1sk1)_generation_8(sq8)", StepKind.PREFILL),
        ("user_annotation", "execute_32_context_0(sq0sk0)_generation_32(sq32)", StepKind.DECODE),
        ("user_annotation", "step[DECODE bs=32]", StepKind.DECODE),
        ("user_annotation", "step[EXTEND bs=15 toks=15360]", StepKind.PREFILL),
        ("user_annotation", "step[IDLE]", StepKind.PLAIN),
        (
            "python_function",
            "/opt/vllm/v1/engine/core.py(985): _process_engine_step",
            StepKind.PLAIN,
        ),
        ("python_function", "sglang/srt/managers/scheduler.py(17): run_batch", StepKind.PLAIN),
    ],
)
def test_engines_say_what_their_steps_do(tmp_path, cat, name, kind):
    trace = trace_of(tmp_path, span(cat, name, 10, 5), span(cat, name, 0, 5))
    assert windows(trace.steps) == [(0, 0, 5), (1, 10, 15)]
    assert trace.steps.kind.tolist() == [kind, kind]


def test_what_an_engine_nests_in_a_step_is_no_step(tmp_path):
    trace = trace_of(
        tmp_path,
        span("user_annotation", "step[EXTEND bs=1 toks=9]", 0, 20),
        span("user_annotation", "step[DECODE bs=1]", 5, 5),
        span("python_function", "optimizer.py(3): step", 30, 5),
    )
    assert windows(trace.steps) == [(0, 0, 20)]


def test_steps_that_have_numbers_win(tmp_path):
    trace = trace_of(
        tmp_path,
        span("user_annotation", "step[DECODE bs=1]", 5, 5),
        span("user_annotation", "ProfilerStep#3", 0, 20),
    )
    assert windows(trace.steps) == [(3, 0, 20)]
