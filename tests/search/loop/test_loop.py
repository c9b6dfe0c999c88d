"""The loop over a table of outcomes: what it launches, when it stops, what it finds."""

from dataclasses import replace

import pytest

from evaluator.timing.decision import Verdict
from records.errors import StoreBusy
from records.study import Budget, Measure
from records.trial import Config, Failed, FailureKind, Policy
from search.loop.ports import Proposal
from search.strategies.proposers import OfflineProposer
from search.strategies.simple import CoordinateChooser, GridChooser, RandomChooser
from tests.support.evaluator import Fails, InTurn, Takes

OUT_OF_MEMORY = Fails(kind=FailureKind.OUT_OF_MEMORY)
INFRASTRUCTURE = Fails(kind=FailureKind.INFRASTRUCTURE, message="node lost")
ONCE = Measure(
    infrastructure_retries=0,
    self_test_rounds=0,
    race_rounds=0,
    confirm_rounds=0,
    profiled_steps=0,
)
"""Every trial is launched once, and nothing is launched again."""
ONE_RETRY = replace(ONCE, infrastructure_retries=1)
TOP_ONE = replace(ONCE, confirm_top=1, confirm_rounds=4, max_confirm_rounds=4)


class Interrupted:
    """Ctrl-C is pressed during the launch."""

    def outcome(self, *_):
        raise KeyboardInterrupt


class Repeating:
    """Proposes one text again and again."""

    name = "repeating"

    def __init__(self, source):
        self._policy = Policy(source=source, author=self.name)

    def propose(self, *_):
        return Proposal(policy=self._policy)


def seconds(*step_times_s):
    return {n: Takes(step_time_s=step_time_s) for n, step_time_s in enumerate(step_times_s)}


def budget(**limits):
    return Budget(**{"trials": 10, "patience": 10, "max_failures": 10, **limits})


def kinds(history):
    return [t.outcome.kind for t in history if isinstance(t.outcome, Failed)]


@pytest.mark.parametrize("chooser", [CoordinateChooser, RandomChooser, GridChooser])
def test_a_search_with_budget_left_tries_every_configuration_and_finds_the_best(tabular, chooser):
    study = tabular(
        seconds(0.5, 0.4, 0.1, 0.3), proposer=lambda space: OfflineProposer(chooser(space))
    )

    finding = study.run()

    assert finding.stop_reason == "every feasible configuration was tried"
    assert study.history.trials[finding.winner].config == Config({"n": 2})
    assert finding.result.centre == pytest.approx(0.1)
    assert finding.against_seed.verdict is Verdict.FAST
    assert finding.against_seed.ratio == pytest.approx(0.2)
    assert finding.ties == ()


def test_the_seed_policy_is_trial_0(tabular):
    study = tabular(seconds(0.5, 0.4))

    study.run()

    assert study.history.trials[0].policy.author == "seed"
    assert study.history.trials[0].config == Config({"n": 0})


def test_a_search_ends_when_its_launches_are_used(tabular):
    study = tabular(seconds(0.5, 0.4, 0.3, 0.2), budget=budget(trials=3), measure=ONCE)

    finding = study.run()

    assert finding.stop_reason == "all 3 trials are used"
    assert study.launched == [0, 1, 2]


def test_a_search_ends_when_patience_is_out(tabular):
    study = tabular(seconds(0.1, 0.2, 0.2, 0.2), budget=budget(patience=2), measure=ONCE)

    finding = study.run()

    assert finding.stop_reason == "2 launches in a row brought no improvement"
    assert len(study.history) == 3


def test_a_search_ends_when_too_many_trials_in_a_row_fail(tabular):
    endings = dict.fromkeys(range(5), OUT_OF_MEMORY)
    study = tabular(endings, budget=budget(max_failures=3))

    finding = study.run()

    assert finding.stop_reason == "3 trials in a row failed"
    assert (finding.winner, finding.result, finding.against_seed) == (None, None, None)
    assert study.launched == [0, 1, 2]


def test_a_search_proposes_nothing_after_its_time_limit(tabular):
    study = tabular(
        seconds(0.4, 0.3, 0.2),
        budget=budget(max_wall_s=60.0),
        clock=iter([0.0, 0.0, 59.0, 61.0]).__next__,
        measure=ONCE,
    )

    finding = study.run()

    assert finding.stop_reason == "the time limit of 60 s is reached"
    assert len(study.history) == 2


