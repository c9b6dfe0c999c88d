"""What is launched again, and what it decides: noise, races, halving and confirmation."""

import math
from dataclasses import replace
from random import Random

import pytest

from evaluator.objective import scoring
from evaluator.timing.decision import Verdict
from records.study import Budget, Measure, Objective
from records.trial import FailureKind, Purpose, Repeat
from search.loop.leader import noise_of, took_turns
from tests.support import records as testing
from tests.support.evaluator import Fails, InTurn, Takes

MEASURE = Measure(
    infrastructure_retries=0,
    profiled_steps=0,
    self_test_rounds=1,
    race_rounds=4,
    confirm_top=4,
    confirm_rounds=4,
    max_confirm_rounds=6,
    together="never",
)
TOGETHER = replace(MEASURE, together="auto")
ONLY_RACES = replace(MEASURE, confirm_rounds=0)
NO_REPEATS = replace(MEASURE, self_test_rounds=0, race_rounds=0, confirm_rounds=0)


def noisy(*step_times_s, noise=0.01):
    return {n: Takes(step_time_s=s, noise=noise) for n, s in enumerate(step_times_s)}


def repeats(study, purpose):
    return [r for r in study.store.repeats(study.study_id) if r.purpose is purpose]


def test_the_first_measured_trial_is_launched_again_to_learn_the_noise(tabular):
    study = tabular(noisy(0.5, 0.6, noise=0.05), measure=ONLY_RACES)

    finding = study.run()

    assert study.launched[:3] == [0, 0, 0]
    assert [r.ordinal for r in repeats(study, Purpose.SELF_TEST)] == [0, 0]
    assert 0 < finding.noise.sd < 0.3
    assert "noise: rounds of equal launches differ by" in study.said.getvalue()


def test_a_seed_that_fails_leaves_the_self_test_to_the_first_that_is_measured(tabular):
    endings = {0: Fails(kind=FailureKind.CRASH), 1: Takes(step_time_s=0.5, noise=0.01)}
    study = tabular(endings, measure=ONLY_RACES)

    study.run()

    assert [(r.series, r.ordinal) for r in repeats(study, Purpose.SELF_TEST)] == [(2, 1), (2, 1)]


def test_a_faster_trial_leads_once_it_has_won_a_race(tabular):
    study = tabular(noisy(0.5, 0.2), measure=ONLY_RACES)

    finding = study.run()

    (race,) = finding.races
    assert (race.challenger, race.incumbent) == (1, 0)
    assert race.comparison.verdict is Verdict.FAST
    assert race.comparison.round_count == 2
    assert finding.winner == 1
    assert "compared: trial 1 against trial 0: 2.5" in study.said.getvalue()


def test_a_slower_trial_is_not_raced(tabular):
    study = tabular(noisy(0.2, 0.5, 0.6), measure=ONLY_RACES)

    finding = study.run()

    assert repeats(study, Purpose.RACE) == []
    assert (finding.winner, finding.races) == (0, ())


def test_a_lucky_launch_does_not_take_the_lead(tabular):
    lucky = InTurn((Takes(step_time_s=0.3), Takes(step_time_s=0.5, noise=0.02)))
    study = tabular({**noisy(0.5), 1: lucky}, measure=ONLY_RACES)

    finding = study.run()

    assert study.history.trials[1].score.value < study.history.trials[0].score.value
    assert finding.winner == 0
    assert finding.races[0].comparison.verdict is not Verdict.FAST


def test_a_challenger_is_raced_against_who_leads(tabular):
    study = tabular(noisy(0.8, 0.4, 0.2), measure=ONLY_RACES)

    finding = study.run()

    assert [(race.challenger, race.incumbent) for race in finding.races] == [(1, 0), (2, 1)]
    assert finding.winner == 2


def test_a_race_ends_when_it_is_hopeless(tabular):
    study = tabular(noisy(0.5, 0.49, noise=0.3), measure=ONLY_RACES, noise_seed=6)

    finding = study.run()

    (race,) = finding.races
    assert race.comparison.verdict is Verdict.UNDECIDED
    assert race.comparison.settled
    assert race.comparison.round_count < ONLY_RACES.race_rounds


def test_a_challenger_that_breaks_in_a_race_does_not_lead(tabular):
    once = InTurn((Takes(step_time_s=0.2), Fails(kind=FailureKind.OUT_OF_MEMORY)))
    study = tabular({**noisy(0.5), 1: once}, measure=ONLY_RACES)

    finding = study.run()

    assert len(repeats(study, Purpose.RACE)) == 2
    assert finding.winner == 0


