"""A framework as a recipe: how knobs are spelled, what is left of a line, which rules apply."""

from dataclasses import replace
from pathlib import Path

import pytest

from evaluator.recipes.catalog import framework_recipe
from evaluator.recipes.frameworks.framework import FrameworkKnob
from evaluator.recipes.frameworks.launch_line import LaunchLine
from evaluator.recipes.frameworks.parser import Answer, Parsed
from records.trial import Config

SIZES = {
    "global_batch": 8,
    "sequence_length": 16,
    "layer_count": 2,
    "hidden_size": 64,
    "head_count": 4,
    "ffn_size": 128,
    "vocab_size": 256,
}


@pytest.mark.parametrize(
    ("knob", "value", "words"),
    [
        ({"default": 1}, 4, ("--x=4",)),
        ({"default": "none", "values": {"none": "off"}}, "none", ("--x=off",)),
        ({"default": True}, False, ("--x=false",)),
        ({"default": False, "spelling": "switch"}, True, ("--x",)),
        ({"default": False, "spelling": "switch"}, False, ()),
        ({"default": True, "spelling": "negatable"}, False, ("--no-x",)),
    ],
)
def test_a_knob_is_spelled_as_its_framework_takes_it(knob, value, words):
    assert FrameworkKnob(description="", flag="--x", **knob).words(value) == words


@pytest.mark.parametrize(
    ("knob", "text", "value"),
    [
        ({"default": 1}, "-4", -4),
        ({"default": "none", "values": {"none": "Off"}}, "off", "none"),
        ({"default": False}, "True", True),
        ({"default": False}, None, False),
    ],
)
def test_what_a_framework_says_is_read_as_a_value_of_the_knob(knob, text, value):
    assert FrameworkKnob(description="", flag="--x", **knob).value(text) == value


@pytest.fixture
def toy_study(toy, script_study):
    """The study of a launch line of the framework; `answer` is what its parser made of it."""

    def study(arguments, answer=None, **environment):
        base = script_study()
        machine = replace(base.environment, world_size=2, ranks_per_node=2, **environment)
        launcher = (f"{toy}/bin/torchrun", "--nproc-per-node", "9", "--rdzv-backend=c10d")
        line = LaunchLine(
            launcher=launcher,
            program=("-m", "toy.train"),
            arguments=tuple(arguments.split()),
            folder=Path("/work"),
        )
        return framework_recipe("toy").study(line, replace(base, environment=machine), answer)

    return study


def test_what_is_no_knob_of_a_line_stays_as_it_is(toy_study):
    study = toy_study("--note x -b 2 --steps 9 --log-dir out --other=1 pos --data-parallel 2")

    *launcher, rest = study.command.run[:3], study.command.run[3:]
    assert launcher[0][1:] == ("--nproc-per-node={rank_count}", "--standalone")
    assert rest == ("-m", "toy.train", "--note", "x", "--other=1", "pos", "{args}")
    assert study.space.defaults == {"micro_batch": 2, "dp": 2}
    first = {each.name: each.choices[0] for each in study.space.dimensions}
    assert first == {"dp": 2, "tp": 1, "micro_batch": 2, "mode": "eager", "fused": False}


def test_what_the_parser_resolved_is_the_seed_also_where_the_line_says_nothing(toy_study):
    values = {"--micro-batch": 8, "--mode": "fast", "--unknown": 3}
    study = toy_study("--note x", Answer(versions={}, parsed=(Parsed(values=values),)))

    assert study.space.defaults == {"micro_batch": 8, "mode": "fast"}


def test_a_job_gets_its_knobs_then_what_holds_the_work_equal_through_the_hook(toy_study):
    recipe = framework_recipe("toy")
    study = recipe.complete(toy_study("--note x"))

    job = recipe.job(study, Config({"dp": 1, "tp": 2, "micro_batch": 4, "mode": "fast"}))

    assert job.argv[1:] == (
        *("--nproc-per-node=2", "--standalone", "hook_toy.py", "-m", "toy.train", "--note", "x"),
        *("--data-parallel=1", "--tensor-parallel=2", "--micro-batch=4", "--mode=fast"),
        *("--steps=8", "--seed=42"),
    )
    assert {"hook.py", "hook_toy.py", "cclsearch.py"} <= job.files.keys()


def test_memory_is_a_rule_where_the_sizes_of_the_model_are_known(toy_study):
    recipe = framework_recipe("toy")
    known = Answer(versions={}, parsed=(Parsed(),), workload=SIZES)

    with_sizes = recipe.complete(toy_study("", known, memory_bytes=1 << 20))
    without = recipe.complete(toy_study("", None, memory_bytes=1 << 20))

    assert "memory" in [rule.name for rule in with_sizes.space.constraints]
    assert "memory" not in [rule.name for rule in without.space.constraints]
