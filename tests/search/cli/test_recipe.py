"""Frameworks by their own launch line: from the line to a study, its search and its record."""

import json
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from evaluator.machine import local_environment
from search.cli import init
from search.cli.options import StudyOptions
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
    script = cclsearch("trial", "script", "0").out
    assert all(f"cat > {name} <<" in script for name in ("cclsearch.py", "hook.py", "hook_toy.py"))
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
    asked = ("--objective", "tokens_per_s", "--limit", "step_time < 1 us")

    ended = cclsearch("try", *asked, "--recipe", "toy", "-c", "quick.toml", *line)

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
    assert checks[-3].startswith("measured tokens_per_s: ")
    assert checks[-2].startswith("limit    step_time < 1 us is broken: step_time is ")
    assert checks[-1].startswith(
        "next: cclsearch run --objective tokens_per_s --limit 'step_time < 1 us' --recipe toy "
        "-c quick.toml -- PYTHONPATH="
    )


def test_an_objective_that_a_launch_does_not_answer_fails_the_try(cclsearch, line):
    ended = cclsearch("try", "--objective", "goodput", "--recipe", "toy", "-c", "quick.toml", *line)
    words = ended.out.splitlines()

    assert ended.code == 3
    assert words[-3].startswith("measured ")
    assert words[-2].startswith("failed   metric_error: the objective needs goodput")
    assert words[-1].startswith(
        "next: correct the launch line or quick.toml, then: cclsearch try --objective goodput "
    )


@pytest.mark.parametrize("objective", ["throughput", "step_time - gpus"])
def test_an_objective_that_is_none_is_refused_before_the_launch(cclsearch, line, objective):
    ended = cclsearch("try", "--objective", objective, "--recipe", "toy", *line)

    assert (ended.code, ended.out) == (2, "")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"config": Path("study.toml")}, "the script or study.toml"),
        ({"recipe": "toy", "baseline": Path("train.sh")}, "train.sh"),
        ({"recipe": "toy", "line": ["torchrun"]}, "the launch line"),
        ({"card": Path("card.yaml"), "command": Path("run.sh")}, "run.sh or card.yaml"),
    ],
)
def test_what_to_correct_is_named_as_it_was_given(given, named):
    assert StudyOptions(**given).written == named


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


def test_frameworks_are_listed_with_what_is_known_of_them(cclsearch, here, monkeypatch):  # noqa: ARG001 - toy
    monkeypatch.setenv("COLUMNS", "160")
    heading, *rows = cclsearch("recipes").out.splitlines()
    known = {each["name"]: each for each in json.loads(cclsearch("recipes", "--json").out)}

    assert heading.split() == [*("recipe", "flags", "of", "knobs", "rules", "evidence", "checked")]
    assert [row.split() for row in rows if row.startswith("toy")] == [
        ["toy", "1.0", "6", "1", "2", "recorded", "flags"]
    ]
    assert (known["toy"]["versions"], known["toy"]["knobs"]) == (["1.0"], 6)


def test_a_recipe_shows_its_knobs_rules_work_and_evidence(cclsearch, here):  # noqa: ARG001 - toy
    shown = cclsearch("recipe", "show", "toy").out
    facts = json.loads(cclsearch("recipe", "show", "toy", "--json").out)

    assert "  dp: --data-parallel\n      data-parallel ranks; default 1; choices divisors" in shown
    assert "a step; default false; choices false, true; has an effect where tp == 1" in shown
    assert "where the data begins; default 1; fixed, else -1, 1\n" in shown
    assert "  whole_batch: global_batch % (dp * micro_batch) == 0\n      the batch is cut" in shown
    assert "  '--steps={steps}' '--seed={seed}'\n  and without --log-dir" in shown
    assert "  tp > 1: all_reduce in the traces\n" in shown
    assert facts["knobs"]["dp"]["choices"] == "divisors of the ranks"
    assert facts["rules"]["whole_batch"][1] == "the batch is cut evenly (toy/config.py:9)"


def test_a_configuration_is_checked_without_a_launch_line_by_what_is_recorded(cclsearch, here):  # noqa: ARG001 - toy
    taken = cclsearch("recipe", "check", "toy", "tp=8", "dp=2", "shift=-1", "--ranks", "16")

    assert taken.code == 0, taken.err
    assert taken.out.startswith(
        "--data-parallel=2 --tensor-parallel=8 --micro-batch=4 --mode=plain --shift=-1 --steps="
    )
    assert "to ask the framework's own parser" in taken.out


def test_a_configuration_is_checked_by_the_parser_of_the_job(cclsearch, line):
    taken = cclsearch("recipe", "check", "toy", "micro_batch=1", "--ranks", "2", *line)
    (argv, told) = taken.out.splitlines()

    assert taken.code == 0, taken.err
    assert argv.startswith("torchrun --nproc-per-node=2 --standalone -m toy.train --note 'a b'")
    assert "--micro-batch=1" in argv
    assert told.startswith("taken by the rules and by the parser of toy 1.0, python 3")


