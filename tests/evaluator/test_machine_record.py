"""What goes on record of a machine, a working tree and a launch."""

import subprocess
import sys
from dataclasses import replace

import pytest

from evaluator.evaluate import Site, TrialEvaluator
from evaluator.launchers.interleaved import VISIBLE_DEVICES, DeviceSlots
from evaluator.machine import checkout, describe_machine
from evaluator.ports import Job, JobResult, RankExit
from records.codec import from_json, to_json
from records.machine import Gpu, Machine
from records.study import digest
from records.trial import Config
from tests.support import records as testing

THREADS = {"OMP_NUM_THREADS": "2"}


@pytest.fixture
def tree(tmp_path):
    """A working tree with one committed file."""
    (tmp_path / "train.py").write_text("lr = 1\n", encoding="utf-8")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "first")
    return tmp_path


def git(folder, *words):
    subprocess.run(["git", "-C", folder, *words], check=True, capture_output=True)


def test_a_tree_without_changes_is_its_commit(tree):
    found = checkout(tree)

    assert (len(found.commit), found.is_changed, found.changes) == (40, False, None)


def test_every_change_of_a_tree_has_another_digest(tree):
    index = (tree / ".git" / "index").read_bytes()
    (tree / "train.py").write_text("lr = 2\n", encoding="utf-8")
    edited = checkout(tree)
    (tree / "train.py").write_text("lr = 3\n", encoding="utf-8")
    again = checkout(tree)
    (tree / "new.py").touch()
    added = checkout(tree)

    assert edited.is_changed
    assert len({edited.changes, again.changes, added.changes}) == 3
    assert (tree / ".git" / "index").read_bytes() == index


def test_a_tree_s_own_programs_do_not_run_when_it_is_looked_at(tree):
    (tree / ".gitattributes").write_text("*.py diff=evil\n", encoding="utf-8")
    git(tree, "config", "diff.evil.command", f"touch {tree}/ran")
    git(tree, "config", "diff.evil.textconv", f"touch {tree}/ran; cat")
    git(tree, "config", "core.fsmonitor", f"touch {tree}/ran")
    (tree / "train.py").write_text("lr = 2\n", encoding="utf-8")

    assert checkout(tree).is_changed
    assert not (tree / "ran").exists()


def test_outside_of_a_tree_and_without_git_there_is_no_commit(tmp_path, monkeypatch):
    assert checkout(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checkout(tmp_path) is None


def test_a_machine_is_described_without_what_is_nobody_s_business(tmp_path):
    seen = {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4", "USER": "alice", "MAIL": "a@b"}

    found = describe_machine(tmp_path, seen, "pytorch:2.13", tmp_path)

    assert found.environment == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4"}
    assert (found.image, found.script, found.cpu_model, found.memory_bytes) == (
        *("pytorch:2.13", None, None, None),
    )
    assert found.packages["torch"] == found.software["torch"]
    assert "hypothesis" in found.packages
    assert "hypothesis" not in found.software
    assert found.python.endswith(f"{sys.version_info.major}.{sys.version_info.minor}."
                                 f"{sys.version_info.micro}")  # fmt: skip


def test_hardware_is_read_from_the_system_s_files(tmp_path):
    for path, text in {
        "proc/cpuinfo": "model name : Fast CPU\n",
        "proc/meminfo": "MemTotal:  2048 kB\nMemFree: 1 kB\n",
        "sys/devices/system/node/node0/x": "",
        "sys/devices/system/node/node1/x": "",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")

    found = describe_machine(tmp_path, {}, None, tmp_path)

    assert (found.cpu_model, found.memory_bytes, found.numa_node_count) == ("Fast CPU", 2 << 20, 2)


def test_gpus_are_described_as_their_driver_tells(tmp_path, monkeypatch):
    monkeypatch.delenv(VISIBLE_DEVICES, raising=False)
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\necho 'NVIDIA H100, 81559, GPU-0a-1, 570.86.15, 700.00'\n"
        "echo 'NVIDIA GB10, [N/A], GPU-0b-1, 580.1, [N/A]'\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    found = describe_machine(tmp_path, {}, None, tmp_path)

    assert found.gpus == (
        Gpu(name="NVIDIA H100", memory_bytes=81559 << 20, driver="570.86.15", power_limit_w=700),
        Gpu(name="NVIDIA GB10", memory_bytes=None, driver="580.1", power_limit_w=None),
    )


def test_a_description_is_named_by_what_it_says(tmp_path):
    machine = describe_machine(tmp_path, {}, None, tmp_path)

    assert machine.digest == digest(to_json(machine))
    assert from_json(Machine, to_json(machine)).digest == machine.digest
    assert replace(machine, host="another").digest != machine.digest


class OneRank:
    """A recipe of a job with a file and a folder."""

    def job(self, study, config):  # noqa: ARG002 - the port
        return Job(
            argv=("train", "job.json"),
            world_size=1,
            files={"job.json": "{}"},
            folders={"TRACE_DIR": "trace"},
            environment={"DP": "1"},
            timeout_s=9,
        )


class Failing:
    """A launcher under which a rank fails."""

    def run(self, job, workdir, on_phase):  # noqa: ARG002 - the port
        (workdir / "rank0.log").write_text("ValueError: no\n", encoding="utf-8")
        rank = RankExit(rank=0, status=3, signal=None, ended_ns=1)
        ended = JobResult(workdir=workdir, reason="rank_failed", ranks=(rank,), wall_s=2.0)
        return replace(ended, environment=THREADS)


def test_a_launch_is_on_record_with_where_it_was_and_how_it_ended(tmp_path):
    site = Site(job_id="slurm 7", machine=lambda: "digest")
    slots = DeviceSlots(devices=("GPU-0a",))
    evaluator = TrialEvaluator(OneRank(), Failing(), print, slots=slots, site=site)

    launched = evaluator.evaluate(testing.study(), Config({"n": 0}), tmp_path).launched

    assert launched.argv == ("train", "job.json")
    assert launched.environment == {**THREADS, "DP": "1", VISIBLE_DEVICES: "GPU-0a"}
    assert (launched.files, launched.folders) == (("job.json",), {"TRACE_DIR": "trace"})
    assert (launched.job_id, launched.machine, launched.devices) == (
        "slurm 7",
        "digest",
        ("GPU-0a",),
    )
    assert (launched.reason, launched.wall_s, len(launched.hosts)) == ("rank_failed", 2.0, 1)
    (end,) = launched.ranks
    assert (end.status, end.first_error) == (3, "ValueError: no")
