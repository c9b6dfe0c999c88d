"""Which trials the next round of a final launches: those that may change what is announced."""

import math
from random import Random

import pytest

from evaluator.objective import scoring
from evaluator.timing.decision import Verdict
from records.study import Measure, Objective
from records.trial import Purpose
from search.loop.final import Final, expected_gain
from search.loop.leader import compared, find_leader
from tests.support import records as testing
from tests.support.search import relaunch, seconds

SCORING = scoring(Objective(expression="step_time"))
MEASURE = Measure(confirm_rounds=4, max_confirm_rounds=12)
SERIES = 9
NOISE = {
    0: (1.0, -1.0, 0.5, -0.5, 1.0, -1.0),
    1: (-1.0, 0.5, 1.0, -0.5, -1.0, 1.0),
    2: (0.5, 1.0, -1.0, -0.5, 1.0, 0.5),
    3: (-0.5, -0.5, 0.5, 0.5, 0.5, -0.5),
}


def rounds(times_s, noise, count=4):
    """Launches of these trials in so many rounds, with noise that differs from trial to trial."""
    return [
        relaunch(ordinal, time_s * math.exp(noise * NOISE[ordinal][number]), number, series=SERIES)
        for number in range(count)
        for ordinal, time_s in times_s.items()
    ]


def leader_of(firsts, noise=0.02, launches=()):
    """The leader of trials that took this long at first, of which 1 led, after these launches."""
    raced = [
        relaunch(n, firsts[n] * math.exp(noise * NOISE[n][k]), k, purpose=Purpose.RACE)
        for k in range(4)
        for n in (0, 1)
    ]
    return find_leader(testing.history(*firsts), [*raced, *launches], SCORING, MEASURE)


def next_round(firsts, launches, noise=0.02, left=40):
    """The next round of a final of trials that took this long at first, of which 1 led."""
    final = Final(
        leader=leader_of(firsts, noise),
        first=sorted({launch.ordinal for launch in launches}) or [0, 1],
        launch_count=len(launches) + left,
        scoring=SCORING,
        measure=MEASURE,
    )
    return final.next_round(launches)


@pytest.mark.parametrize(
    ("times_s", "noise", "count", "expected"),
    [
        ({0: 3.0, 1: 1.0, 2: 1.02}, 0.01, 3, (0, 1, 2)),
        ({0: 3.0, 1: 1.0, 2: 1.02}, 0.01, 4, ()),
        ({0: 1.03, 1: 1.0}, 0.01, 4, (0, 1)),
        ({0: 1.2, 1: 1.0}, 0.02, 4, (0, 1)),
        ({0: 1.2, 1: 1.0}, 0.005, 4, ()),
    ],
    ids=["too few", "nothing to gain", "undecided", "decided but wide", "decided and narrow"],
)
def test_the_seed_stays_until_the_gain_is_decided_and_well_known(times_s, noise, count, expected):
    firsts = (*times_s.values(), *[9.0] * (3 - len(times_s)))
    assert next_round(firsts, rounds(times_s, noise, count)) == expected


def test_a_trial_that_may_still_win_is_launched_beside_the_leader_without_a_decided_seed():
    final = rounds({0: 3.0, 1: 1.0}, 0.04)

    assert next_round((3.0, 1.0, 1.01), final, noise=0.04) == (1, 2)
    assert next_round((3.0, 1.0, 1.30), final, noise=0.04) == ()


def in_rounds(ordinal, time_s, numbers, noise=0.04):
    """Launches of one trial in rounds of the final."""
    return [
        relaunch(ordinal, time_s * math.exp(noise * NOISE[ordinal][n]), n, series=SERIES)
        for n in numbers
    ]


def test_a_trial_that_is_not_shown_to_beat_the_seed_does_not_win_over_one_that_is():
    firsts = (3.0, 1.0, 1.0)
    # Ahead of the first in four rounds, and of the seed in three: too few.
    launches = [
        *in_rounds(0, 3.0, range(4)),
        *in_rounds(1, 1.0, range(5)),
        *in_rounds(2, 0.96, range(1, 5)),
    ]
    more = [*in_rounds(0, 3.0, (5,)), *in_rounds(2, 0.96, (5,))]

    assert leader_of(firsts, launches=launches).history.incumbent == 1
    assert next_round(firsts, launches) == (0, 1, 2)
    assert leader_of(firsts, launches=[*launches, *more]).history.incumbent == 2


