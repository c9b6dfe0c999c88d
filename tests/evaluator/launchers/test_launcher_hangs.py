import os
import signal
import sys
import time

import pytest

from evaluator.failures.classify import classify
from evaluator.launchers.watch import Heartbeats, all_hang, take_stacks
from evaluator.rank.protocol import RankExit
from records.trial import FailureKind

KEPT = 2
A_SECOND_NS = 10**9


def test_a_rank_that_sleeps_through_a_collective_is_a_hang_with_the_stacks_of_all(
    launch, processes
):
    launched = launch("sleep", rank=1, hang_after_s=1)

    result = launched.result
    assert result.reason == "hang"
    assert [(beat.rank, beat.phase, beat.step) for beat in result.heartbeats] == [
        (0, "timed", 2),
        (1, "timed", 2),
    ]
    assert all(1 <= beat.silent_s <= result.wall_s for beat in result.heartbeats)
    assert "in all_reduce" in (launched.folder / "rank0.stacks.txt").read_text()
    assert "in sleep" in (launched.folder / "rank1.stacks.txt").read_text()
    assert classify(result).kind is FailureKind.HANG
    assert len(processes()) == KEPT


def test_a_rank_that_hangs_and_hears_no_signal_is_killed(launch, processes):
    launched = launch("hang", rank=0, hang_after_s=1)

    assert launched.result.reason == "hang"
    assert launched.result.ranks == (
        RankExit(rank=0, signal=signal.SIGKILL),
        RankExit(rank=1, signal=signal.SIGTERM),
    )
    assert len(processes()) == KEPT


def test_before_its_steps_a_job_may_be_silent_until_its_time_is_up(launch, processes):
    launched = launch("sleep in another session", step=None, hang_after_s=0.1, timeout_s=6)

    assert launched.result.reason == "timeout"
    assert launched.result.heartbeats[1].phase == "setup"
    assert "in sleep" in (launched.folder / "rank1.stacks.txt").read_text()
    assert len(processes()) == KEPT


def test_a_job_that_is_slower_than_the_limit_but_beats_is_no_hang(launcher, job_of, tmp_path):
    result = launcher.run(job_of("slow_at_first", hang_after_s=0.05), tmp_path, print)

    assert result.reason == "finished"
    assert not list(tmp_path.glob("*.stacks.txt"))


def test_ranks_may_clean_up_when_they_are_told_to_end(launch):
    launched = launch("clean up when told to end", hang_after_s=1)

    assert launched.result.reason == "hang"
    assert (launched.folder / "cleaned_up").exists()
    assert launched.result.ranks[1] == RankExit(rank=1, status=0)


@pytest.fixture
def beats(tmp_path):
    """Beats of two ranks, read from what a test says that they wrote; seconds since the start."""
    ranks = [Heartbeats(tmp_path, rank) for rank in range(2)]
    started_s = time.monotonic()

    def write(rank, phase, step, at_s):
        at_ns = int((started_s + at_s) * A_SECOND_NS)
        with (tmp_path / f"rank{rank}.progress.jsonl").open("a") as file:
            file.write(f'{{"phase": "{phase}", "step": {step}, "at_ns": {at_ns}}}\n')
        list(ranks[rank].read())

    return ranks, write, lambda at_s: all_hang(ranks, 30, started_s + at_s)


@pytest.mark.parametrize(
    ("said", "hangs"),
    [
        ([("setup", "null")] * 2, False),
        ([("warmup", 0)] * 2, False),
        ([("warmup", 1)] * 2, True),
        ([("timed", 3)] * 2, True),
        ([("timed", 3), ("profile", "null")], True),
        ([("profile", "null"), ("done", "null")], False),
        ([("timed", 3), ("done", "null")], True),
        ([("done", "null")] * 2, False),
    ],
)
def test_silence_is_a_hang_only_inside_steps_after_the_first(said, hangs, beats):
    _, write, hang_at = beats
    for rank, (phase, step) in enumerate(said):
        write(rank, phase, step, 0.0)

    assert not hang_at(29)
    assert hang_at(31) is hangs


@pytest.mark.parametrize(
    ("written", "lives_until_s"),
    [
        ([(0, "timed", 3, 0), (1, "timed", 3, 20)], 50),  # one rank that beats keeps it alive
        ([(0, "warmup", 0, 0), (0, "warmup", 1, 40)], 120),  # a long step may take twice as long
    ],
)
def test_a_job_is_silent_when_all_are_for_longer_than_steps_took(
    beats, monkeypatch, written, lives_until_s
):
    _, write, hang_at = beats
    monkeypatch.setattr("time.monotonic", lambda: float("inf"))
    for beat in written:
        write(*beat)

    assert not hang_at(lives_until_s - 1)
    assert hang_at(lives_until_s + 1)


def test_a_beat_from_the_future_counts_as_one_from_now(beats):
    ranks, write, hang_at = beats
    write(0, "timed", 3, 1e6)

    assert ranks[0].silent_s(ranks[0].last.at_s + 5) == 5
    assert hang_at(60)


def test_a_program_that_spies_on_stacks_is_asked_about_processes_that_cannot_answer(tmp_path):
    spy, folder = tmp_path / "bin" / "py-spy", tmp_path / "job"
    spy.parent.mkdir()
    folder.mkdir()
    spy.write_text("#!/bin/sh\necho asked $@\n")
    spy.chmod(0o755)
    environment = {"PATH": str(spy.parent)}

    take_stacks(
        [os.getpid()], rendezvous=tmp_path, folder=folder, ranks=[0, 1], environment=environment
    )

    (stacks,) = folder.iterdir()
    assert stacks == folder / f"process{os.getpid()}.stacks.txt"
    assert stacks.read_text() == f"asked dump --pid {os.getpid()}\n"


def test_a_note_says_that_nothing_could_take_stacks(tmp_path, monkeypatch):
    # py-spy may be installed next to our Python.
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    take_stacks(
        [os.getpid()], rendezvous=tmp_path, folder=tmp_path, ranks=[0], environment={"PATH": ""}
    )

    assert "py-spy" in (tmp_path / "missing.stacks.txt").read_text()
