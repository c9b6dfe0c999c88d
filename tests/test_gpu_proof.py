"""`make gpu` on the CPU: every part runs, one that fails harms no other, odd numbers are named."""

import importlib
import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from evaluator.machine import local_environment

GPU = Path(__file__).parents[1] / "benchmarks" / "gpu"
PARTS = (*("machine", "study", "traces", "failures", "kill", "collectives", "decisions"),)


@pytest.fixture
def module(monkeypatch):
    """Imports a module of the proof, as its own scripts do."""
    monkeypatch.syspath_prepend(GPU.parent)
    monkeypatch.syspath_prepend(GPU)
    return importlib.import_module


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_without_a_gpu_every_part_of_the_proof_runs_small_and_the_page_says_what_is_missing(
    tmp_path,
):
    out = tmp_path / "gpu"
    no_gpu = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # noqa: TID251 - what a user's shell has
    asked = [sys.executable, GPU / "start.py", "--out", out]

    done = subprocess.run(asked, env=no_gpu, capture_output=True, text=True, check=False)

    page = (out / "page.md").read_text(encoding="utf-8")
    proof = json.loads((out / "proof.json").read_text(encoding="utf-8"))
    assert {name: each["status"] for name, each in proof.items()} == dict.fromkeys(PARTS, "done")
    # Two rounds beside other work may claim a difference that is none.
    doubted = {name for name, each in proof.items() if each["doubts"]}
    assert doubted <= {"decisions"}, f"{done.stdout}{done.stderr}{page}"
    assert done.returncode == len(doubted)
    assert ("No number looks wrong." in page) is (not doubted)
    assert "small on the CPU: no GPU answers here" in page
    assert page.count("Not done here: ") == len(PARTS) - 1
    assert "out of memory" in page.replace("_", " ")


@pytest.fixture
def place(module, tmp_path):
    return module("part").Place(out=tmp_path, machine=local_environment())


def test_a_part_that_fails_or_never_ends_is_named_and_ended(module, place):
    part = module("part")

    def fail(_place):
        raise ValueError("the driver is gone")

    def hang(_place):
        time.sleep(600)

    def one(name, run):
        made = part.Part(name=name, heading=name, limit_s=1.0, run=run)
        return part.run_part(made, place, 600.0)

    failed, late = one("failing", fail), one("hanging", hang)
    unbegun = part.run_part(part.Part(name="x", heading="x", limit_s=1, run=fail), place, 0.0)

    assert (failed.status, late.status, unbegun.status) == ("failed", "out of time", "not begun")
    assert failed.message.endswith("ValueError: the driver is gone")
    assert json.loads((place.out / "hanging.json").read_text())["message"] == "ended after 1 s"


TRIAL = {
    "trial": 3,
    "failure": None,
    "kind": None,
    "step_s": 0.1,
    "mfu": 0.4,
    "no_mfu": None,
    "memory_ratio": 1.2,
    "idle_share": 0.05,
    "is_profiled": True,
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        ({"mfu": None, "no_mfu": "252 times the peak"}, ["trial 3: no MFU: 252 times the peak"]),
        ({"mfu": 1.3}, ["trial 3: an MFU of 130.0 %"]),
        ({"idle_share": None}, ["trial 3: its trace shows no step on the device"]),
        ({"idle_share": None, "is_profiled": False}, []),
        ({"idle_share": 0.93}, ["trial 3: the device is idle for 93.0 % of the profiled step"]),
        (
            {"memory_ratio": 2.4},
            ["trial 3: memory is estimated at 2.40 times what was measured"],
        ),
        (
            {"step_s": None, "failure": "crash: illegal memory access", "kind": "crash"},
            ["no trial was measured", "trial 3: crash: illegal memory access"],
        ),
        ({"step_s": None, "failure": "oom", "kind": "out_of_memory"}, ["no trial was measured"]),
    ],
)
def test_numbers_of_a_trial_that_look_wrong_are_named(changes, words, module):
    doubts = module("study_part").doubts

    assert list(doubts([TRIAL | changes], on_gpu=True)) == words


def test_carried_wheels_are_used_where_this_python_lacks_them_or_has_older_ones(
    module, tmp_path, monkeypatch
):
    start = module("start")
    for name in ("carried_only-1.0-py3", "numpy-0.1-cp39", "elsewhere-1.0-cp27"):
        package = name.split("-")[0]
        with zipfile.ZipFile(tmp_path / f"{name}-none-any.whl", "w") as wheel:
            wheel.writestr(f"{package}/__init__.py", "")
    monkeypatch.setattr(start, "WHEELS", tmp_path)
    monkeypatch.setattr(start, "PACKAGES", tmp_path / "packages")
    monkeypatch.syspath_prepend(tmp_path)  # what is added to the path is taken off again

    assert start.unpack()

    unpacked = {path.name for path in (tmp_path / "packages").iterdir()}
    assert unpacked == {"carried_only", "cclsearch-0.1.0.dist-info"}
