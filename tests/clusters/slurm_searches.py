"""Whole searches by `slurm`, `slurm-step` and `psij` on two nodes, and all that may go wrong there.

Each test records what it counted, for the table at the end.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from records.trial import Measured
from tests.clusters.whole_search import TRIALS, WholeSearch

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "cluster_launch.py"
LAUNCHERS = ("slurm", "slurm-step", "psij")
KILLS = 6
ALL_NODES = ("--exclusive", "--nodes=2", "--output=/dev/null")
FROM_A_LOGIN_NODE = ("slurm", "psij")
EXIT_INTERRUPTED = 75
EXITS_OF_BAD_INPUT = (2, 4)

SLURMS = ("plain",)
"""Most need no Slurm that keeps accounts; those that may differ there run with it too."""


def with_slurm(*kinds):
    """Run with these kinds of Slurm."""
    return pytest.mark.parametrize("running_slurm", kinds, indirect=True, scope="session")


def by(*launchers):
    """Search by these launchers instead of by all of them."""
    return pytest.mark.parametrize("search", launchers, indirect=True)


class Search(WholeSearch):
    """A search on a login node, in a folder that nodes share; by `slurm-step` in an allocation."""

    def __init__(self, slurm, folder, launcher, record):
        super().__init__(folder, launcher, record)
        self.ask()
        self.slurm, self.process, self.allocation = slurm, None, None
        if launcher == "slurm-step":
            options = ["--no-shell", "--exclusive", "--nodes=2", "--time=60"]
            self.allocation = re.search(r"\d+", slurm.run("salloc", *options)).group()

    def ask(self, *, steps=5, **cluster):
        """Write the study file anew, with these settings of `[cluster]`."""
        self.write(steps=steps, **{**_cluster(self.folder, self.launcher), **cluster})

    @property
    def environment(self):
        """That of a login node; by `slurm-step` that of the allocation."""
        return {
            **self.slurm.environment,
            "PATH": f"{Path(sys.executable).parent}:{self.slurm.environment['PATH']}",
            "HOME": str(self.folder),
            **({} if self.allocation is None else {"SLURM_JOB_ID": self.allocation}),
        }

    def start(self, *words):
        """Start the search, or go on with it."""
        self.process = super().start(*words)
        return self.process

    def agents_job(self):
        """The id of the running job or step that the agents are in."""
        steps = [] if self.allocation is None else ["--steps"]
        rows = ["squeue", "--noheader", *steps, "--format=%i"]
        self.until(lambda: self.slurm.run(*rows).split())
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

    def check_nothing_is_lost(self, event):
        """Every trial was measured once, and nothing of the search is left on the cluster."""
        history = self.history
        self.check_nothing_is_left(event, history)
        assert [trial.ordinal for trial in history] == list(range(TRIALS)), self.said
        assert all(isinstance(trial.outcome, Measured) for trial in history), self.said

    def check_nothing_is_left(self, event, history=()):
        """No job, step or process of the search is on the cluster."""
        with suppress(AssertionError):  # Slurm's own processes end a moment after their job
            self.until(lambda: not self.slurm.processes(), limit_s=10)
        allocated = [] if self.allocation is None else [self.allocation]
        jobs = [row for row in self.slurm.queue() if row.split()[0] not in allocated]
        steps = self.slurm.run("squeue", "--noheader", "--steps", "--format=%i %j").splitlines()
        lost = Counter(kind for trial in history for kind in trial.lost_launches)
        processes = self.slurm.processes()
        self._record(
            "counted",
            {
                "launcher": self.launcher,
                "accounts": "yes" if self.slurm.accounting else "no",
                "event": event,
                "trials kept": sum(isinstance(trial.outcome, Measured) for trial in history),
                "launches": sum(trial.attempts for trial in history),
                "lost": ", ".join(f"{count} {kind}" for kind, count in lost.items()) or "none",
                "jobs left": len(jobs) + len(steps),
                "processes left": len(processes),
                "seconds": round(time.monotonic() - self._begun_s),
            },
        )
        assert (jobs, steps, processes) == ([], [], []), self.said

    def refused(self, words):
        """Run a search that cannot start; it says so in one line, before anything is launched."""
        status = self.finish(self.start())
        said = [line for line in self.said.splitlines() if line.startswith("error: ")]
        assert status in EXITS_OF_BAD_INPUT, self.said
        assert len(said) == 1, self.said
        assert words in said[0], self.said
        self.check_nothing_is_left(f"refused: {words}")


def _cluster(folder, launcher):
    return {"shared_dir": str(folder)} | ({"executor": "slurm"} if launcher == "psij" else {})


@pytest.fixture(params=LAUNCHERS)
def search(request, slurm, shared_folder, record_property):
    """A search that has not started; by `slurm-step` with its allocation."""
    if request.param == "psij":
        pytest.importorskip("psij", reason="needs: pip install 'cclsearch[psij]'")
    made = Search(slurm, shared_folder, request.param, record_property)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()  # the test failed before it had ended
    if made.allocation is not None:
        slurm.run("scancel", made.allocation)
        made.until(lambda: not slurm.queue())


@contextmanager
def nodes_in_use(slurm):
    """Hold all nodes by a job of somebody else."""
    other = slurm.run("sbatch", "--parsable", *ALL_NODES, "--wrap=sleep 1000")
    try:
        yield
    finally:
        slurm.run("scancel", other.strip())


@with_slurm("plain", "accounting")
def test_a_search_has_the_traces_of_all_ranks_of_both_nodes(search):
    status = search.finish(search.start())

    assert status == 0, search.said
    traces = traces_of_first_trial(search)
    search.check_nothing_is_lost(f"none; traces of {', '.join(traces)}")
    assert traces == ["rank0", "rank1", "rank2", "rank3"]


def traces_of_first_trial(search):
    """The ranks that left a trace, two on each node."""
    names = sorted(each.name for each in search.history[0].outcome.artifacts)
    return [name.partition("_")[0] for name in names if "trace" in name]


@by("slurm-step")
def test_a_job_that_is_requeued_continues_its_study(search):
    slurm = search.slurm
    slurm.run("scancel", search.allocation)
    script = f"#!/bin/sh\nexec {' '.join(search.command())}\n"
    options = ["--parsable", "--nodes=2", "--exclusive", "--ntasks-per-node=2", "--time=30"]
    more = ["--requeue", "--open-mode=append", f"--output={search.log}"]
    with_path = ["env", f"PATH={search.environment['PATH']}", "sbatch", *options, *more]
    job = slurm.run(*with_path, stdin=script).strip()
    search.during_trial(1)

    slurm.run("scontrol", "requeue", job)

    search.until(lambda: not slurm.queue())
    search.allocation = None
    search.check_nothing_is_lost("scontrol requeue of the job with the search")
    assert len(set(re.findall(r"^study (\S+):", search.said, re.MULTILINE))) == 1


def test_searches_that_are_killed_and_resumed_lose_no_trial(search):
    chance, kills = random.Random(0), 0
    process = search.start()
    assert search.id
    while kills < KILLS and process.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(1, 15))
        if process.poll() is None:
            process.kill()
            process.wait()
            kills += 1
            process = search.resume()
    status = search.finish(process)

    assert status == 0, search.said
    search.check_nothing_is_lost(f"kill -9 of {kills} searches")


def test_an_interrupted_search_leaves_no_job(search):
    process = search.start()
    search.during_trial(1)

    process.send_signal(signal.SIGTERM)
    status = search.finish(process)

    assert status == EXIT_INTERRUPTED, search.said
    search.check_nothing_is_left("SIGTERM of the search, before it is resumed")
    assert search.finish(search.resume()) == 0, search.said
    search.check_nothing_is_lost("SIGTERM of the search, resumed")


def test_a_launch_whose_agent_is_killed_is_repeated(search):
    process = search.start()
    search.during_trial(1)

    os.kill(random.choice(search.agents()), signal.SIGKILL)

    assert search.finish(process) == 0, search.said
    search.check_nothing_is_lost("kill -9 of an agent")


@by("slurm")
def test_a_launch_whose_agent_is_told_to_end_is_repeated(search):
    process = search.start()
    search.during_trial(1)

    os.kill(random.choice(search.agents()), signal.SIGTERM)

    assert search.finish(process) == 0, search.said
    search.check_nothing_is_lost("SIGTERM of an agent")


@with_slurm("plain", "accounting")
def test_a_launch_whose_job_is_cancelled_by_someone_is_repeated(search):
    process = search.start()
    search.during_trial(1)

    search.slurm.run("scancel", search.agents_job())

    assert search.finish(process) == 0, search.said
    search.check_nothing_is_lost("scancel of the agents' job or step")


@with_slurm("plain", "accounting")
@by("slurm")
def test_a_launch_whose_job_gives_way_to_another_is_repeated(search):
    process = search.start()
    search.during_trial(1)

    search.slurm.run("sbatch", *ALL_NODES, "--partition=urgent", "--wrap=sleep 5")

    assert search.finish(process) == 0, search.said
    search.check_nothing_is_lost("preemption by an urgent job")
    assert "preempted" in {kind for trial in search.history for kind in trial.lost_launches}


@by("slurm")
def test_a_launch_whose_node_dies_is_repeated_once_there_is_a_node_again(search):
    process = search.start()
    search.during_trial(1)

    search.slurm.kill_node("n2")
    time.sleep(15)
    search.slurm.start_node("n2")

    assert search.finish(process) == 0, search.said
    search.check_nothing_is_lost("death of a node")


@by(*FROM_A_LOGIN_NODE)
def test_a_search_waits_for_a_drained_node(search):
    search.slurm.run("scontrol", "update", "nodename=n2", "state=drain", "reason=test")
    process = search.start()
    search.until(search.slurm.queue)
    time.sleep(5)
    (waiting,) = search.slurm.queue()

    search.slurm.run("scontrol", "update", "nodename=n2", "state=resume")

    assert search.finish(process) == 0, search.said
    search.check_nothing_is_lost(f"a drained node ({waiting.partition(' ')[2]})")


@by("slurm")
def test_a_search_waits_while_no_job_is_accepted(search):
    search.slurm.fill_queue()
    process = search.start()
    time.sleep(20)
    assert process.poll() is None, search.said

    search.slurm.run("scancel", "--name=other")

    assert search.finish(process) == 0, search.said
    search.check_nothing_is_lost("a queue that accepts no job for 20 s")


@by(*FROM_A_LOGIN_NODE)
def test_a_search_waits_for_nodes_in_use_that_are_free_in_time(search):
    with nodes_in_use(search.slurm):
        process = search.start()
        search.until(lambda: len(search.slurm.queue()) == 2)
        time.sleep(5)

    assert search.finish(process) == 0, search.said
    search.check_nothing_is_lost("all nodes in use, free in time")


@by(*FROM_A_LOGIN_NODE)
def test_nodes_in_use_for_longer_than_the_queue_limit_are_no_fault_of_a_trial(search):
    search.ask(queue_limit_s=4.0)
    with nodes_in_use(search.slurm):
        search.finish(search.start())
        (trial,) = search.history
        assert trial.outcome.kind == "not_scheduled", search.said
        assert "after 4 s in the queue" in trial.outcome.message
        lost = 1 + len(trial.lost_launches)
        assert f"lost launches: {lost} not_scheduled" in search.said
        search.slurm.run("scancel", "--name=wrap")
        search.slurm.wait_until_idle()
    search.check_nothing_is_left("all nodes in use beyond the queue limit", [trial])


@by(*FROM_A_LOGIN_NODE)
def test_a_restart_of_the_controller_disturbs_no_trial(search):
    process = search.start()
    search.during_trial(1)

    search.slurm.stop_controller()
    time.sleep(15)
    search.slurm.start_controller()

    assert search.finish(process) == 0, search.said
    search.check_nothing_is_lost("a restart of slurmctld")


@by(*FROM_A_LOGIN_NODE)
def test_an_unknown_partition_is_refused_in_the_words_of_slurm(search):
    search.ask(partition="nowhere")

    search.refused("invalid partition specified: nowhere")


@with_slurm("accounting")
@by(*FROM_A_LOGIN_NODE)
def test_an_unknown_account_is_refused_in_the_words_of_slurm(search):
    search.ask(account="nobody")

    search.refused("Invalid account or account/partition combination specified")


@by("slurm")
def test_more_nodes_than_exist_are_refused_in_the_words_of_slurm(search):
    search.ask(nodes=5)

    search.refused("PartitionConfig")


@by("slurm-step")
def test_more_nodes_than_the_allocation_has_are_refused_in_the_words_of_slurm(search):
    search.ask(nodes=5)

    search.refused("Only allocated 2 nodes asked for 5")


@by(*FROM_A_LOGIN_NODE)
def test_a_folder_that_the_nodes_do_not_share_is_refused(search):
    search.ask(shared_dir="/dev/shm/of-the-login-node")

    search.refused("check that the nodes see /dev/shm/of-the-login-node")


@by(*FROM_A_LOGIN_NODE)
def test_an_allocation_in_which_no_trial_has_time_is_refused_before_it_is_asked_for(search):
    search.ask(time_limit_s=20.0)

    search.refused("the allocation ends in 20 s, too soon for one trial")


@by("slurm")
def test_an_allocation_that_ends_sooner_than_one_trial_takes_says_so(search):
    search.ask(time_limit_s=60.0, steps=1_000_000)

    search.refused("the allocation ends sooner than one trial takes: trial 0 was ended after")


@by("slurm-step")
def test_the_overhead_of_a_launch_over_the_local_one_is_printed(search, record_property):
    printed = subprocess.run(
        [sys.executable, BENCHMARK, "--rounds", "6", "--shared-dir", search.folder],
        env=search.environment,
        capture_output=True,
        text=True,
        check=False,
    )

    record_property("printed", printed.stdout)
    assert printed.returncode == 0, printed.stderr
    search.check_nothing_is_left("launches in pairs with local ones")