def test_a_failed_trial_has_no_score_and_never_wins(tabular):
    study = tabular({0: Takes(step_time_s=0.5), 1: OUT_OF_MEMORY, 2: OUT_OF_MEMORY})

    finding = study.run()

    assert finding.winner == 0
    assert [t.score for t in study.history][1:] == [None, None]


def test_an_infrastructure_failure_is_launched_again(tabular):
    study = tabular({0: InTurn((INFRASTRUCTURE, Takes(step_time_s=0.5)))}, measure=ONE_RETRY)

    study.run()

    assert study.launched == [0, 0]
    assert study.history.trials[0].attempts == 2
    assert study.history.trials[0].score.value == pytest.approx(0.5)


def test_an_infrastructure_failure_costs_no_launch_of_the_budget(tabular):
    endings = {0: Takes(step_time_s=0.5), 1: INFRASTRUCTURE, 2: Takes(step_time_s=0.4)}
    study = tabular(endings, budget=budget(trials=2), measure=ONCE)

    finding = study.run()

    assert finding.stop_reason == "all 2 trials are used"
    assert study.launched == [0, 1, 2]
    assert kinds(study.history) == [FailureKind.INFRASTRUCTURE]


def test_a_duplicate_is_not_launched(tabular):
    again = "def generate_config(workload, environment):\n    return {'n': 0.0}\n"
    study = tabular(
        seconds(0.5, 0.4),
        proposer=lambda _space: Repeating(again),
        budget=budget(max_failures=2),
        measure=ONCE,
    )

    finding = study.run()

    assert study.launched == [0]
    assert kinds(study.history) == [FailureKind.DUPLICATE, FailureKind.DUPLICATE]
    assert "same configuration as trial 0, which scored 0.5 s" in study.said.getvalue()
    assert finding.winner == 0


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("def generate_config(workload, environment):\n    return 1 / 0\n", "policy_error"),
        ("import os\n", "policy_error"),
        ("def generate_config(workload, environment):\n    return {'n': 7}\n", "invalid_config"),
        ("def generate_config(workload, environment):\n    return {'m': 0}\n", "invalid_config"),
    ],
)
def test_a_policy_without_a_valid_configuration_is_not_launched(tabular, source, kind):
    study = tabular(
        seconds(0.5, 0.4), proposer=lambda _space: Repeating(source), budget=budget(max_failures=1)
    )

    study.run()

    assert kinds(study.history) == [FailureKind(kind)]
    assert study.history.launched_count == 1


def test_a_seed_that_fails_leaves_the_search_going(tabular):
    study = tabular(seconds(0.5, 0.4), seed="x = 1\n", measure=ONCE)

    finding = study.run()

    assert kinds(study.history) == [FailureKind.POLICY_ERROR]
    assert study.history.trials[finding.winner].config == Config({"n": 1})
    assert finding.against_seed is None


def test_a_trial_that_trained_something_else_never_wins(tabular):
    wrong = Takes(step_time_s=0.1, losses=(4.0, 9.0))
    study = tabular({0: Takes(step_time_s=0.5), 1: wrong})

    finding = study.run()

    assert finding.winner == 0
    assert kinds(study.history) == [FailureKind.INVALID_CONFIG]
    assert "computed something else" in study.history.trials[1].outcome.message


def test_an_interrupted_trial_is_done_again_with_the_policy_on_record(tabular):
    endings = {0: Takes(step_time_s=0.5), 1: InTurn((Interrupted(), Takes(step_time_s=0.4)))}
    study = tabular(endings, measure=ONCE)

    with pytest.raises(KeyboardInterrupt):
        study.run()
    status = study.store.find("").status
    (intent,) = study.store.pending(study.study_id)
    finding = study.run()

    assert status == "interrupted"
    assert study.launched == [0, 1, 1]
    assert study.history.trials[1].policy == intent.policy
    assert study.history.trials[1].started_at == intent.started_at
    assert study.store.pending(study.study_id) == ()
    assert finding.winner == 1


