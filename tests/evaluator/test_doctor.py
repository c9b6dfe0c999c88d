"""Probes of the machine say what is there, and what to do about what is not."""

import json
import platform
from types import SimpleNamespace

import psutil
import pytest

from evaluator import doctor
from evaluator.doctor import (
    MeasuredLaunch,
    State,
    check_launches,
    check_noise,
    launch_repeatedly,
    smallest_difference,
)
from evaluator.job_python import JobPython
from evaluator.machine import MpiLibrary
from records.trial import Config, FailureKind
from tests.evaluator.conftest import conditions
from tests.support.evaluator import Fails, InTurn, TabularEvaluator, Takes

CONFIG = Config({"dp_replicate": 2})


BUSY = conditions(others_cpu_share=0.5)
TOPOLOGY = """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity
GPU0\t X \t{0}\tSYS\t0-31
GPU1\t{0}\t X \tSYS\t0-31
NIC0\tSYS\tSYS\t X
"""


def write(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def printing(driver, tmp_path):
    """Lets the driver's tool print a text."""

    def print_text(text):
        (tmp_path / "text").write_text(text)
        driver(f'while read -r line; do echo "$line"; done < {tmp_path}/text')

    return print_text


def test_gpus_are_named_and_their_absence_is_no_fault(printing):
    assert doctor.gpus().state is State.WARN

    printing("NVIDIA H200, 143771, GPU-00-aa\nNVIDIA H200, 143771, GPU-11-bb\n")

    assert doctor.gpus().state is State.OK
    assert doctor.gpus().detail == "2: NVIDIA H200"


@pytest.mark.parametrize(
    ("matrix", "state", "detail"),
    [
        (TOPOLOGY.format("NV18"), State.OK, "NV18"),
        (TOPOLOGY.format("PHB"), State.WARN, "PHB"),
        ("\tGPU0\tCPU Affinity\nGPU0\t X \t0-31\n", State.OK, "no two GPUs to connect"),
    ],
)
def test_links_between_gpus_are_read_from_the_drivers_matrix(matrix, state, detail, printing):
    printing(matrix)

    found = doctor.gpu_links()

    assert (found.state, found.detail) == (state, detail)


@pytest.mark.parametrize(
    ("name", "text", "quota"),
    [
        ("sys/fs/cgroup/cpu.max", "50000 100000\n", "quota of 0.5"),
        ("sys/fs/cgroup/cpu.max", "400000 100000\n", "quota of 4"),
        ("sys/fs/cgroup/cpu.max", "max 100000\n", ""),
        ("sys/fs/cgroup/elsewhere", "", ""),
    ],
)
def test_a_quota_of_the_control_group_is_told(name, text, quota, tmp_path):
    write(tmp_path, name, text)

    found = doctor.cores(tmp_path)

    assert found.detail.partition(", ")[2] == quota
    assert (found.state is State.WARN) == (quota == "quota of 0.5")


@pytest.mark.parametrize(
    ("governor", "no_turbo", "state", "told"),
    [
        ("performance", "1", State.OK, "governor performance, turbo off"),
        ("powersave", "0", State.WARN, "governor powersave, turbo on"),
        (None, None, State.OK, "not visible here, as in most virtual machines"),
    ],
)
def test_a_clock_that_varies_is_noise(governor, no_turbo, state, told, tmp_path):
    cpu = "sys/devices/system/cpu"
    if governor is not None:
        write(tmp_path, f"{cpu}/cpu0/cpufreq/scaling_governor", f"{governor}\n")
        write(tmp_path, f"{cpu}/intel_pstate/no_turbo", f"{no_turbo}\n")

    found = doctor.clocks(tmp_path)

    assert (found.state, found.detail) == (state, told)


@pytest.mark.parametrize(
    ("active", "state", "told"),
    [
        ("1", State.WARN, "two share each core"),
        ("0", State.OK, "one for each core"),
        (None, State.OK, "not visible here"),
    ],
)
def test_threads_that_share_a_core_are_noise(active, state, told, tmp_path):
    if active is not None:
        write(tmp_path, "sys/devices/system/cpu/smt/active", f"{active}\n")

    found = doctor.hardware_threads(tmp_path)

    assert (found.state, found.detail) == (state, told)


def test_without_loopback_no_rank_meets_another(monkeypatch):
    nics = {"eth0": SimpleNamespace(isup=True), "lo": SimpleNamespace(isup=False)}
    monkeypatch.setattr(psutil, "net_if_stats", lambda: nics)

    found = doctor.interfaces()

    assert (found.state, found.needed) == (State.MISSING, True)
    assert (found.detail, found.remedy) == ("loopback is down; up: eth0", "ip link set lo up")


def test_a_tool_that_is_not_installed_comes_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))

    lacking = [doctor.compiler(), doctor.stack_reader(), doctor.slurm()]

    assert all(found.state is State.MISSING and found.remedy for found in lacking)
    assert not any(found.needed for found in lacking)


