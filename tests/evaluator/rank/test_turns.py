"""What ranks do at their gates, who steps when, and who may be on a machine together."""

import os
import threading
from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evaluator.launchers import interleaved
from evaluator.launchers.interleaved import fits_together, turn_orders
from evaluator.ports import Job, JobResult
from evaluator.rank.job import Measure
from evaluator.rank.protocol import (
    ANSWERS,
    GO,
    NO_MORE,
    READY,
    TURNS_VARIABLE,
    Gate,
    Phase,
    Progress,
    gate_name,
    open_gate,
)
from evaluator.rank.steps import StepClock

MEASURE = Measure(warmup_steps=2, timed_steps=3, profiled_steps=0)


class Told:
    """A gate that lets its rank through so many times."""

    def __init__(self, turns: int) -> None:
        self._left = turns

    def wait(self) -> bool:
        self._left -= 1
        return self._left >= 0


class Steps:
    """Work that only counts."""

    def __init__(self) -> None:
        self.count = 0

    def step(self, index: int) -> int:
        self.count = index + 1
        return 1

    def global_losses(self) -> list[float]:
        return []


@pytest.mark.parametrize(
    ("turns", "warmup_count", "timed_count", "done"),
    [(0, 0, 0, 0), (1, 2, 0, 2), (2, 2, 1, 3), (4, 2, 3, 5)],
)
def test_each_turn_after_the_warm_up_has_one_step_that_is_kept_and_ends_between_steps(
    tmp_path, turns, warmup_count, timed_count, done
):
    progress, work, last = Progress(tmp_path, rank=0), Steps(), []

    class Looking(Told):
        def wait(self) -> bool:
            beats = (tmp_path / "rank0.progress.jsonl").read_text().splitlines()
            last.append(beats[-1])
            return super().wait()

    progress.beat(Phase.SETUP)
    clock = StepClock(work, device=torch.device("cpu"), progress=progress)
    warmup, timed = clock.take_turns(MEASURE, Looking(turns))

    assert (len(warmup), len(timed), work.count) == (warmup_count, timed_count, done)
    assert len(last) == turns + 1
    assert all('"step": null' in beat for beat in last)


@pytest.fixture
def pipes(tmp_path, monkeypatch):
    """The two pipes of rank 0, held open as the one who gives the turns does."""
    held = {}
    for name in (ANSWERS, gate_name(0)):
        os.mkfifo(tmp_path / name)
        held[name] = os.open(tmp_path / name, os.O_RDWR)
    monkeypatch.setenv(TURNS_VARIABLE, str(tmp_path))
    yield held
    for descriptor in held.values():
        os.close(descriptor)


@pytest.mark.parametrize(("order", "goes_on"), [(GO, True), (NO_MORE, False)])
def test_a_rank_says_that_it_is_ready_and_then_waits_for_an_order(
    pipes, order, goes_on, monkeypatch
):
    told = []
    rank = threading.Thread(target=lambda: told.append(open_gate(0).wait()))
    rank.start()

    assert os.read(pipes[ANSWERS], 1) == READY
    assert rank.is_alive()
    os.write(pipes[gate_name(0)], order)
    rank.join()

    assert told == [goes_on]
    monkeypatch.delenv(TURNS_VARIABLE)
    assert open_gate(0) is None


def test_two_jobs_go_forward_and_back_and_three_are_in_any_order_equally_often():
    assert {turn_orders(2, 4, seed) for seed in range(10)} == {
        ((0, 1), (1, 0), (0, 1), (1, 0)),
        ((1, 0), (0, 1), (1, 0), (0, 1)),
    }
    counts = Counter(turn_orders(3, 6000, seed=5))
    assert len(counts) == 6
    assert max(counts.values()) < 1.2 * min(counts.values())


@given(st.integers(1, 6), st.integers(1, 20), st.integers(0, 2**32))
def test_each_job_has_one_turn_in_each_order(count, turn_count, seed):
    orders = turn_orders(count, turn_count, seed)

    assert len(orders) == turn_count
    assert all(sorted(order) == list(range(count)) for order in orders)
    assert orders == turn_orders(count, turn_count, seed)


