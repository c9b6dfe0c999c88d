"""The public collection of cards: every card that is YAML and states its work is read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "published_cards.py"


@pytest.fixture(scope="module")
def printed(recorded_data):
    """What the benchmark prints of the collection, in lines."""
    cards = recorded_data / "cards"
    if not cards.is_dir():
        pytest.skip(f"needs the published cards in {cards}")
    command = [sys.executable, str(BENCHMARK), str(cards)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def section(lines, heading):
    return [line.strip() for line in lines[lines.index(heading) + 1 :] if line.startswith("  ")]


def test_every_kind_of_card_is_read(printed):
    """Columns: cards, read, read once a batch size is given, refused."""
    rows = {line[:24].strip(): [*map(int, line[24:].split())] for line in printed[1:7]}
    assert rows == {
        "of CCL-Search itself": [9, 4, 0, 5],
        "collected jobs": [69, 67, 0, 2],
        "set aside": [30, 27, 0, 3],
        "template": [1, 1, 0, 0],
        "workload suite": [7, 0, 7, 0],
        "all": [116, 99, 7, 10],
    }


def test_what_is_refused_is_no_card_or_lacks_what_nothing_implies(printed):
    reasons = [line.partition(".yaml: ")[2] for line in section(printed, "refused:")]
    tuning, experiment, length, yaml = (
        [reason for reason in reasons if reason.startswith(start)]
        for start in ("a tuning file", "workload.model is", "workload.data.seq_len", "not YAML: ")
    )
    assert [*map(len, (tuning, experiment, length, yaml))] == [4, 1, 2, 3]
    assert all("line 10: " in reason and "must be quoted" in reason for reason in yaml)


def test_what_the_built_in_recipe_cannot_launch_it_says(printed):
    start = next(i for i, line in enumerate(printed) if "built-in recipe; of the others" in line)
    assert printed[start].startswith("50 of those read")
    refused = [line for line in printed[start + 1 : start + 4] if line.startswith("  ")]
    assert [int(line.split()[0]) for line in refused] == [38, 16, 2]


def test_differing_statements_are_said(printed):
    said = "\n".join(section(printed, "concluded and said (cards):"))
    assert "7  layer count 28 as the card states it, where deepseek-v3-16b has 27" in said
    assert "6  2 accelerators, where the card's own plan takes 4" in said


# What a person types beside a card that states a model and a length only.

SUITE = """
hf_url: https://huggingface.co/Qwen/Qwen3-4B
workload:
  model: {phase: training, model_family: qwen3, precision: bf16}
  data: {seq_len: 4096}
"""


@pytest.fixture
def suite_card(tmp_path):
    path = tmp_path / "suite.yaml"
    path.write_text(SUITE, encoding="utf-8")
    return path


def test_a_batch_and_gpus_from_options_are_enough(suite_card, cclsearch):
    lacking = cclsearch("space", "explain", "--card", suite_card)
    assert (lacking.code, "--batch-size N" in lacking.err) == (2, True)
    told = cclsearch(
        *("space", "explain", "--card", suite_card, "--batch-size", "32", "--gpus", "8", "--json")
    )
    assert told.code == 0
    inferences = json.loads(told.out)["inferences"]
    assert "model qwen3-4b, as hf_url names it" in inferences
    assert told.err.splitlines() == [f"card: {sentence}" for sentence in inferences]


def test_a_batch_from_the_study_file_is_enough(suite_card, cclsearch, tmp_path):
    study = tmp_path / "study.toml"
    study.write_text("[workload]\nglobal_batch = 32\nsequence_length = 512\n", encoding="utf-8")
    told = cclsearch("space", "size", "--card", suite_card, "-c", study)
    assert told.code == 0
    assert "card: seq_len 512 as given, where the card states 4096" in told.err


def test_options_about_a_card_need_one(cclsearch):
    refused = cclsearch("run", "--batch-size", "32")
    assert (refused.code, "add --card FILE" in refused.err) == (2, True)
