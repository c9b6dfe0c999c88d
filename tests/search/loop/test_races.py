"""What is launched again, and what it decides: noise, races and confirmation."""

from dataclasses import replace
from itertools import permutations
from random import Random

import pytest

from evaluator.timing.decision import Verdict
from records.study import Budget, Measure
from records.trial import FailureKind, Purpose
from search.loop.budget import extend_budget
from search.loop.leader import took_turns
from search.loop.study_result import ConfirmingRounds
from search.report.data import StudyRecord, report_lines
from tests.support import records as testing
from tests.support.evaluator import Fails, InTurn, Takes
from tests.support.search import CONFIRMED, ONCE, CutShort, seconds

RACES = replace(ONCE, self_test_rounds=1, race_rounds=4)
MEASURE = replace(RACES, confirm_top=4, confirm_rounds=4, max_confirm_rounds=6)
TOGETHER = replace(MEASURE, together="auto")
QUIET, BUSY = (testing.conditions(others_cpu_share=share) for share in (0.0, 0.9))
NOISE_KNOWN = replace(RACES, self_test_rounds=0)


def noisy(*step_times_s, noise=0.01):
    return seconds(*step_times_s, noise=noise)


def busy(step_time_s):
    return Takes(step_time_s=step_time_s, conditions=BUSY)


def repeats(study, purpose):
    return [r for r in study.store.repeats(study.study_id) if r.purpose is purpose]


def report_of(study, finding):
    return dict(report_lines(finding, StudyRecord.of(study.study_id, study.store), ""))


def test_the_first_measured_trial_is_launched_again_to_learn_the_noise(tabular):
    study = tabular(noisy(0.5, 0.6, noise=0.05), measure=RACES)

    finding = study.run()

    assert study.launched[:3] == [0, 0, 0]
    assert [r.ordinal for r in repeats(study, Purpose.SELF_TEST)] == [0, 0]
    assert 0 < finding.noise.sd < 0.3
    assert "noise: rounds of equal launches differ by" in study.said.getvalue()


def test_a_seed_that_fails_leaves_the_self_test_to_the_first_that_is_measured(tabular):
    endings = {0: Fails(kind=FailureKind.CRASH), 1: Takes(step_time_s=0.5, noise=0.01)}
    study = tabular(endings, measure=RACES)

    study.run()

    assert [(r.series, r.ordinal) for r in repeats(study, Purpose.SELF_TEST)] == [(2, 1), (2, 1)]


def test_a_faster_trial_leads_once_it_has_won_a_race_against_who_leads(tabular):
    study = tabular(noisy(0.5, 0.25, 0.1), measure=RACES)

    finding = study.run()

    assert [(race.challenger, race.incumbent) for race in finding.races] == [(1, 0), (2, 1)]
    assert {race.comparison.verdict for race in finding.races} == {Verdict.FAST}
    # One round shows that twice as fast is faster, once the noise is known well enough.
    assert [race.comparison.round_count for race in finding.races] == [2, 1]
    assert finding.winner == 2
    assert "compared: trial 1 against trial 0: 2.0" in study.said.getvalue()


def test_two_trials_are_both_launched_where_the_noise_is_unknown_whichever_looks_faster(tabular):
    """So a race that a user asks for compares them; with a self-test nothing was to be gained."""
    measure = replace(RACES, race_rounds=0, confirm_top=2, confirm_rounds=4)
    tested = tabular(noisy(0.5, 0.9, noise=0.02), measure=measure)
    raced = tabular(noisy(0.5, 0.9, noise=0.02), measure=replace(measure, self_test_rounds=0))

    tested.run()
    finding = raced.run()

    assert {r.ordinal for r in repeats(tested, Purpose.CONFIRM)} <= {0}
    assert [r.ordinal for r in repeats(raced, Purpose.CONFIRM)].count(1) >= 4
    assert (finding.winner, finding.against[1].verdict) == (0, Verdict.FAST)


def test_a_race_of_two_that_its_first_trial_leads_still_ends_with_which_is_faster(tabular):
    """What is asked of a race; a search stops where no other can be shown faster than its seed."""
    measure = replace(NOISE_KNOWN, race_rounds=0, confirm_rounds=4, max_confirm_rounds=12)
    study = {"measure": measure, "budget": Budget(trials=2)}
    searched = tabular(noisy(0.5, 0.51, noise=0.01), **study)
    raced = tabular(noisy(0.5, 0.51, noise=0.01), **study, replay_of="20260101-000000-bbbb")

    assert searched.run().against[1].verdict is Verdict.UNDECIDED
    assert raced.run().against[1].verdict is Verdict.FAST


