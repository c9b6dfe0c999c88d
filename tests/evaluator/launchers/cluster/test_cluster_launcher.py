"""Jobs on two nodes, which are two agents on this machine: whole, failing, hanging, killed."""

import io
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
from contextlib import closing
from dataclasses import fields, replace

import numpy as np
import psutil
import pytest

from evaluator.failures.classify import classify
from evaluator.launchers.cluster.allocation import Allocation
from evaluator.launchers.cluster.launcher import ClusterLauncher, unpack
from evaluator.launchers.cluster.nodes import Nodes
from evaluator.launchers.cluster.schedulers.ssh import Ssh
from evaluator.ports import Job
from evaluator.recipes.builtin import BuiltinRecipe
from evaluator.traces.analysis.breakdown import job_split
from evaluator.traces.readers.read import read_folder
from records.study import Cluster
from records.trial import Config, FailureKind
from tests.evaluator.conftest import MODULES, Launched, small_study
from tests.support.cluster import FakeScheduler, start_agents
from tests.support.traces import SYNTHETIC, read

LIMIT_S = 60
HERE = ("local", "local")
NODES = Nodes(count=2, ranks_per_node=1)


@pytest.fixture(scope="module")
def two_nodes(launch_environment, tmp_path_factory):
    """A launcher over two nodes that stays warm over these tests."""
    cluster = Cluster(hosts=HERE)
    scheduler = Ssh(cluster, {"PATH": launch_environment["PATH"]})
    root = tmp_path_factory.mktemp("shared")
    with closing(Allocation(scheduler, cluster, NODES, study_id="tests", root=root)) as nodes:
        yield ClusterLauncher(nodes, launch_environment, threads_per_rank=1)


@pytest.fixture
def launch(two_nodes, job_of, tmp_path):
    """Launches a good job of two ranks, or one in which a rank does `what` in a step."""

    def run(what=None, *, rank=1, step=2, **more):
        job = job_of("misbehave" if what else "good", what=what, rank=rank, step=step, **more)
        modules = () if more.get("cold") else MODULES
        return Launched.by(two_nodes, replace(job, modules=modules), tmp_path)

    return run


@pytest.fixture
def command(two_nodes, tmp_path):
    """Launches a shell script as the command of a job of two ranks, one on each node."""

    def run(script, **environment):
        argv = ("sh", "-c", script)
        job = Job(argv=argv, world_size=2, files={}, timeout_s=60, environment=environment)
        return Launched.by(two_nodes, job, tmp_path)

    return run


def ended(processes):
    _, alive = psutil.wait_procs(processes, timeout=LIMIT_S)
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def test_ranks_of_two_nodes_train_together_and_leave_all_their_traces(two_nodes, tmp_path):
    job = BuiltinRecipe().job(small_study(), Config({"dp_replicate": 2, "micro_batch": 1}))

    launched = Launched.by(two_nodes, replace(job, modules=MODULES), tmp_path)

    assert len(launched.steps()) == 2
    assert launched.losses()
    assert launched.result.hosts == ("local0", "local1")
    assert launched.result.job_id == "cclsearch-tests-1"
    assert {rank for rank in (0, 1) if launched.counts(rank)["gloo:all_reduce"]} == {0, 1}
    assert launched.phases[-4:] == ["warmup", "timed", "profile", "done"]


def test_a_job_that_fits_on_one_node_takes_the_first(two_nodes, tmp_path):
    job = Job(argv=("sh", "-c", "true"), world_size=1, files={}, timeout_s=60)

    assert Launched.by(two_nodes, job, tmp_path).result.hosts == ("local0",)


def test_a_job_runs_on_the_nodes_that_it_is_confined_to(two_nodes, tmp_path):
    job = Job(argv=("sh", "-c", "true"), world_size=1, files={}, timeout_s=60, nodes=(1,))

    assert Launched.by(two_nodes, job, tmp_path).result.hosts == ("local1",)


def test_a_command_is_told_its_node_as_torchrun_reads_it(command):
    script = (
        "echo $PET_NNODES $PET_NPROC_PER_NODE $PET_MASTER_ADDR:$PET_MASTER_PORT"
        " > node$PET_NODE_RANK.txt"
    )

    launched = command(script)

    first, second = ((launched.folder / f"node{n}.txt").read_text() for n in (0, 1))
    assert first == second
    assert first.split()[:2] == ["2", "1"]


def test_the_cause_is_found_in_the_log_of_the_node_that_failed(command):
    script = "[ $NODE_RANK = 0 ] && exec sleep 60; echo ValueError: no such layer >&2; exit 3"

    launched = command(script)

    failed = classify(launched.result)
    assert failed.kind is FailureKind.CRASH
    assert "no such layer" in failed.message
    assert (launched.folder / "job1.log").is_file()


def test_a_rank_that_fails_ends_those_of_the_other_node(launch):
    launched = launch("fail")

    failed = classify(launched.result)
    assert failed.kind is FailureKind.CRASH
    assert failed.message.startswith("rank 1")


