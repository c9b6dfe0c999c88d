"""`cclsearch space`: its points, and what is guessed before anything is launched."""

import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "docs" / "examples" / "script" / "study.toml"
VALID = "dp_replicate=1 dp_shard=2 tp=1 pp=2 micro_batch=2 activation_checkpointing=none"
CAVEAT = "an estimate from sizes alone, not a measurement"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("size", " points, "),
        (f"check {VALID}", "\nestimated_memory_bytes: "),
        ("explain", "activation_checkpointing"),
    ],
)
def test_a_space_is_printed_for_people(cclsearch, command, words):
    assert words in cclsearch("space", *command.split()).out


def test_an_invalid_point_has_its_faults_as_json(cclsearch):
    ended = cclsearch("space", "check", "tp=3", "--json")

    assert ended.code == 2
    assert "knob tp is 3 (int), not one of [1, 2, 4]" in json.loads(ended.out)["faults"]


def test_a_sample_can_be_drawn_again(cclsearch):
    first, second = (cclsearch("space", "sample", "--seed", "7").out for _ in range(2))

    assert first == second
    assert len(set(first.splitlines())) == 5


def test_every_part_of_an_estimate_is_given_and_said_to_be_no_result(cclsearch):
    command = ("space", "estimate", "pp=2", "dp_replicate=2", "micro_batch=4")
    first, heading, *rows = cclsearch(*command).out.splitlines()
    told = json.loads(cclsearch(*command, "--json").out)

    assert "micro_batch=4" in first
    assert first.endswith(CAVEAT)
    assert heading.split() == ["part", "time", "share"]
    assert any(row.startswith("estimated_memory_bytes:") for row in rows)
    assert not any(row.startswith("tensor_communication") for row in rows)
    assert (told["estimate"], told["config"]["pp"]) == (CAVEAT, 2)
    assert told["step_s"] == pytest.approx(sum(told["parts_s"].values()))
    assert told["parts_s"]["tensor_communication"] == 0
    assert told["estimated_memory_bytes"] > 0


def test_without_a_configuration_the_best_are_listed_in_order(cclsearch):
    told = json.loads(cclsearch("space", "estimate", "--json").out)
    shown = cclsearch("space", "estimate", "-n", "3").out.splitlines()

    steps = [each["step_s"] for each in told["configurations"]]
    assert len(steps) == 10
    assert steps == sorted(steps)
    assert shown[0] == f"the first 3 of {told['feasible']} configurations by {CAVEAT}"
    assert len(shown) == 1 + 1 + 3


def test_what_cannot_be_estimated_is_said_in_a_line(cclsearch):
    ended = cclsearch("space", "estimate", "-c", SCRIPT)

    assert (ended.code, ended.out) == (2, "")
    assert "cannot estimate" in ended.err
