"""kill -9 of a search at several points: nothing finished is lost or repeated, no rank survives."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from evaluator.launchers.limits import descendants
from records.store.store import Store
from tests.search.conftest import Ended
from tests.support.service import CCLSEARCH

TINY = Path(__file__).parents[2] / "data" / "tiny_study.toml"
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


def finished(events: list[dict[str, object]]) -> list[dict[str, object]]:
    return [event for event in events if event["event"] == "trial_finished"]


def resumed(cclsearch: Callable[..., Ended], store: Path) -> list[dict[str, object]]:
    """Resume a search in this process to its end; gives its events."""
    ended = cclsearch("resume", "--json", "--store", store)
    assert ended.code == 0, ended.err
    return [json.loads(line) for line in ended.out.splitlines()]


def survivors(pids: list[int]) -> list[int]:
    deadline = time.monotonic() + 60
    alive = pids
    while alive and time.monotonic() < deadline:
        alive = [pid for pid in alive if Path(f"/proc/{pid}/exe").exists()]
        time.sleep(0.05)
    return alive


# Two trials of a script that says each of its launches and stays in one of them.
STUDY = """
name = "held"
strategy = "coordinate"  # which loads no library

[workload]
name = "held"
global_batch = 8
sequence_length = 16

[environment]
device = "cpu"
world_size = 2
ranks_per_node = 2

[launch]
recipe = "command"

[command]
run = ["bash", "{folder}/run.sh"]
rank_count = "1"

[space.micro_batch]
choices = [1, 2, 4]

[measure]
self_test_rounds = {self_test_rounds}
race_rounds = 0
confirm_top = 1
confirm_rounds = {confirm_rounds}
max_confirm_rounds = {confirm_rounds}
infrastructure_retries = 0

