"""Real searches of the smallest study, started as a person or a program starts them."""

import json
import os
import pty
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from records.store.store import Store
from tests.support.service import CCLSEARCH

LIMIT_S = 120
STUDY = """
name = "smallest"

[workload]
name = "decoder-2L"
layer_count = 2
hidden_size = 32
head_count = 2
kv_head_count = 2
ffn_size = 64
vocab_size = 64
sequence_length = 32
global_batch = 4

[environment]
device = "cpu"
world_size = 2
ranks_per_node = 2

[measure]
warmup_steps = 1
timed_steps = 5
profiled_steps = 2
timeout_s = 60.0
self_test_rounds = 0
race_rounds = 0
confirm_top = 1
confirm_rounds = 1
max_confirm_rounds = 1

[budget]
trials = 2
max_failures = 1
"""
# The same without ranks, for torch takes longer to import than the rest: a launch that ends only
# when it is told to, and then fails.
HELD = (
    STUDY
    + """
[launch]
recipe = "command"

[command]
run = ["sh", "held.sh"]
rank_count = "1"

[space.micro_batch]
choices = [1, 2]
"""
)
HOLD = "while [ ! -e {folder}/released ]; do sleep 0.05; done; exit 1"
BROKEN = "def generate_config(workload, environment):\n    return 1 / 0\n"


@dataclass(frozen=True)
class Folder:
    """A folder with the study file, and commands run in it."""

    path: Path

    def start(self, *arguments, stdout=subprocess.PIPE):
        return subprocess.Popen(
            [CCLSEARCH, *arguments],
            cwd=self.path,
            env={"PATH": os.defpath, "TERM": "xterm"},
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments):
        with self.start(*arguments) as process:
            out, err = process.communicate(timeout=LIMIT_S)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def store(self):
        return Store(self.path / ".cclsearch")


def folder(path):
    (path / "study.toml").write_text(STUDY, encoding="utf-8")
    (path / "held.toml").write_text(HELD, encoding="utf-8")
    (path / "held.sh").write_text(HOLD.format(folder=path), encoding="utf-8")
    (path / "broken.py").write_text(BROKEN, encoding="utf-8")
    return Folder(path)


@pytest.fixture
def here(tmp_path):
    return folder(tmp_path)


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A folder in which one search was run to its end, and how that ended."""
    place = folder(tmp_path_factory.mktemp("searched"))
    return place, place.run("run", "-c", "study.toml")


def until(process, words):
    """Read a search's output up to the line with these words."""
    for line in process.stdout:
        if words in line:
            return
    raise AssertionError(f"{words!r} never came: {process.stderr.read()}")


def labels(text):
    return [line.partition(":")[0] for line in text.splitlines()]


def test_a_search_prints_its_trials_and_its_finding_on_standard_output(searched):
    _, ended = searched

    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert lines[0].endswith(": smallest, objective step_time")
    assert lines[1] == "strategy offline: no ANTHROPIC_API_KEY, so no model is asked"
    assert [line.split()[:2] for line in lines[2:4]] == [["trial", "0"], ["trial", "1"]]
    assert lines[4].startswith("trial 0 repeated to confirm")
    told = labels(ended.stdout[ended.stdout.index("stopped: ") :])
    assert told[:2] == ["stopped", "trials"]
    assert {"best", "step_time", "against the seed", "record"} < set(told)
    assert told[-2:] == ["next", "next"]


def test_a_finished_search_is_not_repeated_but_told_again(searched):
    place, ended = searched

    again = place.run("resume")

    assert again.returncode == 0
    assert again.stderr == "nothing left to launch: all 2 trials are used\n"
    report = ended.stdout[ended.stdout.index("stopped: ") :]
    assert again.stdout.endswith(report)
    assert place.run("show").stdout.endswith(report)


def test_a_search_of_nothing_that_can_be_measured_ends_with_3(here):
    ended = here.run("run", "-c", "held.toml", "--seed-policy", "broken.py")

    assert (ended.returncode, ended.stderr) == (3, "")
    assert "best: none, because no configuration could be measured" in ended.stdout
    assert "failed: 1 policy_error; first in trial 0: line 2: " in ended.stdout
    again = here.run("resume", "--json")
    finished = json.loads(again.stdout.splitlines()[-1])
    assert (again.returncode, finished["event"], finished["winner"]) == (3, "finished", None)