@pytest.mark.parametrize(
    ("library", "state", "told"),
    [
        (None, State.MISSING, "mpi4py loads no MPI library"),
        (("5.0.1", None), State.MISSING, "openmpi 5.0.1 without the mpirun of this version"),
        (("5.0.1", "/opt/mpirun"), State.OK, "openmpi 5.0.1, /opt/mpirun"),
    ],
)
def test_mpi_is_the_library_that_ranks_load_with_its_mpirun(library, state, told, monkeypatch):
    found = library and MpiLibrary(kind="openmpi", version=library[0], mpirun=library[1])
    monkeypatch.setattr(doctor, "mpi_library", lambda: found)

    finding = doctor.mpi()

    assert (finding.state, finding.detail) == (state, told)
    assert (finding.remedy is None) == (state is State.OK)


def test_torch_is_named_with_its_backends_and_the_python_that_has_it():
    found = doctor.torch_backends()

    assert found.state is State.OK
    assert "gloo" in found.detail
    assert found.detail.endswith(platform.python_version())


@pytest.mark.parametrize(
    ("python", "packages", "needed", "words"),
    [
        (None, {}, False, 'pip install "cclsearch[builtin]", or name a Python that has torch'),
        ("/job/python", {}, True, "not in CPython 3.10.4 (/job/python)"),
        ("/job/python", {"torch": "2.5.1"}, True, "ranks need 2.6 or later"),
        ("/job/python", {"torch": "2.9.0"}, True, "install a build of torch with gloo"),
    ],
)
def test_a_search_of_scripts_needs_no_torch_and_a_python_that_is_named_has_to_have_it(
    monkeypatch, python, packages, needed, words
):
    there = JobPython(python="CPython 3.10.4", packages=packages, torch_facts={}, backends={})
    monkeypatch.setattr(doctor, "ask_python", lambda *_: there)
    monkeypatch.setattr(doctor, "python_with_torch", lambda: None)

    found = doctor.torch_backends(python)

    assert (found.state, found.needed) == (State.MISSING, needed)
    assert words in f"{found.detail} {found.remedy}"


@pytest.mark.parametrize(
    ("version", "remedy"),
    [
        ("2.7.1", "{python} has torch 2.7.1: add --python {python}"),
        ("2.5.1", 'pip install "cclsearch[builtin]"'),
    ],
)
def test_without_torch_of_ours_another_python_on_path_that_has_it_is_named(
    monkeypatch, tmp_path, version, remedy
):
    python = tmp_path / "python3"
    told = {"python": "CPython 3.10.4", "packages": {"torch": version}, "torch_facts": {}}
    python.write_text(f"#!/bin/sh\necho '{json.dumps(told)}'\n", encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/none:{tmp_path}")
    none = JobPython(python="CPython 3.12.1", packages={}, torch_facts={}, backends={})
    monkeypatch.setattr(doctor, "ask_python", lambda *_: none)

    found = doctor.torch_backends()

    assert (found.state, found.needed) == (State.MISSING, False)
    assert remedy.format(python=python) in found.remedy


@pytest.mark.parametrize(
    ("then", "state", "detail"),
    [
        (Takes(step_time_s=0.1), State.OK, "ranks join and train"),
        (
            Fails(kind=FailureKind.CRASH, message="no route to rank 1"),
            State.MISSING,
            "no route to rank 1",
        ),
    ],
    ids=["works", "fails"],
)
def test_launches_tell_what_the_warm_process_cost_or_why_one_failed(
    study, tmp_path, then, state, detail
):
    evaluator = TabularEvaluator(endings={CONFIG: InTurn((Takes(step_time_s=0.1), then))})

    launches = launch_repeatedly(evaluator, study, CONFIG, tmp_path, 3)
    found = check_launches("launch", launches, needed=True)

    assert (found.state, found.needed) == (state, True)
    assert detail in found.detail


@pytest.mark.parametrize(
    ("can_isolate", "told"),
    [(False, ""), (True, "; cclsearch run --isolate gives jobs priority over them")],
)
def test_launches_that_differ_are_noisy_and_say_who_disturbed_them(can_isolate, told):
    def noise(*times_s):
        launches = [
            MeasuredLaunch(wall_s=1.0, step_times_s=(time_s,) * 3, conditions=BUSY)
            for time_s in times_s
        ]
        return check_noise(launches, can_isolate=can_isolate)

    quiet, found = noise(1.0, 1.001, 0.999), noise(1.0, 1.5, 0.8)

    assert (quiet.state, found.state) == (State.OK, State.WARN)
    assert "3 launches by 88%" in found.detail
    assert found.remedy == f"other processes used 50% of the cores{told}"


def test_more_rounds_tell_smaller_differences_apart():
    launches = (1.0, 1.02, 0.98, 1.01)

    assert smallest_difference(launches, 16) < smallest_difference(launches, 4)
    assert smallest_difference((1.0, 1.0, 1.0), 4) == 0
