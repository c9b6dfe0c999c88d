"""The loop over a table of outcomes: what it launches, when it stops, what it finds."""

import re
from dataclasses import replace

import pytest

from evaluator.timing.decision import Verdict
from records.errors import StoreBusy
from records.machine import NodeRecord
from records.study import Budget
from records.trial import Config, Failed, FailureKind, Policy
from search.loop.ports import Proposal
from search.strategies.offline import CoordinateChooser, GridChooser, RandomChooser
from search.strategies.proposers import OfflineProposer
from tests.support.evaluator import Fails, InTurn, TabularEvaluator, Takes
from tests.support.search import ONCE, seconds

OUT_OF_MEMORY = Fails(kind=FailureKind.OUT_OF_MEMORY)
INFRASTRUCTURE = Fails(kind=FailureKind.INFRASTRUCTURE, message="node lost")


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


def budget(**limits):
    return Budget(**{"trials": 10, "patience": 10, "max_failures": 10, **limits})


def kinds(history):
    return [t.outcome.kind for t in history if isinstance(t.outcome, Failed)]


def deciding(body):
    return f"def generate_config(workload, environment):\n    return {body}\n"


@pytest.mark.parametrize("chooser", [CoordinateChooser, RandomChooser, GridChooser])
def test_a_search_with_budget_left_tries_every_configuration_and_finds_the_best(tabular, chooser):
    study = tabular(
        seconds(0.5, 0.4, 0.1, 0.3), proposer=lambda space: OfflineProposer(chooser(space))
    )

    finding = study.run()

    seed = study.history.trials[0]
    assert (seed.policy.author, seed.config) == ("seed", Config({"n": 0}))
    assert finding.stop_reason == "every feasible configuration was tried"
    assert study.history.trials[finding.winner].config == Config({"n": 2})
    assert finding.result.centre == pytest.approx(0.1)
    assert finding.against_seed.verdict is Verdict.FAST
    assert finding.against_seed.ratio == pytest.approx(0.2)
    assert finding.ties == ()
    launched = list(study.launched)
    assert study.run() == finding  # a finished study launches nothing more
    assert study.launched == launched


FAILING = dict.fromkeys(range(5), OUT_OF_MEMORY)
ONE_LOST = {**seconds(0.5, 0.4, 0.4), 1: INFRASTRUCTURE}  # costs no launch of the budget


@pytest.mark.parametrize(
    ("endings", "limits", "reason", "launched"),
    [
        (seconds(0.5, 0.4, 0.3, 0.2), {"trials": 3}, "all 3 trials are used", 3),
        (seconds(0.1, 0.2, 0.2, 0.2), {"patience": 2}, "2 measured trials in a row brought no", 3),
        (FAILING, {"max_failures": 3}, "3 trials in a row failed", 3),
        (seconds(0.4, 0.3, 0.2), {"max_wall_s": 60.0}, "the time limit of 60 s leaves no", 2),
        (ONE_LOST, {"trials": 2}, "all 2 trials are used", 3),
    ],
)
def test_a_search_ends_when_a_limit_is_reached(tabular, endings, limits, reason, launched):
    study = tabular(endings, measure=ONCE, budget=budget(**limits))
    study.clock = lambda: (0.0, 20.0, 45.0)[min(len(study.launched), 2)]

    assert study.run().stop_reason.startswith(reason)
    assert study.launched == [*range(launched)]


def test_node_hours_are_recorded_over_all_runs_and_end_the_search(tabular):
    limits = {"max_node_hours": 0.1, "trials": 9, "patience": 9}
    endings = seconds(*[0.5] * 9)
    stopped = {**endings, 2: InTurn((Interrupted(), endings[2]))}
    study = tabular(stopped, measure=ONCE, budget=budget(**limits))
    study.clock = lambda: 20.0 * len(study.launched)
    with pytest.raises(KeyboardInterrupt):
        study.run()
    held_s = study.store.node_s(study.study_id)
    assert study.study.environment.node_count == 2
    assert held_s == 2 * 20.0 * len(study.launched)

    finding = study.run()

    assert finding.stop_reason == "the limit of 0.1 node-hours leaves no time for another trial"
    assert study.store.node_s(study.study_id) == 2 * 20.0 * len(study.launched) <= 0.1 * 3600
    assert study.store.runs(study.study_id)[0].node_s == held_s