def test_a_hang_is_judged_over_all_nodes_and_has_the_stacks_of_all_ranks(launch):
    launched = launch("sleep", hang_after_s=1.5)

    assert classify(launched.result).kind is FailureKind.HANG
    stacks = sorted(path.name for path in launched.folder.glob("rank*.stacks.txt"))
    assert stacks == ["rank0.stacks.txt", "rank1.stacks.txt"]


def test_the_time_limit_of_a_launch_begins_when_its_ranks_run(two_nodes, tmp_path):
    job = Job(argv=("sh", "-c", "sleep 60"), world_size=2, files={}, timeout_s=1)

    launched = Launched.by(two_nodes, job, tmp_path)

    assert launched.result.reason == "timeout"
    assert launched.result.wall_s < 30


def test_files_of_a_place_that_is_not_shared_are_put_there(two_nodes, tmp_path):
    job = Job(
        argv=("sh", "-c", "cp given.txt $OUT/kept.txt"),
        world_size=1,
        files={"given.txt": "hello"},
        folders={"OUT": "out"},
        timeout_s=60,
        environment={"OUT": str(tmp_path / "0" / "out")},
    )
    (tmp_path / "0" / "out").mkdir(parents=True)

    two_nodes.run(job, tmp_path / "0", print)

    assert (tmp_path / "0" / "out" / "kept.txt").read_text() == "hello"


def test_files_come_over_the_connection_where_nothing_is_shared(tmp_path):
    node, workdir, root = (tmp_path / name for name in ("node", "work", "root"))
    for folder in (node, workdir, workdir / "out"):
        folder.mkdir()
    agents = []
    scheduler = FakeScheduler(
        lambda request: agents.extend(start_agents(request, node)), carries_files=True
    )
    nodes = Nodes(count=2, ranks_per_node=1)
    cluster = Cluster(python=sys.executable)
    script = "cat given.txt > $OUT/of$NODE_RANK.txt; ln -s /etc/passwd $OUT/link$NODE_RANK"
    job = Job(
        argv=("sh", "-c", script),
        world_size=2,
        files={"given.txt": "hello"},
        folders={"OUT": "out"},
        timeout_s=60,
        environment={"OUT": str(workdir / "out")},
    )

    with closing(Allocation(scheduler, cluster, nodes, study_id="far", root=root)) as far:
        launcher = ClusterLauncher(far, {"PATH": os.defpath}, threads_per_rank=1)
        result = launcher.run(job, workdir, print)

    assert result.reason == "finished"
    found = {path.name: path.read_text() for path in (workdir / "out").iterdir()}
    assert found == {"of0.txt": "hello", "of1.txt": "hello"}
    assert [agent.wait(LIMIT_S) for agent in agents] == [0, 0]


def reducing(tmp_path, *damage):
    """Launch on two nodes what leaves the traces of four ranks; return the folder of the traces."""
    node, workdir = tmp_path / "node", tmp_path / "work"
    for folder in (node, workdir / "traces"):
        folder.mkdir(parents=True)
    agents = []
    scheduler = FakeScheduler(
        lambda request: agents.extend(start_agents(request, node)), carries_files=True
    )
    cluster = Cluster(python=sys.executable, whole_traces=1)
    nodes = Nodes(count=2, ranks_per_node=2)
    first = "$((NODE_RANK * 2))"
    copy = (
        f"cd $OUT; for r in {first} $(({first} + 1)); do cp {SYNTHETIC}/rank${{r}}_trace* .; done"
    )
    job = Job(
        argv=("sh", "-c", "; ".join([copy, *damage])),
        world_size=4,
        files={},
        folders={"OUT": "traces"},
        traces=("traces/rank*_trace.json.gz",),
        timeout_s=60,
        environment={"OUT": str(workdir / "traces")},
    )
    with closing(Allocation(scheduler, cluster, nodes, study_id="r", root=tmp_path)) as far:
        result = ClusterLauncher(far, {"PATH": os.defpath}, 1).run(job, workdir, print)
    assert result.reason == "finished"
    assert [agent.wait(LIMIT_S) for agent in agents] == [0, 0]
    return workdir / "traces"


def parts_of(traces):
    """Where the time of each step of each rank went, to the nanosecond."""
    rows = job_split(traces).parts
    return [[np.ravel(getattr(row, each.name)).tolist() for each in fields(row)] for row in rows]


def test_nodes_reduce_the_traces_of_most_ranks_to_what_the_whole_ones_say(tmp_path):
    folder = reducing(tmp_path)

    traces = read_folder(folder, use_cache=False)
    assert sorted(path.name for path in folder.iterdir()) == [
        "node0.columns",
        "node1.columns",
        "rank0_trace.json.gz",
    ]
    assert [trace.reduced for trace in traces.ranks] == [False, True, True, True]
    assert parts_of(traces) == parts_of(read(SYNTHETIC))