LUCKY = InTurn((Takes(step_time_s=0.3), Takes(step_time_s=0.5, noise=0.02)))
BREAKS = InTurn((Takes(step_time_s=0.2), Fails(kind=FailureKind.OUT_OF_MEMORY)))


@pytest.mark.parametrize(("challenger", "rounds"), [(LUCKY, 2), (BREAKS, 1)])
def test_a_challenger_that_was_lucky_or_breaks_does_not_take_the_lead(tabular, challenger, rounds):
    study = tabular({**noisy(0.5), 1: challenger}, measure=RACES)

    finding = study.run()

    assert study.history.trials[1].score.value < study.history.trials[0].score.value
    assert finding.winner == 0
    assert len(repeats(study, Purpose.RACE)) == 2 * rounds
    assert all(race.comparison.verdict is not Verdict.FAST for race in finding.races)


def test_a_race_ends_when_it_is_hopeless(tabular):
    study = tabular(noisy(0.5, 0.49, noise=0.3), measure=RACES, noise_seed=6)

    (race,) = study.run().races

    assert race.comparison.verdict is Verdict.UNDECIDED
    assert race.comparison.settled
    assert race.comparison.round_count < RACES.race_rounds


@pytest.mark.parametrize(
    ("endings", "fields", "winner"),
    [
        (noisy(0.2, 0.5, 0.6), {}, 0),
        (noisy(0.5, 0.2, 0.3), {"measure": ONCE}, 1),
        (noisy(0.5, 0.2), {"objective": "step_time - 1", "direction": "minimize"}, 1),
    ],
    ids=["slower", "no races", "no ratio"],
)
def test_a_race_is_only_run_where_it_can_change_the_lead(tabular, endings, fields, winner):
    study = tabular(endings, **{"measure": RACES, **fields})

    finding = study.run()

    assert (finding.winner, finding.races) == (winner, ())
    assert repeats(study, Purpose.RACE) == []


@pytest.mark.parametrize(("faster_s", "raced"), [(0.49, 0), (0.25, 4)])
def test_a_race_is_begun_only_if_it_is_likely_to_show_the_challenger_faster(
    tabular, faster_s, raced
):
    study = tabular(noisy(0.5, faster_s, noise=0.1), measure=MEASURE, noise_seed=6)

    study.run()

    assert len(repeats(study, Purpose.RACE)) == raced


@pytest.mark.parametrize(("launches", "most"), [(None, 8), (60, 60)], ids=["by default", "asked"])
def test_a_third_of_long_launches_confirms_unless_the_study_asks_for_more(tabular, launches, most):
    endings = noisy(*[9.0] * 12, noise=0.2)  # seven steps, so a launch takes a minute
    budget = Budget(trials=12, patience=12, launches=launches)
    study = tabular(endings, measure=Measure(together="never"), budget=budget)

    study.run()

    repeated = study.store.repeats(study.study_id)
    assert len(study.history) == 12
    assert 8 <= len(repeated) <= most


def test_finalists_and_the_seed_are_confirmed_in_rounds_of_changing_order(tabular):
    study = tabular(noisy(0.5, 0.2, 0.2, noise=0.05), measure=MEASURE, noise_seed=6)

    study.run()

    rounds = {}
    for repeat in repeats(study, Purpose.CONFIRM):
        rounds.setdefault(repeat.round, []).append(repeat.ordinal)
    assert 4 <= len(rounds) <= 6
    assert {tuple(sorted(ordinals)) for ordinals in rounds.values()} == {(0, 1, 2)}
    assert len({tuple(ordinals) for ordinals in rounds.values()}) > 1


def test_confirmation_ends_when_everything_is_told_apart(tabular):
    clear = tabular(noisy(0.5, 0.2, noise=0.001), measure=MEASURE)
    close = tabular(noisy(0.5, 0.47, noise=0.02), measure=MEASURE, noise_seed=2)

    clear.run()
    close.run()

    assert len(repeats(clear, Purpose.CONFIRM)) == 4 * 2
    assert len(repeats(close, Purpose.CONFIRM)) > 4 * 2