def test_nodes_that_a_search_is_given_are_recorded_and_slow_ones_named(tabular):
    study = tabular(seconds(0.5, 0.4), measure=ONCE, budget=budget(trials=2))
    nodes = (NodeRecord(name="a", switch="s1"), NodeRecord(name="b", slow="it crawls", used=False))
    study.nodes = nodes

    study.run()

    assert "NOTICE: node b is slow: it crawls; it is left out" in study.said.getvalue()
    [run] = study.store.runs(study.study_id)
    assert run.nodes == nodes
    assert run.study.environment.topology == "1 node, 1 on switch s1"


@pytest.mark.parametrize(
    ("reason", "kind", "words"),
    [
        ("timeout", FailureKind.INFRASTRUCTURE, "the time limit of the search ended the launch"),
        ("rank_failed", FailureKind.HANG, "as the table says"),
    ],
    ids=["ended_by_it", "hung_before"],
)
def test_no_launch_passes_the_time_limit_and_one_that_it_ends_did_not_hang(
    tabular, reason, kind, words
):
    endings = {**seconds(0.5, 0.4), 2: Fails(kind=FailureKind.HANG, reason=reason)}
    study = tabular(endings, measure=ONCE, budget=budget(max_wall_s=100.0))
    timeouts_s: list[float] = []

    class Watched(TabularEvaluator):
        def evaluate(self, given, config, workdir):
            timeouts_s.append(given.measure.timeout_s)
            return super().evaluate(given, config, workdir)

    study.evaluator = Watched(endings=study.evaluator.endings)
    study.clock = lambda: (0.0, 10.0, 20.0, 100.0)[min(len(study.launched), 3)]

    study.run()

    assert timeouts_s[:3] == [100.0, 90.0, 80.0]
    cut = study.history.trials[2].outcome
    assert cut.kind is kind
    assert cut.message == (f"{words} after 80 s" if reason == "timeout" else words)


@pytest.mark.parametrize(
    ("ending", "kind", "message"),
    [
        (OUT_OF_MEMORY, FailureKind.OUT_OF_MEMORY, "as the table says"),
        (
            Takes(step_time_s=0.1, losses=(4.0, 9.0)),
            FailureKind.INVALID_CONFIG,
            "computed something else",
        ),
    ],
    ids=["failed", "other work"],
)
def test_a_failed_trial_has_no_score_and_never_wins(tabular, ending, kind, message):
    study = tabular({0: Takes(step_time_s=0.5), 1: ending})

    finding = study.run()

    assert finding.winner == 0
    assert study.history.trials[1].score is None
    assert kinds(study.history) == [kind]
    assert message in study.history.trials[1].outcome.message


def test_without_a_measured_trial_there_is_no_winner(tabular):
    study = tabular(seconds(0.5), objective="total_communication_time")

    finding = study.run()

    assert (finding.winner, finding.result, finding.against_seed) == (None, None, None)
    assert kinds(study.history) == [FailureKind.METRIC_ERROR]


def test_an_infrastructure_failure_is_launched_again_after_a_wait_that_grows(tabular):
    waited_s = []
    endings = {0: InTurn((INFRASTRUCTURE, INFRASTRUCTURE, INFRASTRUCTURE, Takes(step_time_s=0.5)))}
    measure = replace(ONCE, infrastructure_retries=3)
    study = tabular(endings, measure=measure, sleep=waited_s.append)

    study.run()

    assert study.launched == [0] * 4
    assert study.history.trials[0].attempts == 4
    assert study.history.trials[0].lost_launches == (FailureKind.INFRASTRUCTURE,) * 3
    assert study.history.trials[0].score.value == pytest.approx(0.5)
    assert [wait_s for wait_s in waited_s if wait_s >= 1] == [1.0, 2.0, 4.0]


