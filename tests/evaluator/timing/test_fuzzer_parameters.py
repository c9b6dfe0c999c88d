"""A parameter is drawn as its distribution says; one that says nothing is refused."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evaluator.timing.fuzzer import (
    FuzzedParameter,
    Fuzzer,
    FuzzerError,
    ParameterAlias,
    check_aliases,
)


def drawn(count=4000, seed=11, **distribution):
    parameter = FuzzedParameter(name="x", **distribution)
    generator = np.random.default_rng(seed)
    return [parameter.draw(generator) for _ in range(count)]


def alias_of(name, target):
    return FuzzedParameter(name=name, distribution={ParameterAlias(target): 1.0})


def test_uniform_whole_numbers_have_equal_chances_and_include_both_bounds():
    values = drawn(minval=-1, maxval=3, distribution="uniform")
    assert {type(value) for value in values} == {int}
    assert stats.chisquare([values.count(value) for value in range(-1, 4)]).pvalue > 0.01


def test_uniform_real_numbers_fill_their_range():
    values = drawn(minval=2, maxval=6.0, distribution="uniform")
    assert stats.kstest(values, stats.uniform(2, 4).cdf).pvalue > 0.01


def test_loguniform_from_1_to_100_is_below_10_half_of_the_time():
    whole = drawn(minval=1, maxval=100, distribution="loguniform")
    real = drawn(minval=1.0, maxval=100.0, distribution="loguniform")
    assert np.mean(np.array(whole) < 10) == pytest.approx(0.5, abs=0.02)
    assert np.mean(np.array(real) < 10) == pytest.approx(0.5, abs=0.02)
    assert stats.kstest(np.log(real), stats.uniform(0, math.log(100)).cdf).pvalue > 0.01


def test_loguniform_whole_numbers_reach_both_bounds():
    values = drawn(minval=1, maxval=4, distribution="loguniform")
    expected = [4000 * math.log1p(1 / value) / math.log(5) for value in range(1, 5)]
    assert stats.chisquare([values.count(value) for value in range(1, 5)], expected).pvalue > 0.01


def test_a_mapping_gives_each_value_its_probability():
    values = drawn(distribution={"ring": 0.7, "tree": 0.3, "never": 0.0})
    assert stats.chisquare([values.count("ring"), values.count("tree")], [2800, 1200]).pvalue > 0.01
    assert "never" not in values


@given(
    low=st.integers(1, 10**15), width=st.integers(0, 10**15), seed=st.integers(0, 100),
    kind=st.sampled_from(["uniform", "loguniform"]), whole=st.booleans(),
)  # fmt: skip
def test_what_is_drawn_lies_in_its_bounds(low, width, seed, kind, whole):
    high = low + width if whole else float(low + width)
    values = drawn(20, seed, minval=low, maxval=high, distribution=kind)
    assert all(low <= value <= high for value in values)
    assert {type(value) for value in values} == {int if whole else float}


@given(weights=st.lists(st.floats(0.01, 100), min_size=1, max_size=30))
def test_probabilities_may_miss_1_by_rounding_only(weights):
    chances = {value: weight / sum(weights) for value, weight in enumerate(weights)}
    assert drawn(1, distribution=chances)[0] in chances
    with pytest.raises(FuzzerError, match="make them sum to 1"):
        drawn(1, distribution={value: chance * (1 + 1e-8) for value, chance in chances.items()})


def test_a_specification_does_not_follow_later_changes_of_its_mapping():
    chances = {"a": 1.0}
    parameter = FuzzedParameter(name="x", distribution=chances)
    chances["b"] = 1.0
    assert parameter.distribution == {"a": 1.0}


@pytest.mark.parametrize(
    ("distribution", "message"),
    [
        ({"distribution": {}}, "make them sum to 1"),
        ({"distribution": {1: 0.5, 2: 0.4}}, "make them sum to 1"),
        ({"distribution": {1: 1.5, 2: -0.5}}, "none below zero"),
        ({"distribution": {1: math.nan}}, "none below zero"),
        ({"distribution": {1: 1.0}, "minval": 1}, "leave one of them out"),
        ({"distribution": "uniform"}, "give minval and maxval"),
        ({"distribution": "uniform", "minval": 1}, "give minval and maxval"),
        ({"distribution": "uniform", "minval": 2, "maxval": 1}, "in order"),
        ({"distribution": "uniform", "minval": 0, "maxval": math.inf}, "finite bounds"),
        ({"distribution": "uniform", "minval": math.nan, "maxval": 1}, "finite bounds"),
        ({"distribution": "loguniform", "minval": 0, "maxval": 1}, "above zero"),
        ({"distribution": "normal", "minval": 0, "maxval": 1}, "unknown; give 'uniform'"),
    ],
)
def test_what_is_no_distribution_is_refused(distribution, message):
    with pytest.raises(FuzzerError, match=f"parameter 'x': .*{message}"):
        FuzzedParameter(name="x", **distribution)


def test_an_alias_takes_the_value_at_the_end_of_its_chain():
    base = FuzzedParameter(name="c", minval=0.0, maxval=1.0, distribution="uniform")
    parameters = [alias_of("a", "b"), alias_of("b", "c"), base]
    for sample in Fuzzer(parameters=parameters).take(5):
        assert sample.parameters["a"] == sample.parameters["b"] == sample.parameters["c"]


def test_an_alias_may_be_one_value_among_others():
    parameters = [
        FuzzedParameter(name="a", distribution={ParameterAlias("b"): 0.25, 0: 0.75}),
        FuzzedParameter(name="b", distribution={1: 1.0}),
    ]
    values = [sample.parameters["a"] for sample in Fuzzer(parameters=parameters).take(400)]
    assert stats.chisquare([values.count(0), values.count(1)], [300, 100]).pvalue > 0.01


@pytest.mark.parametrize(
    "parameters",
    [
        [alias_of("a", "a")],
        [alias_of("a", "b"), alias_of("b", "c"), alias_of("c", "a")],
        [
            FuzzedParameter(name="a", distribution={ParameterAlias("b"): 0.5, 1: 0.5}),
            alias_of("b", "a"),
        ],
    ],
    ids=["itself", "three", "by chance"],
)
def test_aliases_that_could_go_round_are_refused(parameters):
    with pytest.raises(FuzzerError, match=r"go round: .*a.* let one of them have a value"):
        Fuzzer(parameters=parameters)


def test_an_alias_of_nothing_is_refused():
    with pytest.raises(FuzzerError, match=r"'a': its alias 'z' names no parameter; add"):
        check_aliases([alias_of("a", "z")])