TOO_LARGE = STUDY.replace("hidden_size = 32", "hidden_size = 512").replace(
    "ffn_size = 64", "ffn_size = 4096"
)
TOO_SMALL = "[launch]\nmemory_budget_bytes = 33554432\n"


def test_a_memory_budget_that_surely_holds_nothing_launches_nothing(here):
    (here.path / "study.toml").write_text(f"{TOO_LARGE}\n{TOO_SMALL}", encoding="utf-8")

    ended = here.run("run", "-c", "study.toml")

    assert (ended.returncode, ended.stdout) == (2, "")
    assert "no configuration satisfies the constraints; relax one: breaks memory: " in ended.stderr
    assert "memory_bytes=32 MiB" in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_ends_with_75_and_says_how_to_go_on(here, number):
    with here.start("run", "-c", "held.toml", "--json") as process:
        until(process, '"config_decided"')
        process.send_signal(number)
        _, err = process.communicate(timeout=LIMIT_S)

    assert process.returncode == 75
    first, second = err.splitlines()
    assert first == "interrupted; every finished trial is recorded"
    assert second.startswith("next: cclsearch resume 20")
    assert "status: interrupted" in here.run("show").stdout


def test_a_second_interruption_ends_with_130(here):
    with here.start("run", "-c", "held.toml", "--json") as process:
        until(process, '"config_decided"')
        for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
            process.send_signal(number)
        _, err = process.communicate(timeout=LIMIT_S)

    assert process.returncode == 130
    assert "next: cclsearch resume 20" in err
    assert "Traceback" not in err


def test_a_reader_that_leaves_ends_the_search_with_75(here):
    with here.start("run", "-c", "held.toml") as process:
        process.stdout.readline()
        process.stdout.close()
        (here.path / "released").touch()
        err = process.stderr.read()

    assert process.returncode == 75
    assert "next: cclsearch resume 20" in err
    assert "BrokenPipe" not in err


def test_a_study_is_searched_by_one_process_at_a_time(here):
    here.run("run", "-c", "held.toml", "--seed-policy", "broken.py")
    store = here.store()
    study = store.find("")
    with store.lock(study.id):
        ended = here.run("resume", "--trials", "5")

    assert ended.returncode == 4
    assert f"error: study {study.id} is being run by process {os.getpid()}" in ended.stderr
    assert store.find("").study.budget == study.study.budget
    store.close()


def test_a_terminal_gets_rows_and_a_report_without_a_trace_of_what_was_under_way(here):
    ours, theirs = pty.openpty()
    command = ["run", "-c", "held.toml", "--seed-policy", "broken.py"]
    with here.start(*command, stdout=theirs) as process:
        os.close(theirs)
        shown = read_all(ours)

    assert process.wait() == 3
    assert "policy_error" in shown
    assert shown.index("step: █ compute") < shown.index("policy_error") < shown.index("stopped")
    assert "proposing" not in shown[shown.index("stopped") :]


def read_all(terminal):
    """What was written to a terminal until its other end closed."""
    parts = []
    with os.fdopen(terminal, "rb") as shown:
        try:
            while part := shown.read(1):
                parts.append(part)
        except OSError:  # how Linux says that the other end of a terminal has gone
            pass
    return b"".join(parts).decode(errors="replace")


def test_the_script_of_a_trial_trains_again_by_itself(searched, tmp_path):
    place, _ = searched
    again = tmp_path / "again.sh"
    written = place.run("trial", "script", "0", "-o", str(again))
    assert (written.returncode, written.stderr) == (0, "")

    environment = {"PATH": f"{Path(CCLSEARCH).parent}:{os.defpath}"}
    ended = subprocess.run(
        ["sh", "again.sh"], cwd=tmp_path, env=environment, timeout=LIMIT_S, check=False
    )

    assert ended.returncode == 0
    steps = json.loads((tmp_path / "trial-0" / "rank1.steps.json").read_text())
    assert steps["losses"]