def test_the_same_in_less_memory_wins(tabular):
    lean = Takes(step_time_s=0.2005, noise=0.0001, peak_memory_bytes=1)
    finding = tabular({**noisy(0.5, 0.2, noise=0.0001), 2: lean}, measure=MEASURE).run()

    assert (finding.winner, finding.ties) == (2, (1,))


@pytest.mark.parametrize("launches", [9, 2])
def test_all_launches_count_towards_their_limit(tabular, launches):
    budget = Budget(trials=10, patience=10, launches=launches)
    study = tabular(noisy(0.8, 0.4, 0.2, 0.1), measure=MEASURE, budget=budget)

    finding = study.run()

    assert len(study.launched) <= launches
    assert finding.winner is not None
    assert launches > 2 or finding.stop_reason == "all 2 launches are used"


def in_conditions(step_time_s, *conditions):
    takes = [Takes(step_time_s=step_time_s, noise=0.02, conditions=c) for c in conditions]
    return InTurn(tuple(takes))


DISTURBED = {
    0: in_conditions(0.5, QUIET, BUSY, QUIET, QUIET, BUSY, QUIET),
    1: in_conditions(0.4, BUSY, BUSY, BUSY, QUIET),
    2: in_conditions(0.3, QUIET, QUIET, QUIET, BUSY, QUIET, QUIET, BUSY),
}
FEWER = replace(NOISE_KNOWN, confirm_top=2, confirm_rounds=3, max_confirm_rounds=4)


NOISY_SEED = InTurn(tuple(Takes(step_time_s=s) for s in (0.5, 0.45, 0.62, 0.5, 0.4, 0.55)))
SPARED = replace(ONCE, self_test_rounds=2, confirm_top=2, confirm_rounds=4, max_confirm_rounds=8)


def with_an_unlucky_trial(*later_s):
    """Finalists 1 and 3, and a trial 2 whose first launch alone was slow."""
    unlucky = InTurn(tuple(Takes(step_time_s=s) for s in (0.28, *later_s)))
    return seconds(0.5, 0.25, 0.28, 0.26) | {0: NOISY_SEED, 2: unlucky}


@pytest.mark.parametrize(
    ("endings", "measure", "launches"),
    [
        *((noisy(0.8, 0.4, 0.2, noise=0.02), MEASURE, n) for n in (1, 3, 4, 5, 7, 9, 12, 15)),
        *((DISTURBED, FEWER, n) for n in (4, 5, 9, 12, 14, 17)),
        *((with_an_unlucky_trial(0.12), SPARED, n) for n in (21, 24, 28)),
    ],
)
def test_an_interruption_anywhere_changes_nothing(tabular, endings, measure, launches):
    whole, study = tabular(endings, measure=measure), tabular(endings, measure=measure)
    expected = whole.run()
    evaluator = study.evaluator

    study.evaluator = CutShort(evaluator, launches)
    with pytest.raises(KeyboardInterrupt):
        study.run()
    study.evaluator = evaluator

    assert study.run() == expected
    assert study.launched == whole.launched


def test_launches_that_fit_on_the_machine_take_turns(tabular):
    study = tabular(noisy(0.5, 0.2), measure=TOGETHER)

    finding = study.run()

    launched = study.store.repeats(study.study_id)
    assert all(took_turns(repeat.outcome) and repeat.position == 0 for repeat in launched)
    assert finding.winner == 1
    assert finding.against_seed.round_count == 4


@pytest.mark.parametrize(
    ("step_s", "most_alone", "turn_count"),
    [
        (0.5, 20, 40),  # 40 turns take a sixth of the time limit
        (0.6, 20, 20),
        (0.5, 200, 40),
        (0.5, 8, 16),
        (0.6, 8, 16),
    ],
)
def test_launches_in_turns_time_more_steps_where_steps_are_short(
    tabular, step_s, most_alone, turn_count
):
    measure = replace(TOGETHER, max_timed_steps=most_alone, timeout_s=120.0)
    study = tabular(seconds(step_s, 0.2), measure=measure)

    study.run()

    final = repeats(study, Purpose.CONFIRM)
    assert {len(r.outcome.measurement.slowest_rank_s) for r in final} == {turn_count}


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
    study = tabular({**noisy(0.5), 1: BREAKS}, measure=replace(TOGETHER, race_rounds=0))

    finding = study.run()

    confirmed = [r.ordinal for r in repeats(study, Purpose.CONFIRM)]
    assert (confirmed.count(1), finding.winner, finding.unreliable) == (1, 0, (1,))


