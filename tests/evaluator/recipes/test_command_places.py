"""Names in braces in a command: what a configuration sets in their place, and what is refused."""

from dataclasses import replace

import pytest

from evaluator.recipes.command import CommandRecipe
from records.errors import StudyError
from records.study import Dimension
from records.trial import Config

RECIPE = CommandRecipe()
TWO_RANKS = Config({"dp": 2, "fast": True})


@pytest.fixture
def running(script_study):
    """The study of a script whose command is this."""

    def of(*run):
        study = RECIPE.complete(script_study())
        return replace(study, command=replace(study.command, run=("echo", *run)))

    return of


@pytest.mark.parametrize(
    ("part", "filled"),
    [
        ("--dp={dp}", ["--dp=2"]),
        ("{dp}x{fast}", ["2xtrue"]),
        ("--nproc-per-node={rank_count}", ["--nproc-per-node=2"]),
        ("{args}", ["--dp=2", "--fast=true"]),
        ("{{dp}}", ["{dp}"]),
        ("${dp} {1..3} {print $1} {}", ["${dp} {1..3} {print $1} {}"]),
    ],
)
def test_a_knob_in_braces_is_what_the_configuration_sets(running, part, filled):
    study = running(part)

    RECIPE.check(study)

    job = RECIPE.job(study, TWO_RANKS)
    assert [*job.argv][1:] == filled


def test_braces_that_name_no_knob_are_refused_before_any_launch(running):
    with pytest.raises(StudyError, match=r"\{batch_size\} is not a knob; knobs are dp, fast"):
        RECIPE.check(running("--batch-size={batch_size}"))


def test_a_knob_that_may_be_left_out_needs_a_default(running):
    study = running("--chunk={chunk}")
    chunk = Dimension(name="chunk", choices=(1, 2), when="dp > 1")
    space = replace(study.space, dimensions=(*study.space.dimensions, chunk))

    with pytest.raises(StudyError, match=r"\{chunk\} is left out .* give it a default"):
        RECIPE.check(replace(study, space=space))
