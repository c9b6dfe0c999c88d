"""Whole searches by `slurm` and `slurm-step` on two nodes, and everything that may go wrong there.

Each test prints what it counted.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import pytest

from records.store.store import Store
from records.trial import Measured

CCLSEARCH = str(Path(sys.executable).parent / "cclsearch")
LIMIT_S = 600.0
TRIALS = 3
EXIT_INTERRUPTED = 75

# Two ranks on each of two nodes: gloo has to find its way from one node to the other.
STUDY = """\
name = "two-nodes"
[workload]
name = "decoder-2L"
layer_count = 2
hidden_size = 32
head_count = 2
kv_head_count = 2
ffn_size = 64
vocab_size = 64
sequence_length = 32
global_batch = 8
precision = "fp32"
[environment]
device = "cpu"
world_size = 4
ranks_per_node = 2
[measure]
warmup_steps = 1
timed_steps = {steps}
max_timed_steps = {steps}
profiled_steps = 2
timeout_s = 120.0
self_test_rounds = 0
race_rounds = 0
confirm_top = 0
confirm_rounds = 1
max_confirm_rounds = 1
[launch]
launcher = "{launcher}"
memory_budget_bytes = 536870912
[cluster]
shared_dir = "{folder}"
"""


class Search:
    """A study in a folder that all nodes share, and the searches of it from a login node."""

    def __init__(self, slurm, folder, *, launcher="slurm", steps=20):
        self.slurm, self.folder, self.store = slurm, folder, folder / "store"
        self.study = folder / "study.toml"
        text = STUDY.format(launcher=launcher, steps=steps, folder=folder)
        self.study.write_text(text, encoding="utf-8")
        self.log = folder / "search.log"
        self.words = [
            *(CCLSEARCH, "run", "-c", str(self.study), "--store", str(self.store)),
            *("--strategy", "grid", "--trials", str(TRIALS)),
        ]
        self.environment = {
            **slurm.environment,
            "PATH": f"{Path(sys.executable).parent}:{slurm.environment['PATH']}",
            "HOME": str(folder),
        }

    def start(self, *words):
        """Start a search, or what the words are."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                words or self.words,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def finish(self, process):
        """Wait until a search ends, and return its status."""
        try:
            return process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(self.said) from None

    @property
    def said(self):
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def id(self):
        """The study's id, once the search has said it."""
        until(lambda: re.search(r"^study (\S+):", self.said, re.MULTILINE), lambda: self.said)
        return re.search(r"^study (\S+):", self.said, re.MULTILINE).group(1)

    @property
    def history(self):
        with closing(Store(self.store)) as store:
            return list(store.history(self.id))

    def resume(self):
        return [CCLSEARCH, "resume", self.id, "--store", str(self.store)]

    def pilot(self):
        """The id of the running job of the search."""
        rows = ["squeue", "--noheader", "--states=running", "--format=%i"]
        until(lambda: self.slurm.run(*rows).split(), lambda: self.said)
        return self.slurm.run(*rows).split()[0]

    def agents(self):
        """The processes of agents on all nodes."""
        found = subprocess.run(
            ["pgrep", "-f", f"agent.pyz .*{self.folder.name}"],
            capture_output=True,
            text=True,
            check=False,
        )
        return [int(pid) for pid in found.stdout.split()]

    def during_trial(self, ordinal):
        """Return when this many trials have ended and the next has begun."""
        until(
            lambda: len(re.findall(r"^trial \d+ ", self.said, re.MULTILINE)) >= ordinal,
            lambda: self.said,
        )
        time.sleep(1)

    def check_nothing_is_lost(self, event):
        """Every trial was measured once, and nothing of the search is left on the cluster."""
        history = self.history
        ordinals = [trial.ordinal for trial in history]
        outcomes = Counter(type(trial.outcome).__name__ for trial in history)
        attempts = sum(trial.attempts for trial in history)
        print(
            f"\n{event}: {dict(outcomes)} of {TRIALS} trials in {attempts} attempts; "
            f"jobs left: {len(self.slurm.queue())}, agents left: {len(self.agents())}"
        )
        assert ordinals == list(range(TRIALS)), self.said
        assert all(isinstance(trial.outcome, Measured) for trial in history), self.said
        assert self.slurm.queue() == []
        assert self.agents() == []


def until(done, otherwise, limit_s=LIMIT_S):
    """Wait until something holds."""
    deadline_s = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < deadline_s, otherwise()
        time.sleep(0.1)


@pytest.fixture
def search(slurm, shared_folder):
    return Search(slurm, shared_folder)


def test_a_search_from_a_login_node_has_the_traces_of_all_ranks_of_both_nodes(search):
    status = search.finish(search.start())

    assert status == 0, search.said
    search.check_nothing_is_lost("slurm")
    check_traces(search)


