"""What runs now: how far launches are by what they write, the end of their logs, the time left."""

import json
import os
from dataclasses import replace

import pytest

from evaluator.launchers.watch import HEAD_BYTES
from records.machine import LaunchRecord
from records.scrub import Scrubber
from records.study import Budget, Launch, Measure
from records.trial import Purpose, Repeat
from search.loop.running import (
    LATER,
    LINE_CHARS,
    MOST_LINES,
    READ_BYTES,
    log_tail,
    most_steps,
    running_launches,
    time_left,
)
from tests.support import records as testing

SECRET = "a-very-secret-value"
SCRUB = Scrubber(secrets=[SECRET]).text


def launched(folder, *beats, log=""):
    """A folder as a launch has it that entered these phases and steps."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.json").write_text("{}")
    lines = [json.dumps({"phase": phase, "step": step, "at_ns": 1}) for phase, step in beats]
    (folder / "rank0.progress.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (folder / "rank0.log").write_text(log)


def test_a_launch_shows_its_phase_its_step_and_the_end_of_its_log(tmp_path):
    launched(tmp_path, ("setup", None), ("warmup", 0), ("timed", 6), log="one\ntwo\nthr")

    (found,) = running_launches(tmp_path, SCRUB)

    assert (found.ordinal, found.phase, found.step) == (None, "timed", 7)
    assert (found.log_name, found.log) == ("rank0.log", ("one", "two"))
    assert 0 <= found.elapsed_s < 60


def test_between_steps_the_last_one_is_shown_and_a_script_without_steps_shows_none(tmp_path):
    launched(tmp_path / "0", ("warmup", 1), ("warmup", None))
    launched(tmp_path / "1")

    both = running_launches(tmp_path, SCRUB)

    assert [(each.phase, each.step) for each in both] == [("warmup", 2), (None, None)]


def test_launches_in_parallel_say_which_trials_they_are(tmp_path):
    for ordinal in (3, 4):
        launched(tmp_path / f"trial{ordinal}", ("timed", ordinal))

    assert [each.ordinal for each in running_launches(tmp_path, SCRUB)] == [3, 4]


def test_of_several_contexts_the_one_that_runs_is_shown(tmp_path):
    launched(tmp_path, ("done", None))
    os.utime(tmp_path / "job.json", (1, 1))
    launched(tmp_path / "contexts" / "long", ("timed", 2))

    (found,) = running_launches(tmp_path, SCRUB)

    assert (found.phase, found.step) == ("timed", 3)


def test_nothing_runs_where_there_is_no_folder_or_an_empty_one(tmp_path):
    assert running_launches(tmp_path / "none", SCRUB) == ()
    assert running_launches(tmp_path, SCRUB) == ()


@pytest.mark.parametrize(
    "beats",
    [
        b"",
        b"\xff\n[]\n{}\nnull\n",
        b'{"phase": "party", "step": 1}\n',
        b'{"phase": "timed", "step": true}\n{"phase": "timed", "step": -1}\n',
        b'{"phase": "timed", "step": 1e300}\n{"phase": "timed", "step": 99999999999999}\n',
        b"[" * 4000 + b"\n",
    ],
)
def test_whatever_a_job_writes_as_its_progress_shows_no_step(tmp_path, beats):
    launched(tmp_path)
    (tmp_path / "rank0.progress.jsonl").write_bytes(beats)

    (found,) = running_launches(tmp_path, SCRUB)

    assert found.step is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ()),
        ("not ended", ()),
        (f"key {SECRET}\n", ("key ***",)),
        (f"key {SECRET[:8]}", ()),  # the rest is still to come
        ("10 %\r20 %\r30 %\r", ("30 %",)),
        ("10 %\r20 %\r3", ("20 %",)),
        ("10 %\r100 %\r\ndone\r\n", ("100 %", "done")),
        (f"\x1b[31m{SECRET[:5]}\x1b[0m{SECRET[5:]}\n", ("***",)),
        ("-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----\nend\n", ("***", "end")),
        ("x" * 500 + "\n", ("x" * LINE_CHARS,)),
    ],
)
def test_a_log_shows_its_last_whole_lines_without_secrets(tmp_path, text, shown):
    (tmp_path / "job.log").write_text(text, newline="")

    assert log_tail(tmp_path / "job.log", SCRUB) == shown


def test_of_a_long_log_only_the_end_is_read(tmp_path):
    path = tmp_path / "job.log"
    path.write_text(f"{SECRET * READ_BYTES}\n" + "".join(f"{n}\n" for n in range(99)))
    only_line = tmp_path / "rank0.log"
    only_line.write_text("x" * (READ_BYTES + 1))

    shown = log_tail(path, SCRUB)

    assert shown == tuple(str(n) for n in range(99 - MOST_LINES, 99))
    assert log_tail(only_line, SCRUB) == ()


def test_a_log_that_is_written_no_further_before_the_end_says_so(tmp_path):
    path = tmp_path / "job.log"
    path.write_text("line\n" * 40)
    os.truncate(path, HEAD_BYTES)

    assert log_tail(path, SCRUB)[-1] == LATER


def test_no_link_and_no_pipe_is_followed(tmp_path):
    elsewhere, work = tmp_path / "elsewhere", tmp_path / "work"
    launched(elsewhere, ("timed", 1), log="private\n")
    launched(work)
    for name in ("rank0.log", "rank0.progress.jsonl"):
        (work / name).unlink()
        (work / name).symlink_to(elsewhere / name)
    os.mkfifo(work / "job.log")
    (work / "contexts").symlink_to(tmp_path)

    (found,) = running_launches(work, SCRUB)

    assert (found.phase, found.step, found.log) == (None, None, ())


@pytest.mark.parametrize(
    ("recipe", "most"), [("builtin", 23), ("command", 8), ("collectives", None)]
)
def test_the_most_steps_are_those_that_the_recipe_runs(recipe, most):
    study = replace(testing.study(), launch=Launch(recipe=recipe))

    assert most_steps(study) == most


def took(wall_s, turns=()):
    """An outcome of a launch that took so long."""
    found = testing.measured()
    measurement = replace(found.measurement, turn_steps=turns)
    record = LaunchRecord(argv=("x",), reason="finished", wall_s=wall_s)
    return replace(found, measurement=measurement, launched=record)


STUDY = replace(testing.study(), budget=Budget(trials=4, launches=12))


def test_the_time_left_is_what_may_still_be_launched_times_what_launches_took():
    repeat = Repeat(series=1, round=0, ordinal=0, outcome=took(4.0))

    left = time_left(STUDY, testing.history(took(1.0), took(4.0)), [repeat])

    assert (left.trials, left.most_repeats) == (2, 7)
    assert (left.launch_s, left.launch_count) == (3.0, 3)
    assert (left.least_s, left.most_s) == (6.0, 27.0)


def test_launches_that_took_turns_share_the_time_of_their_round():
    repeats = [
        Repeat(series=1, round=r, ordinal=n, outcome=took(8.0, (5, 5)), purpose=Purpose.RACE)
        for r in (0, 1)
        for n in (0, 1)
    ]

    assert time_left(STUDY, testing.history(), repeats).launch_s == 4.0


def test_a_study_that_repeats_nothing_has_only_its_trials_left():
    measure = Measure(self_test_rounds=0, race_rounds=0, confirm_rounds=0)

    left = time_left(replace(STUDY, measure=measure), testing.history(took(2.0)), ())

    assert (left.least_s, left.most_s) == (6.0, 6.0)


def test_no_time_is_guessed_before_a_launch_has_shown_it():
    assert time_left(STUDY, testing.history(), ()) is None
    assert time_left(STUDY, testing.history(testing.failed()), ()) is None