@pytest.mark.parametrize(
    ("times_s", "left", "expected"),
    [({0: 1.1, 1: 1.0}, 40, (0, 1)), ({0: 1.1, 1: 1.0}, 3, ()), ({0: 1.0, 1: 1.0}, 40, ())],
    ids=["may be shown faster", "not by the launches left", "equal"],
)
def test_rounds_end_where_no_further_one_can_show_a_trial_to_be_faster(times_s, left, expected):
    firsts = (*times_s.values(), 9.0)

    assert next_round(firsts, rounds(times_s, 0.06), noise=0.06, left=left) == expected


@pytest.mark.parametrize(("earlier", "rounds_made"), [(0, 4), (1, 3), (4, 0)])
def test_a_seed_that_nothing_may_beat_is_launched_alone_only_until_its_time_is_known(
    earlier, rounds_made
):
    known = [relaunch(0, 1.0, k, series=1, purpose=Purpose.SELF_TEST) for k in range(earlier)]
    final = Final(
        leader=find_leader(testing.history(1.0, 9.0), known, SCORING, MEASURE),
        first=(0,),
        launch_count=40,
        scoring=SCORING,
        measure=MEASURE,
    )
    made = []
    while final.next_round(made):
        made.append(relaunch(0, 1.0, len(made), series=SERIES))

    assert len(made) == rounds_made


@pytest.mark.parametrize(
    ("ratio", "noise", "verdict"),
    [
        (1.1, 0.02, Verdict.SLOW),
        (1.04, 0.02, Verdict.SLOW),
        (1.0, 0.001, Verdict.SAME),
        (1.0, 0.3, Verdict.UNDECIDED),
    ],
    ids=["clear", "less clear", "equal", "hopeless"],
)
def test_a_race_goes_on_until_its_trials_are_told_apart_or_cannot_be(ratio, noise, verdict):
    """Also where the first is the faster, so that no search would launch the other again."""
    race = Final(
        leader=find_leader(testing.history(1.0, ratio), [], SCORING, MEASURE),
        first=(0, 1),
        launch_count=40,
        scoring=SCORING,
        measure=MEASURE,
        is_race=True,
    )
    random, made = Random(1), []

    while ordinals := race.next_round(made):
        assert ordinals == (0, 1)
        number = len(made) // 2
        for ordinal, time_s in enumerate((1.0, ratio)):
            noisy_s = time_s * math.exp(random.gauss(0, noise))
            made.append(relaunch(ordinal, noisy_s, number, series=SERIES))

    found = compared(made, 1, 0, SCORING, MEASURE)
    assert (found.verdict, found.settled) == (verdict, True)
    assert MEASURE.confirm_rounds <= found.round_count < MEASURE.max_confirm_rounds


def test_trials_that_may_well_be_faster_join_the_first_rounds():
    assert next_round((1.0, 0.9, 0.9, 1.5), [], noise=0.04) == (0, 1, 2)


def test_a_winner_that_the_seed_was_not_launched_with_is_compared_with_it():
    late = [
        relaunch(n, s * math.exp(0.01 * NOISE[n][k]), 4 + k, series=SERIES)
        for k in range(5)
        for n, s in {1: 1.0, 2: 0.8}.items()
    ]
    launches = [*rounds({0: 3.0, 1: 1.0}, 0.01), *late]

    assert 0 in next_round((3.0, 1.0, 0.8), launches, noise=0.02)


def test_a_broken_finalist_is_not_launched_again():
    broken = relaunch(1, testing.failed(), 0, series=SERIES)

    assert next_round((2.0, 1.0, 1.5), [broken, *rounds({0: 2.0, 2: 1.5}, 0.01, 1)]) == (0, 2)


@pytest.mark.parametrize(
    ("log_ratio", "error", "gain"),
    [(0.1, 0.0, 0.0), (-0.1, 0.0, 0.1), (0.0, 0.1, 0.1 / math.sqrt(2 * math.pi))],
)
def test_the_expected_gain_is_what_the_other_may_be_faster(log_ratio, error, gain):
    assert expected_gain(log_ratio, error) == pytest.approx(gain)


def test_the_seed_leaves_a_final_that_it_lost_long_ago(tabular):
    study = tabular(seconds(3.0, 1.0, 1.01, noise=0.01), measure=Measure(together="never"))

    finding = study.run()

    launches = [r for r in study.store.repeats(study.study_id) if r.purpose is Purpose.CONFIRM]
    assert finding.against_seed.verdict == "fast"
    assert sum(launch.ordinal == 0 for launch in launches) == MEASURE.confirm_rounds
