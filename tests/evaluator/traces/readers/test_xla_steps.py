"""Steps of XLA traces, in the order of how sure they are."""

import pytest


def span(name, ts, dur, pid=1, tid=3, **args):
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


LINE = [span("7", 0, 9, tid=1), span("8", 10, 9, tid=1)]
MODULES = [
    span("jit_train_step(51)", 1, 5, tid=2),
    span("jit_convert(3)", 6, 90, tid=2),
    span("jit_train_step(51)", 11, 6, tid=2),
]
MARKS = [span("train", 0, 10, pid=701, step_num=str(at)) | {"ts": 10 * at} for at in (3, 4)]
FRAMES = [span("$core.py:985 _process_engine_step", at, 8, pid=701) for at in (0, 10)]
WORK = span("fusion.1", 0, 20)


def steps_of(read_tpus, *events):
    [trace] = read_tpus(WORK, *events, count=1)
    return trace.steps.number.tolist(), trace.steps.start_ns.tolist(), trace.host_steps


def test_the_line_of_steps_comes_first(read_tpus):
    number, start_ns, _ = steps_of(read_tpus, *FRAMES, *MARKS, *MODULES, *LINE)
    assert (number, start_ns) == ([7, 8], [0, 10_000])


def test_then_runs_of_the_function_of_a_step(read_tpus):
    number, start_ns, _ = steps_of(read_tpus, *FRAMES, *MARKS, *MODULES)
    assert (number, start_ns) == ([0, 1], [1000, 11_000])


def test_then_what_the_program_numbered(read_tpus):
    number, start_ns, host_steps = steps_of(read_tpus, *FRAMES, *MARKS)
    assert (number, start_ns) == ([3, 4], [30_000, 40_000])
    assert host_steps.number.tolist() == [3, 4]


def test_then_frames_of_functions_that_are_steps(read_tpus):
    number, start_ns, _ = steps_of(read_tpus, *FRAMES)
    assert (number, start_ns) == ([0, 1], [0, 10_000])


def test_steps_of_the_host_that_are_not_those_of_the_device_are_left_out(read_tpus):
    *_, host_steps = steps_of(read_tpus, *MARKS, *MODULES)
    assert host_steps.number.tolist() == [0, 1]


@pytest.mark.parametrize(
    "name", ["jit_step_fun(5)", "jit_train_step", "jit__step(1)", "pmap_step(3)"]
)
def test_modules_of_steps_are_known_by_name(read_tpus, name):
    assert steps_of(read_tpus, span(name, 1, 5, tid=2))[0] == [0]


@pytest.mark.parametrize("name", ["jit_stepwise(5)", "jit_sample(3)", "jit_footstep(1)"])
def test_other_modules_are_no_steps(read_tpus, name):
    assert steps_of(read_tpus, span(name, 1, 5, tid=2))[0] == []
