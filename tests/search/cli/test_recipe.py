"""Frameworks by their own launch line: from the line to a study, its search and its record."""

import sys
from pathlib import Path

import pytest

from tests.support.framework import toy_framework

QUICK = """
[environment]
world_size = 2
ranks_per_node = 2
[measure]
warmup_steps = 1
profiled_steps = 0
self_test_rounds = 0
race_rounds = 0
confirm_top = 0
confirm_rounds = 0
"""
ARGUMENTS = '--data-parallel 2 -b 2 --shift -1 --note "a b" --steps 7 --log-dir out'


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """The folder of the framework `toy`, whose recipe is registered."""
    with toy_framework(tmp_path_factory.mktemp("toy")) as folder:
        yield folder


@pytest.fixture
def here(toy, cclsearch, monkeypatch):  # noqa: ARG001 - `cclsearch` changes to an empty folder
    """An empty folder where the framework can be started, with a study file for short searches."""
    monkeypatch.setenv("PATH", f"{toy}/bin:{Path(sys.executable).parent}:/usr/bin:/bin")
    Path("quick.toml").write_text(QUICK, encoding="utf-8")
    return Path.cwd()


@pytest.fixture
def line(toy, here):  # noqa: ARG001 - the folder
    """The command that starts the framework today."""
    words = ["torchrun", "--nproc-per-node=2", "-m", "toy.train", "--data-parallel", "2", "-b", "2"]
    return ["--", f"PYTHONPATH={toy}", *words, "--shift", "-1", "--note", "a b", "--steps", "7"]


def test_a_search_begins_at_the_launch_line_of_a_script(cclsearch, toy, here):
    secrets = {"HF_TOKEN": "hf_" + "a" * 34, "WANDB_API_KEY": "0123456789abcdef"}
    exports = " ".join(f"{name}={value}" for name, value in secrets.items())
    (here / "train.sh").write_text(
        f"export PYTHONPATH={toy} TOY_THREADS=3 MASTER_PORT=1234 DP=2 {exports}\n"
        f"torchrun --nproc-per-node=2 -m toy.train {ARGUMENTS} --hub-token hf_{'b' * 34} > log\n",
        encoding="utf-8",
    )
    recipe = ("--recipe", "toy", "--baseline", "train.sh", "-c", "quick.toml")

    ended = cclsearch("run", *recipe, "--trials", "2", "--strategy", "grid")

    assert ended.code == 0, ended.err
    assert ended.err.splitlines() == [
        "toy: --hub-token, HF_TOKEN, WANDB_API_KEY of the launch line: left out as a secret, which "
        "no trial gets and no study records; let the framework read it from a file",
        "toy: DP, MASTER_PORT of the launch line: left out, as each trial has its own",
        f"toy: asking its parser, which may take a minute ({sys.executable})",
        f"toy: toy 1.0, python {sys.version.split()[0]}",
        "toy: knobs, with today's values as the seed: dp=2, tp=1, micro_batch=2, mode=eager, "
        "fused=False",
    ]
    assert "trial 0  seed  dp=2 fused=False micro_batch=2 mode=eager tp=1" in ended.out
    knobs = "--data-parallel=2 --tensor-parallel=1 --micro-batch=2"
    assert f"best: trial 1: {knobs} --mode=plain --fused --shift=-1\n" in ended.out
    best = cclsearch("best", "--format", "args").out
    assert best == f"{knobs} --mode=plain --fused --shift=-1\n"
    log = cclsearch("trial", "logs", "0").out
    assert f"arguments --note a b {knobs} --mode=plain --shift=-1 --steps=6 --seed=42" in log
    assert "TOY_THREADS" in log
    assert not any(name in log for name in (*secrets, "MASTER_PORT"))
    files = [path for path in here.glob(".cclsearch/**/*") if path.is_file()]
    kept = b"".join(path.read_bytes() for path in files)
    assert not any(value.encode() in kept for value in (*secrets.values(), "hf_" + "b" * 34))
    assert not (here / "log").exists()
    resumed = cclsearch("resume", "--trials", "1")
    assert (resumed.code, "trial 2" in resumed.out) == (0, True), resumed.err


def test_a_knob_that_did_not_take_hold_fails_its_trial(cclsearch, line):
    with Path("quick.toml").open("a", encoding="utf-8") as file:
        file.write("[space.mode]\nchoices = ['eager', 'ghost']\n")

    ended = cclsearch("run", "--recipe", "toy", "-c", "quick.toml", "--strategy", "grid", *line)

    assert ended.code == 0, ended.err
    assert "trial 1  grid  mode=ghost" in ended.out
    assert "invalid_config" in ended.out
    assert (
        "mode=ghost did not take hold: toy names the mode that it trains in, and the log does not "
        "say so" in cclsearch("trial", "show", "1").out
    )
    assert "--data-parallel=2" in cclsearch("best", "--format", "args").out


def test_one_launch_shows_what_a_framework_reports(cclsearch, line):
    ended = cclsearch("try", "--recipe", "toy", "-c", "quick.toml", *line)

    assert ended.code == 0, ended.err
    first, *checks = ended.out.splitlines()
    assert first.startswith("launched once: --data-parallel=2 --tensor-parallel=1 --micro-batch=2")
    assert checks[:4] == [
        "ok       times: 5 steps of 2 ranks",
        "ok       tokens: 128 per step, as the study asks",
        "ok       losses: of 6 steps",
        "ok       memory: peak of 2 ranks",
    ]
    assert any("stacks of a hang: " in check for check in checks)
    assert checks[-1].startswith("next: cclsearch run --recipe toy -c quick.toml -- PYTHONPATH=")


def test_the_space_of_a_launch_line_can_be_inspected(cclsearch, line):
    given = ("--recipe", "toy", "-c", "quick.toml")
    size = cclsearch("space", "size", *given, *line)
    explain = cclsearch("space", "explain", *given, *line)
    estimate = cclsearch("space", "estimate", *given, *line)
    check = cclsearch("space", "check", "tp=2", "dp=1", *given, *line)

    assert size.out == "96 points, 30 satisfy the constraints\n"
    assert "tensor-parallel ranks" in explain.out
    assert "the batch is cut evenly (toy/config.py:9)" in explain.out
    assert check.out.startswith("valid: dp=1")
    assert estimate.code == 2
