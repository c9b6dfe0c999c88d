"""Searches for one policy over several contexts: what is launched, who wins, what is said."""

import json
from dataclasses import dataclass, replace

import pytest

from records.trial import Config, FailureKind, Policy, Purpose
from search.loop.leader import study_leader
from search.loop.ports import Proposal
from search.report.summary import StudyRecord, report_lines
from tests.support.evaluator import Fails, Takes

ADAPTIVE = """
def generate_config(workload, environment):
    return {"n": 2 if workload["global_batch"] > 16 else 1}
"""


@dataclass
class Scripted:
    """Proposes these programs, one after the other."""

    sources: tuple[str, ...]
    name = "scripted"

    def propose(self, _study, history):
        if len(history) > len(self.sources):
            return None
        return Proposal(policy=Policy(source=self.sources[len(history) - 1], author=self.name))


ONE = "def generate_config(workload, environment):\n    return {'n': 1}\n"


def takes(*seconds: float) -> dict[int, Takes]:
    """A table: configuration n takes the n-th of these."""
    return {n: Takes(step_time_s=each) for n, each in enumerate(seconds)}


@pytest.fixture(scope="module")
def two(searched, context, study_with):
    """A search over the study's own work and a bigger one: what is good there is bad here."""

    def make(*sources: str, held_out=(), tables=None):
        study = study_with(context("big", global_batch=32), *held_out)
        table = {"example": takes(2.0, 1.0, 4.0), "big": takes(2.0, 4.0, 1.0), **(tables or {})}
        return searched(study, table, proposer=lambda _: Scripted(sources))

    return make


@pytest.fixture(scope="module")
def held_out(two, context):
    """Makes a search that is also judged in contexts that it never launched while it searched."""

    def make(*sources):
        later = context("later", held_out=True, global_batch=64)
        return two(*sources, held_out=(later,), tables={"later": takes(4.0, 9.0, 1.0)})

    return make


@pytest.fixture(scope="module")
def finished(held_out, context):
    """A finished search with two contexts that were held out, and what it found."""
    search = held_out(ADAPTIVE, ONE)
    last = context("last", held_out=True, global_batch=8)
    search.study = replace(search.study, contexts=(*search.study.contexts, last))
    search.store.replace_study(search.study_id, search.study)
    search.tables.add("last", takes(1.0, 1.0, 9.0))
    return search, search.run()


def test_a_policy_that_adapts_beats_every_single_configuration(finished):
    search, finding = finished

    winner = search.history.trials[finding.winner]
    assert winner.config == Config({"n": 1, "big.n": 2})
    assert winner.score.value == pytest.approx(1.0)
    assert finding.against_seed.ratio == pytest.approx(0.5)


