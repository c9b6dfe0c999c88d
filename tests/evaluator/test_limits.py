"""A limit is checked before any launch, has units, and says in words with numbers who breaks it."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.objective import UNITS, limit, scoring, scoring_of
from records.errors import StudyError
from records.study import Objective
from records.trial import Measured, MetricValue, Score
from tests.support import records as testing

KNOWN = {"peak_memory": 40e9, "memory_peak": 40e9, "step_time": 0.7, "mfu": 0.3, "rank_count": 3.0}
METRIC_OF = {"size": "peak_memory", "time": "step_time", "share": "mfu"}


def metrics(**numbers):
    return [
        MetricValue(name=name, value=value, unit="?", better="lower", version=1)
        for name, value in numbers.items()
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("peak_memory < 30 GiB", "peak_memory < 30 GiB is broken: peak_memory is 37.2529 GiB"),
        ("memory_peak<30GiB", "memory_peak<30GiB is broken: memory_peak is 37.2529 GiB"),
        ("step_time <= 500 ms", "step_time <= 500 ms is broken: step_time is 700 ms"),
        ("mfu > 40%", "mfu > 40% is broken: mfu is 30%"),
        ("rank_count % 2 == 0", "rank_count % 2 == 0 is broken: rank_count is 3 ranks"),
        ("1 s < step_time < 2 s", "1 s < step_time < 2 s is broken: step_time is 0.7 s"),
        ("peak_memory\n< 3e10", "peak_memory < 3e10 is broken: peak_memory is 4e+10 bytes"),
        ("peak_memory < 50 GB", None),
        ("50 GB > peak_memory", None),
        ("step_time * rank_count < 3 s", None),
    ],
)
def test_a_broken_limit_is_told_with_numbers_in_the_units_that_were_written(text, words):
    assert limit(text).broken(KNOWN, {}) == words


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("peak_memori < 30 GiB", "no metric is called 'peak_memori'; did you mean 'peak_memory'?"),
        ("peak_memory", "compares nothing with <, <=, >, >= or ==; write it as in 'peak_memory <"),
        ("peak_memory < 3 GiB and mfu > 1 %", "compares nothing"),
        ("peak_memory in (1, 2)", "compares nothing"),
        ("1 < 2", "names no metric"),
        ("step_time < 30 GiB", "GiB is a unit of size, but step_time is in s"),
        ("rank_count < 30 s", "s is a unit of time, but rank_count is in ranks"),
        ("peak_memory < 30 gb", "'gb' is not a unit; known are B, KiB, MiB, GiB"),
        ("peak_memory < 30 * GiB", "no metric is called 'GiB'"),
        ("peak_memory <", "is not an expression"),
        ("", "is not an expression"),
    ],
)
def test_what_is_no_limit_is_refused_in_one_line(text, sentence):
    with pytest.raises(StudyError) as refused:
        limit(text)
    assert sentence in str(refused.value)
    assert str(refused.value).startswith(f"limit {text!r}: ")
    assert "\n" not in str(refused.value)


@given(st.sampled_from(sorted(UNITS)), st.floats(0.001, 1000), st.floats(1.001, 10))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_every_unit_means_its_size(unit, amount, factor):
    measures, size = UNITS[unit]
    name = METRIC_OF[measures]
    below = limit(f"{name} < {amount!r} {unit}")
    assert below.broken({name: amount * size / factor}, {}) is None
    assert f"{name} is " in (below.broken({name: amount * size * factor}, {}) or "")


def test_a_limit_that_cannot_be_checked_is_broken_and_says_why():
    words = limit("mfu > 40 %").broken({"step_time": 1.0}, {"mfu": "nothing tells the peak"})
    assert words == "mfu > 40 % cannot be checked without mfu (mfu: nothing tells the peak)"
    divided = limit("1 / step_time < 3").broken({"step_time": 0.0}, {})
    assert divided is not None
    assert "cannot be checked: " in divided


def test_a_trial_that_breaks_a_limit_keeps_its_score():
    limits = ("step_time < 1 s", "peak_memory < 1 KiB")
    ready = scoring_of(replace(testing.study(), limits=limits))
    assert ready.score(metrics(step_time=0.5, peak_memory=1000.0)).broken == ()
    score = ready.score(metrics(step_time=2.0, peak_memory=2048.0))
    assert score == Score(
        cost=2.0,
        value=2.0,
        unit="s",
        broken=(
            "step_time < 1 s is broken: step_time is 2 s",
            "peak_memory < 1 KiB is broken: peak_memory is 2 KiB",
        ),
    )
    assert ready.shown_metrics == {"peak_memory"}


def test_a_name_of_what_the_seed_had_stands_for_its_value():
    seed, trial = (
        Measured(measurement=testing.measured().measurement, metrics=tuple(metrics(**values)))
        for values in ({"step_time": 0.5, "rank_count": 4.0}, {"step_time": 0.25})
    )
    ready = scoring(Objective(expression="step_time/step_time@seed + 0*gpus@seed"))
    assert ready.lower_is_better
    assert ready.against([testing.failed(), seed, trial]).score(trial.metrics).value == 0.5
    assert ready.against([seed]).score(seed.metrics).value == 1.0
    assert ready.score(seed.metrics).message == (
        "the objective needs gpus@seed, step_time@seed, which this trial has not "
        "(gpus@seed: the seed has no value of it; step_time@seed: the seed has no value of it)"
    )


def test_an_alias_is_the_metric_and_the_published_objective_works_as_typed():
    ready = scoring(Objective(expression="0.5*(16/gpus)+0.5*(0.44/step_time)"))
    assert not ready.lower_is_better
    assert ready.score(metrics(rank_count=8.0, step_time=0.22)).value == 2.0
    assert ready.shown_metrics == {"rank_count", "step_time"}
    absent = ready.score(metrics(step_time=1.0), {"rank_count": "nothing tells"})
    assert absent.message.endswith("needs gpus, which this trial has not (gpus: nothing tells)")
    assert scoring(Objective(expression="gpus")).unit == "ranks"