def test_equal_sides_hardly_ever_change_the_lead(tabular):
    seeds = [Random(seed).randrange(10**6) for seed in range(12)]
    studies = [tabular(noisy(0.5, 0.5, noise=0.05), measure=RACES, noise_seed=s) for s in seeds]

    assert [study.run().winner for study in studies].count(0) >= 11


@pytest.mark.parametrize(
    ("trials", "launches", "confirm_rounds", "most", "kept"),
    [
        (4, 28, 4, 12, 4),
        (6, 40, 4, 12, 5),
        (10, 56, 4, 12, 7),
        (10, 56, 4, 5, 5),
        (10, 40, 0, 12, 0),
    ],
)
def test_races_keep_back_what_later_trials_and_the_final_need(
    tabular, trials, launches, confirm_rounds, most, kept
):
    lucky_once = InTurn((Takes(step_time_s=0.5), Takes(step_time_s=1.0, noise=0.05)))
    endings = {0: Takes(step_time_s=1.0, noise=0.05)} | dict.fromkeys(range(1, trials), lucky_once)
    measure = replace(MEASURE, confirm_rounds=confirm_rounds, max_confirm_rounds=most)
    budget = Budget(trials=trials, patience=trials, launches=launches)
    study = tabular(endings, measure=measure, budget=budget)

    study.run()

    final = len(repeats(study, Purpose.CONFIRM))
    left = launches - trials - len(study.store.repeats(study.study_id)) + final
    assert len(study.history) == trials
    assert len(repeats(study, Purpose.RACE)) >= 4
    assert 4 * kept <= left < 4 * kept + 8
    assert final >= 2 * confirm_rounds


def test_a_launch_ends_early_by_what_all_launches_of_the_best_show(tabular):
    asked = []

    class Asked(Takes):
        def outcome(self, study, *others):
            asked.append(study.measure.stop_above_s)
            return super().outcome(study, *others)

    lucky = InTurn((Takes(step_time_s=0.2), Takes(step_time_s=0.4)))
    measure = replace(RACES, race_ratio=1.5, self_test_rounds=2)
    tabular({0: lucky, 1: Asked(step_time_s=0.5)}, measure=measure).run()

    assert asked[0] == pytest.approx(1.5 * 0.4)


def test_a_disturbed_round_of_a_race_is_run_again_and_decides_nothing(tabular):
    # In its disturbed round the challenger looks slow; in the others it is twice as fast.
    challenger = Takes(step_time_s=0.25, noise=0.01, conditions=QUIET)
    endings = {
        0: Takes(step_time_s=0.5, noise=0.01, conditions=QUIET),
        1: InTurn((challenger, busy(2.0), challenger)),
    }
    study = tabular(endings, measure=NOISE_KNOWN)

    finding = study.run()

    (race,) = finding.races
    assert finding.winner == 1
    assert race.comparison.round_count == 2
    assert {repeat.round for repeat in study.store.repeats(study.study_id)} == {0, 1, 2}
    lines = report_of(study, finding)
    assert lines["disturbed"].startswith("1 of 8 launches, the last because other processes used")
    assert lines["left out"] == "1 disturbed or incomplete round, replaced by further rounds"


def test_a_round_that_lost_a_launch_to_the_infrastructure_is_run_again_and_counted_apart(tabular):
    challenger = Takes(step_time_s=0.25, noise=0.01)
    taken = Fails(kind=FailureKind.PREEMPTED, message="the nodes were lost")
    endings = {0: Takes(step_time_s=0.5, noise=0.01), 1: InTurn((challenger, taken, challenger))}
    study = tabular(endings, measure=NOISE_KNOWN)

    finding = study.run()

    (race,) = finding.races
    assert finding.winner == 1
    assert race.comparison.round_count == 2
    assert {repeat.round for repeat in study.store.repeats(study.study_id)} == {0, 1, 2}
    assert report_of(study, finding)["lost launches"] == (
        "1 preempted; not the configurations' fault, and nothing was learned from them"
    )


