"""`cclsearch init`: a study file for a script, and one launch of it."""

import json
import shutil
import tomllib
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "script" / "train.py"
REPORTING = """
import argparse
import cclsearch
parser = argparse.ArgumentParser()
parser.add_argument("--num-workers", type=int, default=2)
parser.parse_args()
for number in cclsearch.steps(range(100)):
    cclsearch.log(tokens={tokens})
"""


def test_a_script_is_launched_once_and_its_work_is_written_to_the_file(cclsearch):
    Path("train.py").write_text(REPORTING.format(tokens=96), encoding="utf-8")

    ended = cclsearch("init", "train.py")

    assert ended.code == 0, ended.err
    assert "tokens per step: 96" in ended.out
    assert "next: cclsearch run -c study.toml" in ended.out
    study = tomllib.loads(Path("study.toml").read_text(encoding="utf-8"))
    assert study["workload"]["global_batch"] == 96
    assert study["space"]["num_workers"]["choices"] == [2, 1, 4]


def test_a_script_that_fails_says_why_and_keeps_the_file(cclsearch):
    Path("train.py").write_text(REPORTING.format(tokens="1 / 0"), encoding="utf-8")

    ended = cclsearch("init", "train.py", "--json")

    assert ended.code == 3
    assert "ZeroDivisionError" in json.loads(ended.out)["failure"]
    assert Path("study.toml").is_file()


def test_a_script_that_does_not_report_its_steps_learns_what_to_add(cclsearch):
    Path("train.py").write_text("for x in y:\n    x.backward()\n", encoding="utf-8")

    ended = cclsearch("init", "train.py", "-o", "mine.toml")

    assert ended.code == 0
    assert "the loop in line 1" in ended.out
    assert "cclsearch.steps" in ended.out
    assert Path("mine.toml").is_file()


def test_an_existing_file_is_never_changed(cclsearch):
    shutil.copy(EXAMPLE, "train.py")
    Path("study.toml").write_text("mine", encoding="utf-8")

    ended = cclsearch("init", "train.py", "--no-launch")

    assert (ended.code, ended.out) == (2, "")
    assert "study.toml exists" in ended.err
    assert Path("study.toml").read_text(encoding="utf-8") == "mine"
