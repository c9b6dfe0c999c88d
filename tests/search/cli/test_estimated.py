"""`cclsearch space estimate`: what is guessed before anything is launched."""

import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "docs" / "examples" / "script" / "study.toml"


def test_the_parts_of_one_configuration_are_said_to_be_no_result(cclsearch):
    ended = cclsearch("space", "estimate", "pp=2", "tp=2", "micro_batch=4")

    first, heading, *rows = ended.out.splitlines()
    assert ended.code == 0
    assert "micro_batch=4" in first
    assert first.endswith("an estimate from sizes alone, not a measurement")
    assert heading.split() == ["part", "time", "share"]
    assert any(row.startswith("tensor_communication") for row in rows)
    assert not any(row.startswith("data_communication") for row in rows)
    assert any(row.startswith("estimated_memory_bytes:") for row in rows)


def test_programs_get_every_part_and_their_sum(cclsearch):
    told = json.loads(cclsearch("space", "estimate", "pp=2", "dp_replicate=2", "--json").out)

    assert told["estimate"] == "an estimate from sizes alone, not a measurement"
    assert told["config"]["pp"] == 2
    assert told["step_s"] == pytest.approx(sum(told["parts_s"].values()))
    assert told["parts_s"]["tensor_communication"] == 0
    assert told["estimated_memory_bytes"] > 0


def test_without_a_configuration_the_best_are_listed_in_order(cclsearch):
    told = json.loads(cclsearch("space", "estimate", "--json").out)
    shown = cclsearch("space", "estimate", "-n", "3").out.splitlines()

    steps = [each["step_s"] for each in told["configurations"]]
    assert len(steps) == 10
    assert steps == sorted(steps)
    assert shown[0] == (
        f"the first 3 of {told['feasible']} configurations by an estimate from sizes alone, "
        "not a measurement"
    )
    assert len(shown) == 1 + 1 + 3


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("tp=3",), "knob tp is 3"),
        (("tp",), "'tp' is not KNOB=VALUE"),
        (("-c", str(SCRIPT)), "cannot estimate"),
    ],
)
def test_what_cannot_be_estimated_is_said_in_a_line(cclsearch, arguments, told):
    ended = cclsearch("space", "estimate", *arguments)

    assert (ended.code, ended.out) == (2, "")
    assert told in ended.err