def test_the_best_is_found_although_the_budget_ends_before_disturbed_rounds_are_replaced(tabular):
    measure = replace(ONCE, confirm_top=2, confirm_rounds=4)
    endings = {0: busy(0.09), 1: busy(0.07), 2: busy(0.03)}
    study = tabular(endings, measure=measure, budget=Budget(trials=2, patience=9))
    study.run()
    launched = len(study.launched)
    # One trial more, and two rounds of a final.
    study.budget = Budget(trials=3, patience=9, launches=launched + 1 + 2 * 3)

    finding = study.run()

    assert finding.winner == 2
    assert finding.confirming == ConfirmingRounds(count=2, disturbed_count=2, seed_launched=True)
    report = report_of(study, finding)
    assert report["caveat"] == "other work on the machine disturbed 2 of the 2 deciding rounds"
    assert "2 interleaved rounds, all disturbed by other work" in report["against the seed"]
    assert "left out" not in report


def test_a_race_of_disturbed_rounds_is_decided_with_a_caveat(tabular):
    study = tabular({0: busy(0.5), 1: busy(0.25)}, measure=NOISE_KNOWN)

    finding = study.run()

    (race,) = finding.races
    assert race.comparison.verdict is Verdict.FAST
    assert race.comparison.disturbed_count == race.comparison.round_count == 3
    assert finding.winner == 1
    assert "compared: trial 1 against trial 0: 2.00x better" in study.said.getvalue()
    assert "3 interleaved rounds, all disturbed by other work" in study.said.getvalue()


def test_a_seed_that_fails_in_the_final_was_launched_again(tabular):
    lost = InTurn((Takes(step_time_s=0.5), Fails(kind=FailureKind.INFRASTRUCTURE)))
    measure = replace(ONCE, confirm_rounds=4)
    study = tabular({0: lost, 1: Takes(step_time_s=0.25)}, measure=measure)

    words = report_of(study, study.run())["against the seed"]
    assert words == "not compared, no launch of the seed in the final was measured"


@pytest.mark.parametrize("seed_conditions", [QUIET, BUSY], ids=["seed quiet", "seed disturbed"])
@pytest.mark.parametrize(
    ("again_s", "rounds_raced", "winner"), [(0.25, 2, 1), (0.7, 1, 0)], ids=["ahead", "behind"]
)
def test_a_trial_that_was_slower_while_it_was_disturbed_is_raced(
    tabular, seed_conditions, again_s, rounds_raced, winner
):
    seed = Takes(step_time_s=0.5, conditions=seed_conditions)
    study = tabular({0: seed, 1: InTurn((busy(0.9), busy(again_s)))}, measure=NOISE_KNOWN)

    finding = study.run()

    assert finding.winner == winner
    assert [race.comparison.round_count for race in finding.races] == [rounds_raced]


@pytest.mark.parametrize(
    ("share", "left"), [(0.9, (1,)), (0.4, (1,)), (0.3, ())], ids=["busy", "enough", "too_little"]
)
def test_a_disturbed_launch_rules_nothing_out_that_others_may_have_slowed_so_much(
    tabular, share, left
):
    """It took 2.5 times as long: others with 40 % of the cores may slow it 2.8 times."""
    conditions = testing.conditions(others_cpu_share=share)
    disturbed = Takes(step_time_s=0.5, conditions=conditions)
    endings = {
        0: Takes(step_time_s=0.2),
        1: InTurn((disturbed, Takes(step_time_s=0.1))),
        2: Takes(step_time_s=0.5),
    }

    finding = tabular(endings, measure=ONCE).run()

    assert finding.winner == 0
    assert finding.not_ruled_out == left


def test_a_disturbed_trial_is_not_raced_against_one_that_costs_nothing(tabular):
    endings = {0: Takes(step_time_s=0.5), 1: busy(0.75)}
    study = tabular(endings, measure=NOISE_KNOWN, objective="step_time - 0.5", direction="minimize")

    assert study.run().races == ()


def test_a_trial_that_others_cannot_have_slowed_so_much_is_not_raced(tabular):
    slightly = testing.conditions(others_cpu_share=0.3)
    slow = Takes(step_time_s=1.5, conditions=slightly)
    study = tabular({0: Takes(step_time_s=0.5), 1: slow}, measure=NOISE_KNOWN)

    assert study.run().races == ()


@pytest.mark.parametrize("order", [*permutations((0.07, 0.03, 0.05))])
def test_exact_times_are_told_apart_by_default_although_the_final_is_disturbed(tabular, order):
    endings = {n: Takes(step_time_s=s, conditions=QUIET) for n, s in enumerate(order)}
    # The first seven are its trial, the self-test and a race.
    endings[0] = InTurn((endings[0],) * 7 + (busy(order[0]),) * 9)
    study = tabular(endings, measure=Measure(together="never"), budget=Budget(trials=3))

    finding = study.run()

    assert order[finding.winner] == 0.03
    assert finding.ties == ()
    if finding.winner == 0:
        assert finding.confirming is None  # the launches of the self-test and the races are enough
    else:
        assert finding.confirming.count >= Measure().confirm_rounds
        assert finding.against_seed.verdict is Verdict.FAST


