"""kill -9 of a search at several points: nothing finished is lost or repeated, no rank survives."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from records.store import Store

CCLSEARCH = str(Path(sys.executable).with_name("cclsearch"))
TINY = Path(__file__).parents[1] / "data" / "tiny_study.toml"
LIMIT_S = 120


class RunningSearch:
    """A real `cclsearch --json` process, read event by event."""

    def __init__(self, *arguments: str, store: Path) -> None:
        self.events: list[dict[str, object]] = []
        self._process = subprocess.Popen(
            [CCLSEARCH, *arguments, "--json", "--store", str(store)],
            env={"PATH": os.defpath},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until(self, **wanted: object) -> None:
        for event in self._read():
            if wanted.items() <= event.items():
                return
        raise AssertionError(f"no event {wanted} in {self.events}: {self._process.stderr.read()}")

    def finish(self) -> int:
        for _ in self._read():
            pass
        errors = self._process.stderr.read()
        self._close()
        assert self._process.returncode == 0, errors
        return self._process.returncode

    def kill(self) -> list[int]:
        """Kill it, and give every process that it had started."""
        started = descendants(self._process.pid)
        self._process.send_signal(signal.SIGKILL)
        self._close()
        return started

    def interrupt(self) -> tuple[int, str, list[int]]:
        """Press Ctrl-C; gives the exit code, what it said, and every process it had started."""
        started = descendants(self._process.pid)
        self._process.send_signal(signal.SIGINT)
        said = self._process.stderr.read()
        self._close()
        return self._process.returncode, said, started

    def _read(self) -> Iterator[dict[str, object]]:
        for line in self._process.stdout:
            self.events.append(json.loads(line))
            yield self.events[-1]

    def _close(self) -> None:
        self._process.wait(LIMIT_S)
        self._process.stdout.close()
        self._process.stderr.close()

    def finished(self) -> list[dict[str, object]]:
        return [event for event in self.events if event["event"] == "trial_finished"]


def descendants(pid: int) -> list[int]:
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1])
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        children = [child for child, its_parent in parents.items() if its_parent == parent]
        found += children
        waiting += children
    return found


def survivors(pids: list[int]) -> list[int]:
    deadline = time.monotonic() + 20
    alive = pids
    while alive and time.monotonic() < deadline:
        alive = [pid for pid in alive if Path(f"/proc/{pid}/exe").exists()]
        time.sleep(0.05)
    return alive


KILL_POINTS = {
    "while the second policy is decided": {"event": "trial_started", "ordinal": 1},
    "before the ranks of the second trial start": {"event": "config_decided", "ordinal": 1},
    "in set-up of the first trial": {"phase": "setup"},
    "in the timed steps of the first trial": {"phase": "timed"},
    "in the profiled steps of the first trial": {"phase": "profile"},
}
KILL_POINTS_OF_REPEATS = {
    "just after the second trial finished": {"event": "trial_finished", "ordinal": 1},
    "between launches that test the noise": {"event": "repeat_finished", "round": 0},
    "between launches that confirm": {"event": "repeat_finished", "purpose": "confirm"},
}


@pytest.mark.parametrize("point", KILL_POINTS.values(), ids=KILL_POINTS)
def test_a_killed_search_loses_and_repeats_no_finished_trial(point, tmp_path):
    plain = tmp_path / "plain.toml"
    plain.write_text(_without_repeats(TINY.read_text(encoding="utf-8")), encoding="utf-8")

    kill_and_resume(plain, point, tmp_path / "store")


@pytest.mark.parametrize("point", KILL_POINTS_OF_REPEATS.values(), ids=KILL_POINTS_OF_REPEATS)
def test_a_killed_search_repeats_no_finished_launch(point, tmp_path):
    kill_and_resume(TINY, point, tmp_path / "store")


ONE_RANK = """
[space.micro_batch]
choices = [1, 2, 4]

[[constraint]]
name = "ranks"
expression = "dp_shard == 1"
"""


def test_a_kill_between_two_trials_at_once_repeats_only_what_had_not_ended(tmp_path):
    study, seed, store = tmp_path / "one_rank.toml", tmp_path / "seed.py", tmp_path / "store"
    study.write_text(_without_repeats(TINY.read_text(encoding="utf-8")) + ONE_RANK)
    seed.write_text("def generate_config(workload, environment):\n    return {'micro_batch': 1}\n")
    options = ("--parallel", "2", "--trials", "3", "--seed-policy", str(seed))
    search = RunningSearch("run", "-c", str(study), *options, store=store)
    search.until(event="trial_finished", ordinal=0)
    search.until(event="trial_finished")
    before = search.finished()
    assert survivors(search.kill()) == []
    with closing(Store(store)) as records:
        study_id = records.find("").id
        ended = records.history(study_id)
        pending = [intent.ordinal for intent in records.pending(study_id)]
    RunningSearch("resume", store=store).finish()

    assert sorted([*(trial.ordinal for trial in ended), *pending]) == [0, 1, 2]
    assert before[1]["caveats"] == ["measured beside 1 other trial"]
    with closing(Store(store)) as records:
        history = records.history(study_id)
        assert records.pending(study_id) == ()
    assert [trial.ordinal for trial in history] == [0, 1, 2]
    assert all(history.find(trial.ordinal) == trial for trial in ended)
    assert not list((store / "work").iterdir())


def kill_and_resume(study, point, store):
    search = RunningSearch("run", "-c", str(study), "--trials", "2", store=store)
    search.until(**point)
    before = search.finished()
    started = search.kill()

    assert survivors(started) == []
    resumed = RunningSearch("resume", store=store)
    resumed.finish()

    after = resumed.finished()
    ordinals = [event["ordinal"] for event in before + after]
    records = Store(store)
    history = records.history(records.find("").id)
    assert sorted(set(ordinals)) == [0, 1]
    assert len(ordinals) == len(history) or _finished_unsaid(before, after, len(history))
    assert [trial.ordinal for trial in history] == [0, 1]
    for event in before:
        assert history.trials[event["ordinal"]].ended_at == event["ended_at"]
    assert records.pending(records.find("").id) == ()
    assert not list((store / "work").iterdir())
    assert resumed.events[-1]["event"] == "finished"
    confirmed = [
        (event["series"], event["round"], event["ordinal"])
        for event in search.events + resumed.events
        if event["event"] == "repeat_finished"
    ]
    assert len(confirmed) == len(set(confirmed))
    records.close()


def _without_repeats(text: str) -> str:
    for key in ("self_test_rounds", "race_rounds", "confirm_rounds"):
        text = re.sub(rf"^{key} = \d+$", f"{key} = 0", text, flags=re.MULTILINE)
    return text


def _finished_unsaid(before: list, after: list, count: int) -> bool:
    """A trial may be on record although the kill came before it was announced."""
    return len(before) + len(after) == count - 1


def test_ctrl_c_ends_every_rank_and_says_how_to_resume(tmp_path):
    search = RunningSearch("run", "-c", str(TINY), "--trials", "2", store=tmp_path / "store")
    search.until(phase="timed")
    code, said, started = search.interrupt()

    assert code == 75
    assert "next: cclsearch resume" in said
    assert survivors(started) == []
