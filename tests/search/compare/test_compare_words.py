"""A verdict as a sentence, and the interval of launches."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.timing.decision import Comparison, DecisionRule, Verdict
from search.compare.compare import ComparisonRow, Comparisons, ComparisonSide, reading
from search.compare.view import amount, verdict_words, why_words


def told(verdict, reason="x", ratio=None, interval=(None, None), *, is_time=True, detail=None):
    """A comparison of one line, and that line."""
    comparison = Comparison(
        verdict=verdict,
        reason=reason,
        ratio=ratio,
        ratio_low=interval[0],
        ratio_high=interval[1],
        round_count=6,
    )
    line = ComparisonRow(name="step_time", comparison=comparison, detail=detail)
    comparisons = Comparisons(
        a=ComparisonSide(name="a"),
        b=ComparisonSide(name="b"),
        quantity="step_time",
        unit="s",
        lines=(line,),
        rule=DecisionRule(),
        is_time=is_time,
    )
    return line, comparisons


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (
            told(Verdict.FAST, ratio=1 / 1.31, interval=(1 / 1.38, 1 / 1.24)),
            "B is 1.31x faster than A (95 % interval 1.24x to 1.38x, 6 interleaved rounds)",
        ),
        (
            told(Verdict.SLOW, ratio=1.31, interval=(1.24, 1.38), is_time=False),
            "B is 1.31x worse than A (95 % interval 1.24x to 1.38x, 6 interleaved rounds)",
        ),
        (
            told(Verdict.SAME, ratio=0.998, interval=(0.99, 1.006)),
            "no difference in practice: B is 1.002x faster than A (95 % interval "
            "1.010x faster to 1.006x slower, 6 interleaved rounds)",
        ),
        (
            told(Verdict.UNDECIDED, ratio=1.5, interval=(0.5, 4.5)),
            "undecided: B looks 1.50x slower than A (95 % interval 2.00x faster to 4.50x slower, "
            "6 interleaved rounds); x",
        ),
        (
            told(Verdict.UNDECIDED, ratio=0.5),
            "undecided: B looks 2.00x faster than A (6 interleaved rounds); x",
        ),
        (told(Verdict.UNDECIDED), "undecided, x"),
        (told(Verdict.UNKNOWN, detail="A failed: it broke"), "unknown, A failed: it broke"),
        (
            told(Verdict.UNKNOWN, "bad_time"),
            "unknown, only positive values can be compared as a ratio",
        ),
    ],
)
def test_a_verdict_is_a_sentence_about_b_against_a(of, words):
    assert verdict_words(*of) == words


@pytest.mark.parametrize(
    ("disturbed_count", "words"),
    [(2, "6 interleaved rounds, 2 disturbed"), (6, "6 interleaved rounds, all disturbed")],
)
def test_a_verdict_says_how_many_of_its_rounds_were_disturbed(disturbed_count, words):
    line, of = told(Verdict.FAST, ratio=0.5, interval=(0.4, 0.6))
    comparison = replace(line.comparison, disturbed_count=disturbed_count)

    assert words in verdict_words(replace(line, comparison=comparison), of)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("paired_interval_inside_band", "the whole interval is within the margin of 2.0 %"),
        ("too_few_rounds", "too few rounds to decide, 6 of 4 needed"),
        ("noise_exceeds_band", "launches vary more than these two differ"),
        ("one_sample", "a single value on a side does not show how much launches vary"),
        ("power_cut", "power cut"),
    ],
)
def test_every_reason_is_told_in_words(reason, words):
    assert why_words(*told(Verdict.UNDECIDED, reason)) == words


@given(
    values=st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=8),
    alpha=st.floats(0.001, 0.4),
)
def test_a_reading_lies_within_its_interval_and_among_its_launches(values, alpha):
    found = reading(values, alpha)

    assert min(values) * (1 - 1e-9) <= found.centre <= max(values) * (1 + 1e-9)
    assert (found.low is None) == (found.high is None)
    assert (found.low or found.centre) <= found.centre <= (found.high or found.centre)
    assert found.launch_count == len(values)


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [(0.5, "s", "500 ms"), (12.5, "us", "12.5 us"), (3.0, "1/s", "3 1/s"), (3.0, "", "3")],
)
def test_an_amount_is_told_in_the_unit_that_people_read(value, unit, words):
    assert amount(value, unit) == words