def test_a_study_that_is_resumed_may_launch_a_whole_final_again(tabular):
    measure = Measure(race_rounds=0, together="never", profiled_steps=0)
    endings = {0: busy(0.09), 1: busy(0.07), 2: busy(0.03)}
    study = tabular(endings, measure=measure, budget=Budget(trials=2))
    study.run()
    study.budget = extend_budget(study.study_id, 1, study.store).budget

    finding = study.run()

    assert finding.winner == 2
    assert finding.against_seed.verdict is Verdict.FAST
    assert finding.ties == ()


def test_a_resumed_study_never_has_fewer_launches_than_it_would_have_had_as_one(tabular):
    study = tabular({0: busy(0.1), 1: busy(0.2)}, measure=NOISE_KNOWN, budget=Budget(trials=2))
    study.run()

    first, second = (extend_budget(study.study_id, 1, study.store).budget for _ in range(2))

    assert first.launch_limit >= Budget(trials=3).launch_limit
    assert second.launch_limit >= first.launch_limit


def test_the_final_of_a_search_that_runs_out_of_time_ends_within_the_limit(tabular):
    budget = Budget(trials=40, patience=40, max_wall_s=50)
    endings = {n: Takes(step_time_s=0.1, noise=0.3) for n in range(40)}
    study = tabular(endings, measure=Measure(together="never"), budget=budget)
    study.clock = lambda: float(len(study.launched))

    finding = study.run()

    assert finding.confirming.count >= Measure().confirm_rounds
    assert len(study.launched) <= 50


def test_no_second_round_of_the_final_is_begun_after_the_time_limit(tabular):
    budget = Budget(trials=40, patience=40, max_wall_s=50)
    endings = {n: Takes(step_time_s=0.1, noise=0.3) for n in range(40)}
    study = tabular(endings, measure=Measure(together="never"), budget=budget)

    # Launches of the final are slower.
    study.clock = lambda: len(study.launched) + 8.0 * len(repeats(study, Purpose.CONFIRM))

    study.run()

    assert len({repeat.round for repeat in repeats(study, Purpose.CONFIRM)}) == 1


@pytest.mark.parametrize(
    ("limit_s", "launched", "skipped"),
    [
        (35.0, 2, ["race: ", "final: "]),  # 15 s are left for launches of 10 s each
        (45.0, 4, ["final: "]),
        (95.0, 8, []),
    ],
)
def test_no_round_is_begun_that_would_not_end_within_the_time_limit(
    tabular, limit_s, launched, skipped
):
    endings = {0: Takes(step_time_s=10 / 7), 1: Takes(step_time_s=9.9 / 7)}
    measure = replace(CONFIRMED, race_rounds=1, together="never", confirm_rounds=2)
    budget = Budget(trials=2, max_wall_s=limit_s)
    study = tabular(endings, measure=measure, budget=budget)
    study.clock = lambda: 10.0 * len(study.launched)

    study.run()

    said = study.said.getvalue()
    assert len(study.launched) == launched
    assert [name for name in ("race: ", "final: ") if name in said] == skipped


def test_a_round_ends_where_a_launch_took_the_time_of_the_next(tabular):
    endings = {n: Takes(step_time_s=10 / 7) for n in range(2)}
    measure = replace(CONFIRMED, together="never")
    study = tabular(endings, measure=measure, budget=Budget(trials=2, max_wall_s=50.0))
    study.clock = lambda: (0.0, 10.0, 20.0, 45.0)[min(len(study.launched), 3)]

    study.run()

    assert len(study.launched) == 3
    said = "final: the time limit leaves no time for another launch, which would take about 10 s"
    assert said in study.said.getvalue()


def test_a_self_test_leaves_time_for_another_trial_and_the_final(tabular):
    endings = {n: Takes(step_time_s=1 / 7) for n in range(4)}  # a launch takes a second
    study = tabular(endings, budget=Budget(trials=4, max_wall_s=7))
    study.clock = lambda: float(len(study.launched))

    study.run()

    assert len(study.history.trials) > 1
    assert not repeats(study, Purpose.SELF_TEST)