[budget]
trials = 2
"""
SCRIPT = """
number=1
until mkdir {folder}/launch$number 2>/dev/null; do number=$((number + 1)); done
test $number != "$(cat {folder}/held)" || sleep 1000
cat > "$TRACE_DIR/rank0.json" <<JSON
{{"distributedInfo": {{"rank": 0, "world_size": 1}}, "traceEvents": [{{
  "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1,
  "ts": $(($(date +%s%N) / 1000)), "dur": $((120000 / MICRO_BATCH))
}}]}}
JSON
"""


@dataclass(frozen=True)
class HeldStudy:
    """A study whose script says each of its launches and stays in that of this number."""

    folder: Path
    self_test_rounds: int = 0
    confirm_rounds: int = 0

    def write(self, held: int) -> Path:
        Store(self.folder / "store").close()  # here, where it takes no time
        file = self.folder / "study.toml"
        file.write_text(STUDY.format(**asdict(self)), encoding="utf-8")
        (self.folder / "run.sh").write_text(SCRIPT.format(**asdict(self)), encoding="utf-8")
        (self.folder / "held").write_text(str(held), encoding="utf-8")
        return file

    def release(self) -> None:
        (self.folder / "held").unlink()

    @property
    def launches(self) -> int:
        return len(list(self.folder.glob("launch*")))

    def wait_for_launch(self, number: int) -> None:
        deadline = time.monotonic() + LIMIT_S
        while self.launches < number:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize(
    ("rounds", "event", "held"),
    [
        ({}, {"event": "study_started"}, 1),
        ({}, {"event": "trial_started", "ordinal": 1}, 2),
        ({}, {"event": "config_decided", "ordinal": 1}, 2),
        ({"self_test_rounds": 1}, {"event": "repeat_finished", "round": 0}, 3),
        ({"confirm_rounds": 2}, {"event": "trial_finished", "ordinal": 1}, 3),
        ({"confirm_rounds": 2}, {"event": "repeat_finished", "purpose": "confirm"}, 4),
    ],
    ids=[
        "in the first trial",
        "while the second policy is decided",
        "before the second trial is launched",
        "between launches that test the noise",
        "just after the second trial finished",
        "between launches that confirm",
    ],
)
def test_a_killed_search_repeats_no_finished_launch(rounds, event, held, cclsearch, tmp_path):
    study = HeldStudy(tmp_path, **rounds)

    launched = kill_and_resume(cclsearch, study.write(held), event, tmp_path / "store")

    assert study.launches - launched in {0, 1}


def test_a_launch_that_a_kill_interrupts_is_the_only_one_made_again(cclsearch, tmp_path):
    study, store = HeldStudy(tmp_path, confirm_rounds=2), tmp_path / "store"
    search = RunningSearch("run", "-c", str(study.write(held=4)), store=store)
    study.wait_for_launch(4)
    assert survivors(search.kill()) == []

    study.release()
    resumed(cclsearch, store)

    assert study.launches == launches_on_record(store) + 1


@pytest.mark.slow
def test_a_killed_search_of_real_ranks_repeats_no_finished_launch(cclsearch, tmp_path):
    study = tmp_path / "tiny.toml"
    text = TINY.read_text(encoding="utf-8")
    for key in ("self_test_rounds", "race_rounds", "confirm_rounds"):
        text = re.sub(rf"^{key} = \d+$", f"{key} = 0", text, flags=re.MULTILINE)
    study.write_text(text, encoding="utf-8")

    kill_and_resume(cclsearch, study, {"phase": "timed"}, tmp_path / "store")


def test_a_kill_between_two_trials_at_once_repeats_only_what_had_not_ended(cclsearch, tmp_path):
    study, store = HeldStudy(tmp_path), tmp_path / "store"
    options = ("--parallel", "2", "--trials", "3")
    search = RunningSearch("run", "-c", str(study.write(held=3)), *options, store=store)
    search.until(event="trial_finished", ordinal=0)
    search.until(event="trial_finished")
    study.wait_for_launch(3)
    before = finished(search.events)
    assert survivors(search.kill()) == []
    study.release()
    with closing(Store(store)) as records:
        study_id = records.find("").id
        ended = records.history(study_id)
        pending = [intent.ordinal for intent in records.pending(study_id)]
    resumed(cclsearch, store)

    assert sorted([*(trial.ordinal for trial in ended), *pending]) == [0, 1, 2]
    assert len(pending) == 1
    assert "measured in parallel with 1 other trial" in before[1]["caveats"]
    with closing(Store(store)) as records:
        history = records.history(study_id)
        assert records.pending(study_id) == ()
    assert [trial.ordinal for trial in history] == [0, 1, 2]
    assert all(history.find(trial.ordinal) == trial for trial in ended)
    assert study.launches == 4
    assert not list((store / "work").iterdir())


def kill_and_resume(
    cclsearch: Callable[..., Ended], study: Path, point: dict[str, object], store: Path
) -> int:
    """Kill a search of two trials at a point and resume it; gives the launches on record."""
    search = RunningSearch("run", "-c", str(study), "--trials", "2", store=store)
    search.until(**point)
    before = finished(search.events)
    started = search.kill()

    assert survivors(started) == []
    study.with_name("held").unlink(missing_ok=True)
    events = resumed(cclsearch, store)

    after = finished(events)
    ordinals = [event["ordinal"] for event in before + after]
    with closing(Store(store)) as records:
        history = records.history(records.find("").id)
        assert records.pending(records.find("").id) == ()
    assert sorted(set(ordinals)) == [0, 1]
    assert len(ordinals) == len(history) or _finished_unsaid(before, after, len(history))
    assert [trial.ordinal for trial in history] == [0, 1]
    for event in before:
        assert history.trials[event["ordinal"]].ended_at == event["ended_at"]
    assert not list((store / "work").iterdir())
    assert events[-1]["event"] == "finished"
    confirmed = [
        (event["series"], event["round"], event["ordinal"])
        for event in search.events + events
        if event["event"] == "repeat_finished"
    ]
    assert len(confirmed) == len(set(confirmed))
    return launches_on_record(store)


def launches_on_record(store: Path) -> int:
    with closing(Store(store)) as records:
        study_id = records.find("").id
        return len(records.history(study_id)) + len(records.repeats(study_id))


def _finished_unsaid(before: list, after: list, count: int) -> bool:
    """A trial may be on record although the kill came before it was announced."""
    return len(before) + len(after) == count - 1


def test_ctrl_c_ends_every_process_and_says_how_to_resume(tmp_path):
    study = HeldStudy(tmp_path)
    search = RunningSearch("run", "-c", str(study.write(held=1)), store=tmp_path / "store")
    study.wait_for_launch(1)
    code, said, started = search.interrupt()

    assert code == 75
    assert "next: cclsearch resume" in said
    assert started
    assert survivors(started) == []
