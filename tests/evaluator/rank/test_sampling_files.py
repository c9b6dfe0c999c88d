"""Files of ranks that decided themselves how many steps they timed: none is believed unchecked."""

import json
from dataclasses import replace

import pytest

from evaluator.ports import JobResult
from evaluator.rank.protocol import RankExit
from evaluator.samples import read_measurement
from records.trial import Failed, FailureKind, Measurement

MS = 1_000_000


def steps(*times_ms: float) -> list[list[int]]:
    return [[i << 40, (i << 40) + int(time_ms * MS)] for i, time_ms in enumerate(times_ms)]


@pytest.fixture
def read(study, tmp_path):
    """Reads what two ranks left: their times in ms and why they stopped."""

    def read_files(*ranks, energy=(None, None), **measure):
        for rank, (times_ms, stopped) in enumerate(ranks):
            document = {
                "rank": rank,
                "warmup": steps(1),
                "timed": times_ms if isinstance(times_ms[0], list) else steps(*times_ms),
                "stopped": stopped,
                "losses": [1.0],
                "tokens_per_step": study.workload.tokens_per_step // len(ranks),
                "peak_memory_bytes": 1,
                "device": "cpu",
                "torch": "2",
                "energy": energy[rank],
            }
            (tmp_path / f"rank{rank}.steps.json").write_text(json.dumps(document))
        exits = tuple(
            RankExit(rank=rank, status=0, signal=None, ended_ns=1) for rank in range(len(ranks))
        )
        result = JobResult(workdir=tmp_path, reason="finished", ranks=exits, wall_s=1.0)
        return read_measurement(result, replace(study, measure=replace(study.measure, **measure)))

    return read_files


@pytest.mark.parametrize(
    ("ranks", "measure", "stopped"),
    [
        ([([1.0] * 10, "precise")] * 2, {"max_timed_steps": 20}, "precise"),
        ([([1.0, 3.0] * 3, "most_steps")] * 2, {"max_timed_steps": 6}, "most_steps"),
        ([([1.0] * 3, "slower"), ([3.0] * 3, "slower")], {"stop_above_s": 0.002}, "slower"),
        ([([1.0] * 5, None)] * 2, {}, None),
    ],
)
def test_a_launch_is_believed_that_stopped_as_its_steps_say(read, ranks, measure, stopped):
    measurement = read(*ranks, **measure)

    assert isinstance(measurement, Measurement), measurement
    assert measurement.stopped == stopped
    assert [len(times) for times in measurement.step_times_s] == [len(ranks[0][0])] * 2


FEW, MANY = [1.0] * 3, [1.0] * 10
RACE = {"max_timed_steps": 20, "stop_above_s": 0.002}


@pytest.mark.parametrize(
    ("ranks", "measure", "message"),
    [
        (
            [(MANY, "precise"), ([1.0] * 9, "precise")],
            RACE,
            "rank 1 timed 9 steps, rank 0 timed 10",
        ),
        (
            [(MANY, "precise"), (MANY, "most_steps")],
            RACE,
            "rank 1 stopped for most_steps, rank 0 for precise",
        ),
        ([(FEW, "precise")] * 2, RACE, "rank 0 timed 3 steps, 5 to 20 were asked for"),
        ([([1.0] * 21, "precise")] * 2, RACE, "rank 0 timed 21 steps, 5 to 20 were asked for"),
        ([([3.0] * 2, "slower")] * 2, RACE, "rank 0 timed 2 steps, 3 to 20 were asked for"),
        ([(FEW, "slower")] * 2, RACE, "the ranks stopped for slower, their steps show no reason"),
        (
            [([3.0] * 3, "slower")] * 2,
            {},
            "the ranks stopped for slower, their steps show no reason",
        ),
        (
            [([3.0] * 5, "slower")] * 2,
            {},
            "the ranks stopped for slower, their steps show no reason",
        ),
        ([(MANY, None)] * 2, RACE, "the ranks stopped for no reason, their steps show precise"),
        (
            [([1.0, 3.0] * 3, "precise")] * 2,
            {"max_timed_steps": 20},
            "the ranks stopped for precise, their steps show no reason",
        ),
        ([(FEW, "bored")] * 2, RACE, "rank0.steps.json: Invalid enum value 'bored'"),
        ([([[5, 4]] * 3, "slower")] * 2, RACE, "rank 0 has a step that ends before it starts"),
        ([([[0, 10**400]] * 3, "slower")] * 2, RACE, "rank0.steps.json: "),
        ([([[-1, 1]] * 3, "slower")] * 2, RACE, "rank0.steps.json: Expected `int` >= 0"),
        ([([[0, 1 << 62]] * 3, "slower")] * 2, RACE, "rank0.steps.json: Expected `int` <= "),
    ],
)
def test_a_launch_is_not_believed_that_contradicts_itself(read, ranks, measure, message):
    failed = read(*ranks, **measure)

    assert isinstance(failed, Failed)
    assert failed.kind is FailureKind.METRIC_ERROR
    assert failed.message.startswith(message)


@pytest.mark.parametrize(
    ("energy", "joules"),
    [
        ([{"device": "GPU-a", "joules": 3.0}, {"device": "GPU-b", "joules": 4.0}], 7.0),
        ([{"device": "GPU-a", "joules": 3.0}, {"device": "GPU-a", "joules": 3.0}], 3.0),
        ([{"device": "GPU-a", "joules": 3.0}, None], None),
    ],
)
def test_the_energy_of_a_device_counts_once_and_not_where_one_is_unknown(read, energy, joules):
    assert read(([1.0] * 5, None), ([1.0] * 5, None), energy=energy).energy_j == joules


def test_an_energy_below_zero_is_not_believed(read):
    below = {"device": "GPU-a", "joules": -1.0}

    failed = read(([1.0] * 5, None), ([1.0] * 5, None), energy=(below, None))

    assert isinstance(failed, Failed)
    assert "rank0.steps.json: Expected `float` >= 0.0" in failed.message