class Rank:
    """A launcher whose jobs are one rank here, which notes its turns and ends after some."""

    def __init__(self, name: str, notes: list[str], *, leaves_after: int | None = None) -> None:
        self._name = name
        self._notes = notes
        self._leaves_after = leaves_after

    def run(self, job, workdir, on_phase):  # noqa: ARG002 - the port
        if self._leaves_after is None or self._leaves_after >= 0:
            self._take_turns(Gate(Path(job.environment[TURNS_VARIABLE]), rank=0))
        return JobResult(workdir=workdir, reason="finished", ranks=(), wall_s=job.timeout_s)

    def _take_turns(self, gate):
        for turn in count():
            if not gate.wait():
                self._notes.append(f"{self._name} goes home")
                return
            self._notes.append(self._name)
            if turn == self._leaves_after:
                return


@pytest.fixture
def run(tmp_path):
    """Runs such jobs in these orders; gives how they ended."""

    def run_jobs(launchers, orders, on_phase=lambda _: None):
        job = Job(argv=(), world_size=1, files={}, timeout_s=7)
        return interleaved.run_interleaved(
            [job] * len(launchers),
            [tmp_path] * len(launchers),
            launchers,
            orders=orders,
            on_phase=on_phase,
        )

    return run_jobs


def test_all_warm_up_and_then_step_in_the_given_orders_with_the_time_of_all(run):
    notes = []
    threads = threading.enumerate()

    ended = run([Rank(name, notes) for name in "ABC"], [(2, 0, 1), (1, 0, 2)])

    assert "".join(notes[:9]) == "ABC" + "CAB" + "BAC"
    assert sorted(notes[9:]) == ["A goes home", "B goes home", "C goes home"]
    assert ended.first_to_fail is None
    assert [result.wall_s for result in ended.results] == [21, 21, 21]
    assert threading.enumerate() == threads


@pytest.mark.parametrize(
    ("leaves_after", "turns"),
    [(-1, ""), (0, "AB"), (1, "ABAB"), (2, "ABABB")],
    ids=["before its gate", "in its warm-up", "in its first turn", "in its last turn"],
)
def test_who_leaves_early_ends_the_turns_of_all(run, leaves_after, turns):
    notes = []
    launchers = [Rank("A", notes), Rank("B", notes, leaves_after=leaves_after)]

    ended = run(launchers, [(0, 1), (1, 0)])

    assert ended.first_to_fail == 1
    assert notes == [*turns, "A goes home"]


def test_an_error_among_those_who_give_turns_sends_all_home(run):
    notes = []

    def fail(phase):
        if phase == "timed":
            raise OSError("nobody listens")

    with pytest.raises(OSError, match="nobody listens"):
        run([Rank(name, notes) for name in "AB"], [(0, 1)], fail)

    assert notes[:2] == ["A", "B"]
    assert sorted(notes[2:]) == ["A goes home", "B goes home"]


@pytest.mark.parametrize(
    ("peaks", "fits"),
    [
        ([(100, 100), (100, 200)], True),
        ([(100, 100), (100, 201)], False),
        ([(500,)], True),
        ([(250,), (251,)], False),
    ],
)
def test_launches_are_together_that_take_half_of_what_is_free(study, monkeypatch, peaks, fits):
    monkeypatch.setattr(interleaved, "free_memory_bytes", lambda: 1000)

    assert fits_together(study, peaks) is fits


@pytest.mark.parametrize(
    ("peaks", "fits"),
    [
        ([(400, 400), (400, 200)], True),
        ([(400, 401), (400, 400)], False),
        ([(400, 100), (400,)], True),
        ([(401,), (400,)], False),
        ([(100,), ()], False),  # nobody knows what it takes
        ([(1, 1, 1), (1, 1, 1)], False),  # a GPU that the driver does not name
    ],
)
def test_on_gpus_each_rank_must_fit_on_its_own(study, monkeypatch, peaks, fits):
    monkeypatch.setattr(interleaved, "shareable_gpu_bytes", lambda: (1000, 1000))
    on_gpus = replace(study, environment=replace(study.environment, device="cuda"))

    assert fits_together(on_gpus, peaks) is fits


@pytest.mark.parametrize(
    ("part", "changes", "fits"),
    [
        ("launch", {"recipe": "collectives"}, True),
        ("launch", {"recipe": "command"}, False),
        ("measure", {"together": "never"}, False),
        ("environment", {"device": "tpu"}, False),
    ],
)
def test_some_launches_are_never_together(study, part, changes, fits):
    changed = replace(study, **{part: replace(getattr(study, part), **changes)})

    assert fits_together(changed, [(1,), (1,)]) is fits