def test_every_launch_is_one_in_every_context_that_is_not_held_out(finished):
    names = [name for name, _ in finished[0].tables.launches]
    searching = names[: names.index("later")]

    assert searching == ["example", "big"] * (len(searching) // 2)


def test_held_out_contexts_are_launched_last_and_in_rounds(finished):
    search, finding = finished
    launches = search.tables.launches
    at_the_end = launches[[name for name, _ in launches].index("later") :]

    assert [name for name, _ in at_the_end] == ["later", "last"] * 8
    repeats = search.store.repeats(search.study_id)
    purposes = [repeat.purpose for repeat in repeats]
    assert purposes == [Purpose.CONFIRM] * 8 + [Purpose.HELD_OUT] * 8
    assert {repeat.ordinal for repeat in repeats[-8:]} == {0, finding.winner}


def test_the_report_tells_each_context_and_the_mean_of_those_held_out(finished):
    search, finding = finished

    ratios = {found.name: found.against_seed.ratio for found in finding.contexts}
    assert ratios == {
        "example": pytest.approx(0.5),
        "big": pytest.approx(0.5),
        "later": pytest.approx(0.25),
        "last": pytest.approx(1.0),
        "the mean of all held out": pytest.approx(0.5),
    }
    lines = dict(report_lines(finding, StudyRecord.of(search.study_id, search.store), ""))
    assert lines["against the seed in big"].startswith(
        "2.00x better (95 % interval 2.00 to 2.00, 4 interleaved"
    )
    assert lines["against the seed in later (held out)"].startswith("4.00x better")
    assert lines["against the seed in last (held out)"].startswith("no difference in practice")


def test_a_trial_tells_each_context_and_its_ratio_to_the_seed(finished, cclsearch):
    search, _ = finished

    shown = cclsearch("trial", "show", "1", "--store", search.root)
    facts = json.loads(cclsearch("trial", "show", "1", "--json", "--store", search.root).out)

    assert "in context example: 1 s, 0.500 times the seed's" in shown.out
    assert "in context big: 1 s, 0.500 times the seed's" in shown.out
    assert "contexts/big/rank0.log" in shown.out
    assert [one["ratio_to_seed"] for one in facts["contexts"]] == [0.5, 0.5]


def test_a_search_that_was_killed_goes_on_with_what_was_held_out(held_out):
    search = held_out(ADAPTIVE)
    search.tables.killed_at = 4 + 16 + 5
    with pytest.raises(KeyboardInterrupt):
        search.run()
    kept, led = search.store.repeats(search.study_id), study_leader(search.row, search.store)
    search.tables.killed_at = None

    finding = search.run()

    repeats = search.store.repeats(search.study_id)
    assert repeats[: len(kept)] == kept
    assert sum(repeat.purpose is Purpose.HELD_OUT for repeat in repeats) == 8
    assert finding.contexts[-1].against_seed.round_count == 4
    assert study_leader(search.row, search.store) == led


def test_without_launches_left_the_report_says_so(held_out):
    search = held_out(ADAPTIVE)
    search.study = replace(search.study, budget=replace(search.study.budget, launches=10))

    finding = search.run()

    lines = dict(report_lines(finding, StudyRecord.of(search.study_id, search.store), ""))
    assert (
        lines["against the seed in later (held out)"]
        == "not compared, there were no launches left for it"
    )


def test_offline_strategies_try_what_is_feasible_everywhere(searched, context, study_with):
    study = study_with(context("big", choices=(0, 2)))
    search = searched(study, {"example": takes(2.0, 9.0, 1.0), "big": takes(2.0, 9.0, 1.0)})

    finding = search.run()

    assert [trial.config["n"] for trial in search.history] == [0, 2]
    assert finding.stop_reason == "every feasible configuration was tried"


@pytest.mark.parametrize("held_out", [True, False])
def test_a_policy_that_is_invalid_in_any_context_is_not_launched(
    searched, context, study_with, held_out
):
    study = study_with(context("big", held_out=held_out, choices=(0, 1), global_batch=32))
    tables = {"example": takes(2.0, 1.0, 4.0), "big": takes(2.0, 1.0)}
    search = searched(study, tables, proposer=lambda _: Scripted((ADAPTIVE,)))

    search.run()

    failed = search.history.trials[1].outcome
    assert failed.kind is FailureKind.INVALID_CONFIG
    assert failed.message == "in context big: knob n is 2 (int), not one of [0, 1]"
    assert {n for _, n in search.tables.launches} == {0}


def test_a_policy_that_raises_in_one_context_is_a_policy_error(two):
    search = two(
        "def generate_config(workload, environment):\n"
        "    return {'n': 16 // (32 - workload['global_batch'])}\n"
    )
    search.run()

    failed = search.history.trials[1].outcome
    assert failed.kind is FailureKind.POLICY_ERROR
    assert failed.message.startswith("in context big: line 2: ZeroDivisionError")


def test_the_same_answers_everywhere_are_a_duplicate(two):
    again = ADAPTIVE.replace("> 16", ">= 17")
    search = two(ADAPTIVE, again)

    search.run()

    failed = search.history.trials[2].outcome
    assert failed.kind is FailureKind.DUPLICATE
    assert "trial 1" in failed.message


def test_a_failure_in_one_context_is_the_trials(two):
    search = two(
        ADAPTIVE, tables={"big": {0: Takes(step_time_s=2.0), 2: Fails(kind=FailureKind.CRASH)}}
    )

    finding = search.run()

    assert finding.winner == 0
    assert search.history.trials[1].outcome.message == "in context big: as the table says"


def test_a_seed_that_wins_is_compared_with_nothing(searched, context, study_with):
    study = study_with(context("later", held_out=True))
    search = searched(study, {"example": takes(1.0, 2.0, 3.0), "later": takes(1.0, 2.0, 3.0)})

    finding = search.run()

    assert (finding.winner, finding.contexts) == (0, ())
    assert {name for name, _ in search.tables.launches} == {"example"}
