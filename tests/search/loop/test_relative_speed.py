"""How good trials are against each other, whatever the machine did between their launches."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.objective import scoring
from records.study import Measure, Objective
from records.trial import History, Purpose, RaceResult, Repeat
from search.loop.relative_speed import RelativeSpeeds, Speed
from tests.support.records import failed, trial
from tests.support.search import relaunch

TIMES = scoring(Objective(expression="step_time"))


def raced(challenger: int, incumbent: int, ratio: float, low: float, high: float) -> RaceResult:
    return RaceResult(
        challenger=challenger,
        incumbent=incumbent,
        verdict="fast",
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
    )


def again(ordinal: int, step_s: float, *, series: int, number: int = 0) -> Repeat:
    return relaunch(ordinal, step_s, number, series=series, purpose=Purpose.RACE, position=ordinal)


def times(*steps_s: float) -> tuple:
    return tuple(trial(n, step_s) for n, step_s in enumerate(steps_s))


def scale(history: History) -> RelativeSpeeds:
    return RelativeSpeeds.of(history, TIMES, Measure())


def test_a_race_says_it_with_its_interval_in_either_direction():
    found = scale(History(times(2.0, 1.0), races=(raced(1, 0, 0.5, 0.4, 0.625),)))

    assert str(found.speed(1, 0)) == "2.00x (1.60 to 2.50)"
    assert str(found.speed(0, 1)) == "0.50x (0.40 to 0.62)"


def test_trials_that_were_never_raced_are_compared_by_way_of_one_that_was_with_both():
    races = (raced(1, 0, 0.5, 0.4, 0.625), raced(2, 1, 0.8, 0.8, 0.8))
    found = scale(History(times(2.0, 1.0, 0.7), races=races)).speed(2, 0)

    assert found.ratio == pytest.approx(2.5)
    assert found.low == pytest.approx(2.0)
    assert found.high == pytest.approx(3.125)


def test_a_single_launch_is_set_against_the_launches_closest_to_it_in_time():
    """The machine became ten times slower after trial 1; trial 2 is as good as it is, not worse."""
    history = History(
        times(2.0, 1.0, 10.0),
        races=(raced(1, 0, 0.5, 0.5, 0.5),),
        repeats=(again(0, 20.0, series=2), again(1, 10.0, series=2)),
    )

    assert scale(history).speed(2, 1) == Speed(ratio=pytest.approx(1.0), side_by_side=False)
    assert str(scale(history).speed(2, 1)) == "~1.00x"


def test_rounds_that_were_no_race_count_too():
    repeats = tuple(
        again(ordinal, step_s, series=2, number=number)
        for number in range(4)
        for ordinal, step_s in ((0, 2.0 + number / 100), (1, 1.0))
    )
    found = scale(History(times(9.0, 1.0), repeats=repeats)).speed(1, 0)

    assert found.side_by_side
    assert found.ratio == pytest.approx(2.0, rel=0.02)


def test_the_rounds_of_a_final_outweigh_the_one_round_of_a_race():
    race = replace(raced(1, 0, 0.25, 0.2, 0.3), ratio_low=None, ratio_high=None, round_count=1)
    launches = ((0, 1, 4.0), (1, 1, 1.0), *((n, 2, 2.0 - n) for _ in range(6) for n in (0, 1)))
    repeats = tuple(
        again(ordinal, step_s + place / 1000, series=series, number=place // 2)
        for place, (ordinal, series, step_s) in enumerate(launches)
    )
    found = scale(History(times(4.0, 1.0), races=(race,), repeats=repeats)).speed(1, 0)

    assert found.low is not None
    assert 1.9 < found.ratio < 2.3


def test_more_is_better_where_the_objective_says_so():
    trials = (trial(0, 1.0), trial(1, 1.0))
    scored = tuple(
        replace(one, score=replace(one.score, cost=-value, value=value))
        for one, value in zip(trials, (100.0, 150.0), strict=True)
    )
    found = scale(History(scored)).speed(1, 0)

    assert found == Speed(ratio=pytest.approx(1.5), side_by_side=False)


def test_what_has_no_score_or_several_objectives_is_not_compared():
    history = History((*times(1.0, 2.0), trial(2, failed())))

    assert scale(history).speed(2, 0) is None
    assert scale(history).speed(7, 0) is None
    assert scale(replace(history, weights=(("step_time", 1.0),))).speed(1, 0) is None


@given(st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=6))
def test_a_trial_is_as_good_as_itself_and_the_inverse_the_other_way(steps_s: list[float]):
    found = scale(History(times(*steps_s)))

    assert str(found.speed(1, 1)) == "1.00x (1.00 to 1.00)"
    there, back = found.speed(1, 2), found.speed(2, 1)
    assert there.ratio * back.ratio == pytest.approx(1.0)