def test_a_search_in_an_allocation_has_the_traces_of_all_ranks_of_both_nodes(slurm, shared_folder):
    search = Search(slurm, shared_folder, launcher="slurm-step")
    script = f"#!/bin/sh\nexec {' '.join(search.words)}\n"
    options = ["--parsable", "--nodes=2", "--exclusive", "--ntasks-per-node=2", "--time=30"]

    with_path = ["env", f"PATH={search.environment['PATH']}", "sbatch", *options]
    slurm.run(*with_path, f"--output={search.log}", stdin=script)
    until(lambda: not slurm.queue(), lambda: search.said)

    search.check_nothing_is_lost("slurm-step")
    check_traces(search)


def check_traces(search):
    """The first trial has a trace of each of the four ranks."""
    names = sorted(each.name for each in search.history[0].outcome.artifacts)
    traces = [name for name in names if "trace" in name]
    print(f"traces: {', '.join(traces)}")
    assert [name[: len("rank0")] for name in traces] == ["rank0", "rank1", "rank2", "rank3"], names


def test_searches_that_are_killed_and_resumed_lose_no_trial(search):
    chance, kills = random.Random(0), 0
    process = search.start()
    study = search.id
    while kills < 8 and process.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(1, 20))
        if process.poll() is None:
            process.kill()
            process.wait()
            kills += 1
            process = search.start(*search.resume())
    status = search.finish(process)

    print(f"\nstudy {study}: {kills} searches killed")
    assert status == 0, search.said
    search.check_nothing_is_lost(f"kill -9 of {kills} searches")


def test_an_interrupted_search_leaves_no_job(search):
    process = search.start()
    search.during_trial(1)

    process.send_signal(signal.SIGTERM)
    status = search.finish(process)

    assert status == EXIT_INTERRUPTED, search.said
    assert search.slurm.queue() == []
    assert search.finish(search.start(*search.resume())) == 0, search.said
    search.check_nothing_is_lost("SIGTERM of the search")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_launch_whose_agent_is_killed_is_repeated(search, number):
    process = search.start()
    search.during_trial(1)

    os.kill(random.choice(search.agents()), number)

    assert search.finish(process) == 0, search.said
    search.check_nothing_is_lost(f"{number.name} of an agent")


def test_a_launch_whose_job_is_cancelled_by_someone_is_repeated_in_another(search):
    process = search.start()
    search.during_trial(1)

    search.slurm.run("scancel", search.pilot())

    assert search.finish(process) == 0, search.said
    search.check_nothing_is_lost("scancel of the job")


def test_a_launch_whose_node_dies_is_repeated_once_there_is_a_node_again(search):
    process = search.start()
    search.during_trial(1)

    search.slurm.kill_node("n2")
    time.sleep(15)
    search.slurm.start_node("n2")

    assert search.finish(process) == 0, search.said
    search.check_nothing_is_lost("death of a node")


def test_a_search_waits_for_a_drained_node(search):
    search.slurm.run("scontrol", "update", "nodename=n2", "state=drain", "reason=test")
    process = search.start()
    until(search.slurm.queue, lambda: search.said)
    time.sleep(5)
    waiting = search.slurm.queue()

    search.slurm.run("scontrol", "update", "nodename=n2", "state=resume")

    print(f"\nwhile the node was drained: {waiting}")
    assert search.finish(process) == 0, search.said
    search.check_nothing_is_lost("a drained node")


def test_a_search_waits_while_the_queue_is_full(search):
    search.slurm.fill_queue()
    process = search.start()
    time.sleep(20)
    assert process.poll() is None, search.said

    search.slurm.run("scancel", "--name=other")

    assert search.finish(process) == 0, search.said
    search.check_nothing_is_lost("a full queue")


def test_a_restart_of_the_controller_disturbs_no_trial(search):
    process = search.start()
    search.during_trial(1)

    search.slurm.stop_controller()
    time.sleep(15)
    search.slurm.start_controller()

    assert search.finish(process) == 0, search.said
    search.check_nothing_is_lost("a restart of slurmctld")


def test_the_overhead_of_a_launch_over_the_local_one_is_printed(search, shared_folder):
    def launches_s(launcher, folder):
        folder.mkdir()
        one = Search(search.slurm, folder, launcher=launcher)
        assert one.finish(one.start()) == 0, one.said
        return [
            trial.outcome.measurement.wall_s
            for trial in one.history
            if isinstance(trial.outcome, Measured)
        ]

    for launcher in ("local", "slurm"):
        seconds = launches_s(launcher, shared_folder / launcher)
        print(f"\n{launcher}: {json.dumps(seconds)}")