def test_without_races_the_lowest_cost_leads(tabular):
    study = tabular(noisy(0.5, 0.2, 0.3), measure=NO_REPEATS)

    finding = study.run()

    assert (finding.winner, finding.races, finding.noise) == (1, (), None)
    assert len(study.launched) == 3


def test_an_objective_that_has_no_ratio_is_not_raced(tabular):
    study = tabular(
        noisy(0.5, 0.2), objective="step_time - 1", direction="minimize", measure=ONLY_RACES
    )

    finding = study.run()

    assert repeats(study, Purpose.RACE) == []
    assert finding.winner == 1


def test_rounds_double_while_the_best_few_are_halved(tabular):
    times_s = (1.0, 0.50, 0.51, 0.52, 0.53)
    measure = replace(MEASURE, race_rounds=0, confirm_top=4, self_test_rounds=0)
    study = tabular(noisy(*times_s, noise=0.001), measure=measure)

    study.run()

    halving = repeats(study, Purpose.HALVING)
    assert sorted(r.ordinal for r in halving) == [1, 2, 3, 4]
    confirmed = {r.ordinal for r in repeats(study, Purpose.CONFIRM)}
    assert confirmed == {0, 1, 2}


def test_finalists_and_the_seed_are_confirmed_in_rounds_of_changing_order(tabular):
    study = tabular(noisy(0.5, 0.2, 0.3, noise=0.1), measure=MEASURE)

    study.run()

    rounds = {}
    for repeat in repeats(study, Purpose.CONFIRM):
        rounds.setdefault(repeat.round, []).append(repeat.ordinal)
    assert 4 <= len(rounds) <= 6
    assert {tuple(sorted(ordinals)) for ordinals in rounds.values()} == {(0, 1, 2)}
    assert len({tuple(ordinals) for ordinals in rounds.values()}) > 1


def test_confirmation_ends_when_everything_is_told_apart(tabular):
    clear = tabular(noisy(0.5, 0.2, noise=0.001), measure=MEASURE)
    close = tabular(noisy(0.5, 0.49, noise=0.03), measure=MEASURE, noise_seed=1)

    clear.run()
    close.run()

    assert len(repeats(clear, Purpose.CONFIRM)) == 4 * 2
    assert len(repeats(close, Purpose.CONFIRM)) > 4 * 2


def test_the_same_in_less_memory_wins(tabular):
    lean = Takes(step_time_s=0.2005, noise=0.0001, peak_memory_bytes=1)
    endings = {**noisy(0.5, 0.2, noise=0.0001), 2: lean}
    study = tabular(endings, measure=MEASURE)

    finding = study.run()

    assert finding.winner == 2
    assert finding.ties == (1,)


def test_all_launches_count_towards_their_limit(tabular):
    budget = Budget(trials=10, patience=10, launches=9)
    study = tabular(noisy(0.8, 0.4, 0.2, 0.1), measure=MEASURE, budget=budget)

    finding = study.run()

    assert len(study.launched) <= 9
    assert finding.winner is not None


def test_a_search_that_only_has_single_launches_left_says_so(tabular):
    study = tabular(
        noisy(0.8, 0.4, 0.2), measure=MEASURE, budget=Budget(trials=10, patience=10, launches=2)
    )

    finding = study.run()

    assert finding.stop_reason == "all 2 launches are used"
    assert len(study.launched) == 2


class CutShort:
    """Passes so many launches on, then is interrupted."""

    def __init__(self, evaluator, launches):
        self._evaluator = evaluator
        self._left = launches

    def evaluate(self, *arguments):
        if self._left == 0:
            raise KeyboardInterrupt
        self._left -= 1
        return self._evaluator.evaluate(*arguments)


@pytest.mark.parametrize("launches", [1, 3, 4, 5, 7, 9, 12, 15])
def test_an_interruption_anywhere_changes_nothing(tabular, launches):
    endings = noisy(0.8, 0.4, 0.2, noise=0.02)
    whole, study = tabular(endings, measure=MEASURE), tabular(endings, measure=MEASURE)
    expected = whole.run()
    evaluator = study.evaluator

    study.evaluator = CutShort(evaluator, launches)
    with pytest.raises(KeyboardInterrupt):
        study.run()
    study.evaluator = evaluator
    finding = study.run()

    assert study.launched == whole.launched
    assert finding == expected


def test_launches_that_fit_on_the_machine_take_turns(tabular):
    study = tabular(noisy(0.5, 0.2), measure=TOGETHER)

    finding = study.run()

    launched = study.store.repeats(study.study_id)
    assert all(took_turns(repeat.outcome) and repeat.position == 0 for repeat in launched)
    assert finding.winner == 1
    assert finding.against_seed.round_count == 4