def test_a_trace_that_no_node_can_reduce_comes_back_as_it_is(tmp_path):
    cut = "[ $NODE_RANK = 0 ] || truncate -s 1000 rank2_trace.json.gz"
    led_away = "[ $NODE_RANK = 0 ] || ln -sf /etc/passwd rank3_trace.json.gz"

    folder = reducing(tmp_path, cut, led_away)

    assert sorted(path.name for path in folder.iterdir()) == [
        "node0.columns",
        "rank0_trace.json.gz",
        "rank2_trace.json.gz",
    ]
    assert (folder / "rank2_trace.json.gz").stat().st_size == 1000


def test_traces_stay_whole_where_nodes_cannot_reduce_them(tmp_path, monkeypatch):
    monkeypatch.setattr("evaluator.launchers.cluster.launcher.REDUCTION", "not_installed_there")

    folder = reducing(tmp_path)

    assert len([*folder.glob("rank*_trace.json.gz")]) == 4


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="there is no IPv6 here")
def test_nodes_that_came_by_ipv6_meet_there_over_the_same_network(tmp_path):
    cluster = Cluster(hosts=HERE, search_host="[::1]")
    scheduler = Ssh(cluster, {"PATH": os.defpath})
    script = "echo $MASTER_ADDR $GLOO_SOCKET_IFNAME > node$NODE_RANK"
    job = Job(argv=("sh", "-c", script), world_size=2, files={}, timeout_s=60)

    with closing(Allocation(scheduler, cluster, NODES, study_id="v6", root=tmp_path)) as nodes:
        launched = Launched.by(ClusterLauncher(nodes, {}, 1), job, tmp_path)

    assert [(launched.folder / f"node{n}").read_text() for n in (0, 1)] == ["::1 lo\n"] * 2


@pytest.mark.slow
def test_a_killed_agent_leaves_no_process_and_the_next_launch_has_new_nodes(
    launch, two_nodes, job_of, tmp_path
):
    launch()  # the agents are there
    below = psutil.Process().children(recursive=True)
    before = [process for process in below if "--end-with-stdin" in process.cmdline()]
    victims = [*before, *(child for p in before for child in p.children(recursive=True))]

    def kill(phase):
        if phase == "timed":
            before[-1].kill()

    folder = tmp_path / "killed"
    folder.mkdir()
    result = two_nodes.run(replace(job_of("slow"), modules=MODULES), folder, kill)

    failed = classify(result)
    assert failed.kind is FailureKind.NODE_FAILED
    assert "local" in failed.message
    assert ended(victims)
    assert len(launch().steps()) == 2


HOLD_A_SEARCH = """
import sys
from pathlib import Path
from evaluator.launchers.cluster.allocation import Allocation
from evaluator.launchers.cluster.launcher import ClusterLauncher
from evaluator.launchers.cluster.nodes import Nodes
from evaluator.launchers.cluster.schedulers.ssh import Ssh
from evaluator.ports import Job
from records.study import Cluster

folder, path = Path(sys.argv[1]), sys.argv[2]
cluster = Cluster(hosts=("local", "local"))
nodes = Nodes(count=2, ranks_per_node=1)
allocation = Allocation(Ssh(cluster, {"PATH": path}), cluster, nodes, study_id="s", root=folder)
launcher = ClusterLauncher(allocation, {"PATH": path}, 1)
job = Job(argv=("sh", "-c", "sleep 600 & echo $! $$ > pids$NODE_RANK; exec sleep 600"),
          world_size=2, files={}, timeout_s=600)
(folder / "work").mkdir()
launcher.run(job, folder / "work", print)
"""


def test_a_killed_search_leaves_no_process_on_any_node(launch_environment, tmp_path):
    asked = [sys.executable, "-c", HOLD_A_SEARCH, str(tmp_path), launch_environment["PATH"]]
    search = psutil.Popen(asked, stdout=subprocess.DEVNULL)
    deadline_s = time.monotonic() + LIMIT_S
    pids = []
    while len(pids) < 4 and time.monotonic() < deadline_s:
        time.sleep(0.05)
        pids = [pid for path in tmp_path.glob("work/pids*") for pid in path.read_text().split()]
    below = search.children(recursive=True)

    search.send_signal(signal.SIGKILL)
    search.wait()

    assert len({str(process.pid) for process in below} & {*pids}) == 4
    assert ended(below)


def test_files_of_a_node_stay_in_the_folder_of_the_job(tmp_path):
    folder, sent = tmp_path / "job", io.BytesIO()
    folder.mkdir()
    (folder / "way").symlink_to(tmp_path)
    outside = ("../up", str(tmp_path / "absolute"), "way/through")
    names = (*outside, "nul\0b", "log", "log/in", "a/trace")
    with tarfile.open(fileobj=sent, mode="w", format=tarfile.PAX_FORMAT) as tar:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 2
            tar.addfile(member, io.BytesIO(b"ok"))

    unpack(sent, folder)

    assert [path.name for path in tmp_path.iterdir()] == ["job"]
    assert not (folder / "link").exists()
    assert (folder / "log").read_bytes() == (folder / "a/trace").read_bytes() == b"ok"