@pytest.mark.parametrize(
    ("settings", "by", "said"),
    [
        ("tp=3", "rules", "[space] tp must be 1 or 2, got 3"),
        ("tq=2", "rules", "'tq' is not a knob of the toy recipe; it has dp, tp"),
        ("tp=2 dp=2", "rules", "1 <= (dp * tp) <= world_size"),
        ("micro_batch=8", "rules", "the batch is cut evenly (toy/config.py:9)"),
        ("mode=ghost micro_batch=1", "parser", "the parser of toy refuses it: ghost takes pairs"),
    ],
)
def test_a_configuration_that_is_refused_says_by_what_and_why(cclsearch, line, settings, by, said):
    command = ("recipe", "check", "toy", *settings.split(), "--ranks", "2")
    ended = cclsearch(*command, *line)
    facts = json.loads(cclsearch(*command, "--json", *line).out)

    assert (ended.code, facts["refused_by"]) == (2, by)
    assert said in ended.err
    assert ended.err.count("error: ") == 1


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--recipe toys -- x", "--recipe 'toys' is no framework; did you mean 'toy'?"),
        ("--recipe toy", "--recipe toy needs your launch line of today: in a shell script"),
        ("--recipe toy --baseline a.sh -- x", "--recipe toy needs your launch line of today"),
        ("--recipe toy --baseline none.sh", "--baseline none.sh: there is no such file"),
        ("-- torchrun -m toy.train", "a launch line needs the name of its framework"),
        (
            "--recipe torchtitan -- torchrun -m toy.train",
            "starts '-m toy.train', which is not TorchTitan; it looks like Toy: --recipe toy",
        ),
        (
            "--recipe toy -- torchrun other.py",
            "starts 'other.py', which is not Toy; give the line that starts it",
        ),
        ("--recipe toy -- srun torchrun -m toy.train", "recipes do not support clusters yet"),
        (
            "--recipe toy -- torchrun --nnodes 2 -m toy.train",
            "starts 2 nodes; a recipe searches on this machine alone and does not support clusters",
        ),
        (
            "--recipe toy -- none/torchrun -m toy.train",
            "'none/torchrun' of the launch line is not on the PATH; activate the environment",
        ),
        (
            "--recipe toy -- TOY_MISSING=1 torchrun -m toy.train",
            "toy cannot be imported by {python}: No module named 'toy_that_is_missing'; install it",
        ),
        (
            "--recipe toy -- {path} torchrun -m toy.train --m plain",
            "the parser of toy refuses the launch line: toy: error: ambiguous",
        ),
        (
            "--recipe toy -- {path} torchrun -m toy.train --hidden 3",
            "the parser of toy refuses the launch line: toy: error: unrecognized arguments: --hid",
        ),
    ],
)
def test_what_cannot_be_searched_is_one_line_that_says_what_to_do(cclsearch, toy, given, said):
    words = given.format(path=f"PYTHONPATH={toy}").split()

    ended = cclsearch("run", "-c", "quick.toml", *words)

    assert (ended.code, ended.out) == (2, "")
    assert said.format(python=sys.executable) in ended.err.splitlines()[-1]
    assert ended.err.splitlines()[-1].startswith("error: ")


def test_the_study_of_a_launch_line_is_a_file_to_edit_and_needs_no_parser(
    cclsearch, line, monkeypatch
):
    machine = replace(local_environment(), world_size=2, ranks_per_node=2)
    monkeypatch.setattr(init, "local_environment", lambda: machine)
    written = cclsearch("init", "--recipe", "toy", *line)
    assert written.code == 0, written.err
    text = Path("study.toml").read_text(encoding="utf-8")
    study = tomllib.loads(text)
    monkeypatch.setenv("TOY_MISSING", "1")
    edited = text.partition("\n[measure]")[0].replace("choices = [2, 1, 4, 8]", "choices = [2, 4]")
    Path("study.toml").write_text(edited + QUICK, encoding="utf-8")

    searched = cclsearch("run", "-c", "study.toml", "--trials", "2", "--strategy", "grid")
    again = cclsearch("init", "--recipe", "toy", *line)

    assert written.out.splitlines()[-1] == "next: cclsearch try -c study.toml"
    assert study["launch"] == {"recipe": "toy"}
    assert study["workload"] == {"name": "toy", "global_batch": 8, "sequence_length": 16}
    assert study["space"]["micro_batch"]["choices"] == [2, 1, 4, 8]
    assert study["space"]["shift"]["choices"] == [-1]
    assert searched.code == 0, searched.err
    log = cclsearch("trial", "logs", "0").out
    assert "arguments --note a b --data-parallel=2 --tensor-parallel=1 --micro-batch=2" in log
    assert "--shift=-1" in log
    assert (again.code, Path("study.toml").read_text(encoding="utf-8")) == (2, edited + QUICK)


def test_a_study_file_of_a_framework_without_its_command_says_how_to_get_it(cclsearch, here):
    (here / "part.toml").write_text('[launch]\nrecipe = "toy"\n', encoding="utf-8")

    ended = cclsearch("run", "-c", "part.toml")

    assert ended.code == 2
    assert "[command] is missing; add --recipe toy and your launch line, or write" in ended.err


@pytest.mark.parametrize("text", ["import toy.train", "from toy import trainer\ntrainer.Trainer()"])
def test_init_says_which_recipe_fits_a_script_that_uses_a_framework(cclsearch, here, text):
    (here / "train.py").write_text(f"{text}\n", encoding="utf-8")

    ended = cclsearch("init", "train.py", "--no-launch")

    assert "train.py uses Toy, whose own flags can be searched:" in ended.out
    assert "cclsearch run --recipe toy --baseline train.sh" in ended.out
