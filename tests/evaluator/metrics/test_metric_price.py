"""What a step costs in money, where a price is given, and why it is not known where none is."""

from dataclasses import replace

import pytest

from evaluator.metrics.base import Absent, Evidence
from evaluator.metrics.registry import measure, metric
from evaluator.recipes.builtin import counts_ranks
from records.errors import StudyError
from records.study import Environment, Objective
from tests.support import records as testing

PRICED = replace(testing.ENVIRONMENT, accelerator_usd_per_hour=3.6)
EVIDENCE = Evidence(
    step_times_s=(0.5, 0.5, 0.5), tokens_per_step=2000, rank_count=4, environment=PRICED
)


def answer(name, evidence):
    return measure(metric(name), evidence)


def test_a_step_costs_its_time_on_all_ranks():
    cost = answer("cost_per_step", EVIDENCE)
    assert cost.value == pytest.approx(0.5 * 4 * 3.6 / 3600)
    assert (cost.unit, cost.better) == ("USD", "lower")
    tokens = answer("cost_per_million_tokens", EVIDENCE)
    assert tokens.value == pytest.approx(0.002 / 2000 * 1e6)


@pytest.mark.parametrize("name", ["cost_per_step", "cost_per_million_tokens"])
@pytest.mark.parametrize("environment", [None, testing.ENVIRONMENT])
def test_without_a_price_there_is_none_and_it_says_where_to_give_it(name, environment):
    told = answer(name, replace(EVIDENCE, environment=environment))
    assert isinstance(told, Absent)
    assert "accelerator_usd_per_hour under [environment]" in told.reason


def test_without_steps_or_tokens_the_reason_is_that():
    assert answer("cost_per_step", replace(EVIDENCE, step_times_s=())).reason == "no step was timed"
    told = answer("cost_per_million_tokens", replace(EVIDENCE, tokens_per_step=0))
    assert told.reason == "a step processes no tokens"


@pytest.mark.parametrize("price", [0.0, -1.0])
def test_a_price_is_above_zero(price):
    with pytest.raises(StudyError, match="accelerator_usd_per_hour"):
        replace(testing.ENVIRONMENT, accelerator_usd_per_hour=price)


def test_an_environment_on_record_without_a_price_has_none():
    assert Environment.__dataclass_fields__["accelerator_usd_per_hour"].default is None


@pytest.mark.parametrize(
    ("main", "more", "counts"),
    [
        ("step_time", (), False),
        ("cost_per_million_tokens", (), True),
        ("16/gpus", (), True),
        ("step_time", ("gpus",), True),
        ("step_time", ("peak_memory",), False),
    ],
)
def test_fewer_ranks_may_be_better_where_any_objective_counts_them(main, more, counts):
    study = replace(
        testing.study(),
        objective=Objective(expression=main),
        more_objectives=tuple(Objective(expression=text) for text in more),
    )
    assert counts_ranks(study) is counts