def test_an_interrupted_re_measuring_repeats_no_launch_on_record(tabular):
    stopped = InTurn((*[Takes(step_time_s=0.5)] * 3, Interrupted(), Takes(step_time_s=0.5)))
    study = tabular({0: stopped, 1: Takes(step_time_s=0.4)})

    with pytest.raises(KeyboardInterrupt):
        study.run()
    before = study.store.repeats(study.study_id)
    study.run()

    after = study.store.repeats(study.study_id)
    assert after[: len(before)] == before
    assert sorted((c.round, c.ordinal) for c in after) == [(r, n) for r in range(4) for n in (0, 1)]


def test_a_finished_study_launches_nothing_and_finds_the_same_again(tabular):
    study = tabular(seconds(0.5, 0.4))

    first = study.run()
    launched = list(study.launched)
    second = study.run()

    assert second == first
    assert study.launched == launched


def test_what_a_killed_search_left_in_its_folder_is_gone_though_nothing_is_left_to_launch(tabular):
    study = tabular(seconds(0.5, 0.4))
    study.run()
    folder = study.store.workdir(study.study_id)
    (folder / "trial1").mkdir(parents=True)

    study.run()

    assert not folder.exists()


def test_finalists_and_the_seed_are_launched_in_turns(tabular):
    study = tabular(seconds(0.5, 0.1, 0.2, 0.3))

    study.run()

    rounds = [study.launched[4 + 3 * turn : 7 + 3 * turn] for turn in range(4)]
    assert [sorted(finalists) for finalists in rounds] == [[0, 1, 2]] * 4
    assert len({tuple(finalists) for finalists in rounds}) > 1


def test_a_lucky_first_launch_does_not_win(tabular):
    lucky = InTurn((Takes(step_time_s=0.1), Takes(step_time_s=0.5)))
    study = tabular({0: Takes(step_time_s=0.4), 1: lucky})

    finding = study.run()

    assert study.history.best.ordinal == 1
    assert finding.winner == 0
    assert finding.result.centre == pytest.approx(0.4)


def test_what_was_re_measured_counts_more_than_an_unlucky_first_launch(tabular):
    unlucky = InTurn((Takes(step_time_s=0.5), Takes(step_time_s=0.1)))
    endings = {0: Takes(step_time_s=0.4), 1: unlucky, 2: Takes(step_time_s=0.45)}
    study = tabular(endings, budget=budget(trials=2))

    first = study.run()
    study.budget, study.measure = budget(trials=3), TOP_ONE
    second = study.run()

    assert (first.winner, second.winner) == (1, 1)
    assert study.launched[-8:].count(1) == 4


def test_configurations_that_launches_do_not_tell_apart_are_named_as_ties(tabular):
    endings = {n: Takes(step_time_s=s, noise=0.05) for n, s in enumerate((0.5, 0.2, 0.2))}
    study = tabular(endings)

    finding = study.run()

    assert {finding.winner, *finding.ties} == {1, 2}


def test_equal_noise_gives_equal_searches(tabular):
    endings = {n: Takes(step_time_s=s, noise=0.3) for n, s in enumerate((0.3, 0.25, 0.2))}

    findings = [tabular(endings).run(), tabular(endings).run()]
    other = tabular(endings, noise_seed=1).run()

    assert findings[0] == findings[1] != other


def test_a_metric_that_is_better_when_higher_is_searched_upwards(tabular):
    study = tabular(seconds(0.5, 0.25), objective="tokens_per_s")

    finding = study.run()

    assert finding.winner == 1
    assert finding.unit == "tokens/s"
    assert finding.result.centre == pytest.approx(16 * 128 / 0.25)
    assert finding.against_seed.ratio == pytest.approx(0.5)


def test_an_objective_without_an_answer_is_a_failure(tabular):
    study = tabular(seconds(0.5), objective="total_communication_time")

    finding = study.run()

    assert finding.winner is None
    assert kinds(study.history) == [FailureKind.METRIC_ERROR]


def test_a_study_in_other_hands_is_left_alone(tabular):
    study = tabular(seconds(0.5))

    with study.store.lock(study.study_id), pytest.raises(StoreBusy):
        study.run()

    assert study.launched == []


def test_what_a_launch_left_is_kept_and_its_folder_emptied(tabular):
    study = tabular(seconds(0.5))

    study.run()

    (log,) = study.history.trials[0].outcome.artifacts
    kept = study.store.artifacts.path(log.digest).read_text(encoding="utf-8")
    assert kept == "launch 0 of n=0\n"
    assert not study.store.workdir(study.study_id).exists()