def test_a_duplicate_is_not_launched(tabular):
    study = tabular(
        seconds(0.5, 0.4),
        proposer=lambda _space: Repeating(deciding("{'n': 0.0}")),
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
        (deciding("1 / 0"), "policy_error"),
        ("import os\n", "policy_error"),
        (deciding("{'n': 7}"), "invalid_config"),
        (deciding("{'m': 0}"), "invalid_config"),
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


def test_what_a_launch_left_is_kept_and_its_folder_emptied(tabular):
    study = tabular(seconds(0.5))

    study.run()

    folder = study.store.workdir(study.study_id)
    (log,) = study.history.trials[0].outcome.artifacts
    kept = study.store.artifacts.path(log.digest).read_text(encoding="utf-8")
    assert kept == "launch 0 of n=0\n"
    assert not folder.exists()
    (folder / "trial1").mkdir(parents=True)  # as a killed search leaves it
    study.run()
    assert not folder.exists()


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
    study.budget = budget(trials=3)
    study.measure = replace(ONCE, confirm_top=1, confirm_rounds=4, max_confirm_rounds=4)
    second = study.run()

    assert (first.winner, second.winner) == (1, 1)
    assert study.launched[-8:].count(1) == 4


def test_configurations_that_launches_do_not_tell_apart_are_named_as_ties(tabular):
    finding = tabular(seconds(0.5, 0.2, 0.2, noise=0.05)).run()

    assert {finding.winner, *finding.ties} == {1, 2}


def test_equal_noise_gives_equal_searches(tabular):
    endings = seconds(0.3, 0.25, 0.2, noise=0.3)

    findings = [tabular(endings).run(), tabular(endings).run()]
    other = tabular(endings, noise_seed=1).run()

    assert findings[0] == findings[1] != other


def test_a_metric_that_is_better_when_higher_is_searched_upwards(tabular):
    finding = tabular(seconds(0.5, 0.25), objective="tokens_per_s").run()

    assert (finding.winner, finding.unit) == (1, "tokens/s")
    assert finding.result.centre == pytest.approx(16 * 128 / 0.25)
    assert finding.against_seed.ratio == pytest.approx(0.5)


def test_a_study_in_other_hands_is_left_alone(tabular):
    study = tabular(seconds(0.5))

    with study.store.lock(study.study_id), pytest.raises(StoreBusy):
        study.run()

    assert study.launched == []


class LeavingEvaluator(TabularEvaluator):
    """Leaves what a real launch leaves when its ranks hang or fail."""

    def evaluate(self, study, config, workdir):
        (workdir / "rank1.stacks.txt").write_text("Current thread 0x1\n  in read\n")
        (workdir / "rank1.error.json").write_text("{}")
        return super().evaluate(study, config, workdir)


def test_a_trial_that_hung_is_shown_with_its_first_cause_and_the_stacks_of_its_ranks(
    tabular, cclsearch, tmp_path
):
    cause = "no sign of life for 5 s in timed: rank 1 in read"
    hang = Fails(kind=FailureKind.HANG, message=cause)
    study = tabular({0: Takes(step_time_s=0.5), 1: hang}, measure=ONCE)
    study.evaluator = LeavingEvaluator(endings=study.evaluator.endings)
    study.run()

    def printed(*arguments):
        return cclsearch("trial", *arguments, "--store", study.root).out

    lines = printed("show", "1").splitlines()
    printed("files", "1", "--to", tmp_path / "copied")
    kept = {path.name for path in (tmp_path / "copied").iterdir()}

    assert "  failed: hang at launch" in lines
    assert f"  first cause: {cause}" in lines
    assert {"rank0.log", "rank1.error.json", "rank1.stacks.txt"} <= kept
    stacks = "== rank1.stacks.txt\nCurrent thread 0x1\n  in read\n"
    assert printed("logs", "1", "--rank", "1") == stacks
    assert re.search(r"^== rank0\.log$", printed("logs", "1"), re.MULTILINE)
