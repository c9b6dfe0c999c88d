"""`cclsearch init`: a study file for a script, and one launch of it."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest

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
SHORT = "[measure]\nself_test_rounds = 0\nrace_rounds = 0\nconfirm_rounds = 2\n"


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
    assert "for x in cclsearch.steps(y):   # line 1" in ended.out
    assert "next: cclsearch init train.py -o mine.toml" in ended.out
    assert Path("mine.toml").is_file()


def test_the_same_command_launches_the_script_when_it_reports_its_steps(cclsearch):
    script = REPORTING.format(tokens=96)
    for lines in (script.replace("cclsearch.", "").replace("import cclsearch", ""), script):
        Path("train.py").write_text(lines, encoding="utf-8")
        ended = cclsearch("init", "train.py")

    assert "tokens per step: 96" in ended.out
    study = tomllib.loads(Path("study.toml").read_text(encoding="utf-8"))
    assert study["workload"]["global_batch"] == 96


def test_batch_sizes_are_searched_for_throughput_per_token(cclsearch):
    script = REPORTING.replace("--num-workers", "--batch-size").format(tokens="options.batch_size")
    script = script.replace("parser.parse_args", "options = parser.parse_args")
    slow = f"import time\n{script}    time.sleep(0.03)\n"
    Path("train.py").write_text(slow, encoding="utf-8")
    assert "--batch-size changes the work" in cclsearch("init", "train.py", "-o", "x.toml").out

    ended = cclsearch("init", "train.py", "--objective", "tokens_per_s")
    assert ended.code == 0, ended.err
    text = Path("study.toml").read_text(encoding="utf-8").replace("[measure]\n", SHORT)
    Path("study.toml").write_text(text, encoding="utf-8")
    searched = cclsearch("run", "-c", "study.toml", "--trials", "3")

    assert "as the objective counts per token" in searched.out
    assert "best: trial" in searched.out
    assert "--batch-size=4" in searched.out.partition("best: ")[2]
    assert "its step processes 4 tokens, the seed's 2" in searched.out


@pytest.mark.parametrize(
    ("script", "arguments", "said"),
    [
        ('p.add_argument("--data", required=True)', (), "missing: --data must be given"),
        ('p.add_argument("data")', (), "missing: data must be given"),
        ('p.add_argument("data")', ("corpus",), "missing: train.py does not report"),
        (
            "Trainer(args=TrainingArguments(output_dir='out'))",
            (),
            "missing: TrainingArguments in line 1 are fixed",
        ),
        (
            "from transformers import Trainer\n\nTrainer()",
            (),
            "  Trainer(..., callbacks=[cclsearch.trainer_callback()])   # line 3",
        ),
    ],
)
def test_what_a_script_lacks_is_said_with_what_to_write(cclsearch, script, arguments, said):
    Path("train.py").write_text(script, encoding="utf-8")

    ended = cclsearch("init", "train.py", "--", *arguments)

    assert ended.code == 0, ended.err
    assert said in ended.out


def test_an_existing_file_is_never_changed(cclsearch):
    shutil.copy(EXAMPLE, "train.py")
    Path("study.toml").write_text("mine", encoding="utf-8")

    ended = cclsearch("init", "train.py", "--no-launch")

    assert (ended.code, ended.out) == (2, "")
    assert "study.toml exists" in ended.err
    assert Path("study.toml").read_text(encoding="utf-8") == "mine"


STUDY = """
name = "mine"
[workload]
name = "mine"
global_batch = 96
sequence_length = 1
[launch]
recipe = "command"
[command]
run = ["python", "train.py", "--num-workers={num_workers}"]
rank_count = "1"
[space.num_workers]
choices = [2, 1]
[measure]
profiled_steps = 0
self_test_rounds = 0
"""


def written(script: str) -> None:
    Path("train.py").write_text(script, encoding="utf-8")
    Path("study.toml").write_text(STUDY, encoding="utf-8")


def test_one_launch_checks_all_that_a_script_reports(cclsearch):
    written(REPORTING.format(tokens=96))

    ended = cclsearch("try", "-c", "study.toml")

    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[:5] == [
        "launched once: --num-workers=2",
        "ok       times: 5 steps of 1 rank",
        "ok       tokens: 96 per step, as the study asks",
        "missing  losses: trials that compute something else are not found: "
        "cclsearch.log(loss=loss)",
        "ok       memory: peak of 1 rank",
    ]
    assert ended.out.splitlines()[-1] == "next: cclsearch run -c study.toml"


def test_one_launch_names_every_part_that_is_missing_or_wrong(cclsearch):
    written(REPORTING.format(tokens=64))

    ended = cclsearch("try", "-c", "study.toml", "--json")

    found = json.loads(ended.out)
    wrong = {check["name"] for check in found["checks"] if not check["is_there"]}
    assert (ended.code, wrong - {"stacks of a hang"}) == (3, {"tokens", "losses"})
    assert "processed 64 tokens per step" in found["failure"]


def test_only_scripts_are_tried(cclsearch):
    ended = cclsearch("try")

    assert ended.code == 2
    assert "no [command] table" in ended.err


@pytest.mark.parametrize(
    ("script", "fault"),
    [("print('nothing')", "left no trace"), ("import no_such_module", "ModuleNotFoundError")],
)
def test_a_fault_of_the_script_ends_the_search_after_the_first_trial(cclsearch, script, fault):
    written(script)

    ended = cclsearch("run", "-c", "study.toml", "--strategy", "grid")

    (stopped,) = [line for line in ended.out.splitlines() if line.startswith("stopped: ")]
    assert ended.code == 3
    assert "no configuration avoids" in stopped
    assert fault in stopped
    assert "cclsearch try" in stopped
    assert "trial 1" not in ended.out
