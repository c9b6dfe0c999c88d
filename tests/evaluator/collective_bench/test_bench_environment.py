"""What a benchmark's machine tells of itself, and what it keeps to itself."""

import subprocess

import pytest

from evaluator.machine import this_machine

ID = "0123456789abcdef" * 4


@pytest.fixture
def root(tmp_path):
    """A file system whose /proc and /sys are empty, and what fills it."""

    def fill(**files):
        for path, text in files.items():
            target = tmp_path / "root" / path.replace("__", "/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        return tmp_path / "root"

    return fill


def test_a_machine_that_tells_nothing_has_no_facts(root, tmp_path):
    found = this_machine(tmp_path, root())

    assert (found.cpu_model, found.governor, found.container) == (None, None, None)
    assert (found.network_interfaces, found.commit) == ((), None)
    assert found.host
    assert found.core_count >= 1


def test_a_machine_is_described_by_its_files(root, tmp_path):
    found = this_machine(
        tmp_path,
        root(
            proc__cpuinfo="processor : 0\nmodel name : Fast CPU\n",
            sys__devices__system__cpu__cpu0__cpufreq__scaling_governor="powersave\n",
            sys__devices__system__cpu__cpu1__cpufreq__scaling_governor="performance\n",
            sys__class__net__eth0__operstate="up\n",
            sys__class__net__lo__operstate="unknown\n",
            sys__class__net__eth1__operstate="down\n",
            proc__self__cgroup=f"0::/system.slice/docker-{ID}.scope\n",
        ),
    )

    assert found.cpu_model == "Fast CPU"
    assert found.governor == "performance, powersave"
    assert found.network_interfaces == ("eth0", "lo")
    assert found.container == ID


def test_a_container_without_an_id_has_its_kind(root, tmp_path):
    (root(proc__self__cgroup="0::/\n") / ".dockerenv").touch()

    assert this_machine(tmp_path, tmp_path / "root").container == "docker"


def test_the_commit_is_that_of_the_working_tree(tmp_path):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.example"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert this_machine(tmp_path).commit is None
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)

    told = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    assert this_machine(tmp_path).commit == told.stdout.strip()