class Traced:
    """Ends measured, with a metric that only traces tell."""

    def __init__(self, step_time_s):
        self._ending = Takes(step_time_s=step_time_s)

    def outcome(self, *arguments):
        found = self._ending.outcome(*arguments)
        told = replace(found.metrics[0], name="total_communication_time", value=0.1)
        return replace(found, metrics=(*found.metrics, told))


def test_launches_are_made_one_by_one_for_an_objective_that_needs_traces(tabular):
    study = tabular(
        {0: Traced(0.5), 1: Traced(0.2)},
        objective="step_time + total_communication_time",
        direction="minimize",
        measure=replace(TOGETHER, profiled_steps=1),
    )

    study.run()

    launched = study.store.repeats(study.study_id)
    assert launched
    assert not any(took_turns(repeat.outcome) for repeat in launched)


def test_a_finalist_that_breaks_spoils_one_round_only(tabular):
    once = InTurn((Takes(step_time_s=0.2), Fails(kind=FailureKind.OUT_OF_MEMORY)))
    measure = replace(TOGETHER, race_rounds=0)
    study = tabular({**noisy(0.5), 1: once}, measure=measure)

    finding = study.run()

    confirmed = [r.ordinal for r in repeats(study, Purpose.CONFIRM)]
    assert (confirmed.count(1), finding.winner, finding.unreliable) == (1, 0, (1,))


def test_the_noise_is_that_of_launches_made_alike():
    alone = Repeat(series=1, round=0, ordinal=0, outcome=testing.measured(1.0))
    turns = replace(testing.measured().measurement, turn_steps=(5,))
    together = replace(testing.measured(1.0), measurement=turns)
    launches = [
        *(replace(alone, round=n, purpose=Purpose.SELF_TEST) for n in range(4)),
        *(
            replace(
                alone,
                round=n,
                purpose=Purpose.SELF_TEST,
                series=2,
                outcome=replace(
                    together,
                    metrics=(replace(together.metrics[0], value=1.0 + n),),
                ),
            )
            for n in range(2)
        ),
    ]
    by_steps = scoring(Objective(expression="step_time"))

    assert noise_of(launches, by_steps, together=False).sd == 0
    assert noise_of(launches, by_steps, together=True).sd == pytest.approx(math.log(2))


def test_equal_sides_hardly_ever_change_the_lead(tabular):
    leads = []
    for seed in range(12):
        endings = noisy(0.5, 0.5, noise=0.05)
        study = tabular(endings, measure=ONLY_RACES, noise_seed=Random(seed).randrange(10**6))
        leads.append(study.run().winner)

    assert leads.count(0) >= 11


@pytest.mark.parametrize(
    ("trials", "launches", "confirm_rounds", "most", "kept"),
    [
        (4, 28, 4, 12, 4),
        (6, 40, 4, 12, 6),
        (10, 56, 4, 12, 8),
        (10, 56, 4, 5, 5),
        (10, 40, 0, 12, 0),
    ],
)
def test_races_keep_back_what_later_trials_and_the_final_need(
    tabular, trials, launches, confirm_rounds, most, kept
):
    lucky_once = InTurn((Takes(step_time_s=0.9), Takes(step_time_s=1.0, noise=0.05)))
    endings = {0: Takes(step_time_s=1.0, noise=0.05)} | dict.fromkeys(range(1, trials), lucky_once)
    measure = replace(MEASURE, confirm_rounds=confirm_rounds, max_confirm_rounds=most)
    budget = Budget(trials=trials, patience=trials, launches=launches)
    study = tabular(endings, measure=measure, budget=budget)

    study.run()

    final = len(repeats(study, Purpose.CONFIRM))
    left = launches - trials - len(study.store.repeats(study.study_id)) + final
    assert len(study.history) == trials
    assert len(repeats(study, Purpose.RACE)) >= 4
    assert 3 * kept <= left < 3 * kept + 8
    assert final >= 2 * confirm_rounds


def test_a_launch_ends_early_by_what_all_launches_of_the_best_show(tabular):
    asked = []

    class Asked(Takes):
        def outcome(self, study, *others):
            asked.append(study.measure.stop_above_s)
            return super().outcome(study, *others)

    lucky = InTurn((Takes(step_time_s=0.2), Takes(step_time_s=0.4)))
    endings = {0: lucky, 1: Asked(step_time_s=0.5)}
    measure = replace(ONLY_RACES, race_ratio=1.5, self_test_rounds=2)

    tabular(endings, measure=measure).run()

    assert asked[0] == pytest.approx(1.5 * 0.4)
