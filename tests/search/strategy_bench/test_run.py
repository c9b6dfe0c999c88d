"""Searches over landscapes: the same terms for every strategy."""

from dataclasses import replace

import pytest

from records.study import Budget
from records.trial import Config, Failed
from search.strategies.base import Choice
from search.strategies.catalog import CHOOSERS
from search.strategy_bench.landscape import Entry, Ground
from search.strategy_bench.run import Terms, landscapes_of, run_all, run_searches, search

FEW = Terms(seeds=(0, 1), trial_count=8)
TP1 = Config({"tp": 1})
TP2, TP2_PLAIN, TP4 = (
    Config({"tp": 2, "overlap": True}),
    Config({"tp": 2, "overlap": False}),
    Config({"tp": 4, "overlap": True}),
)


class Listed:
    """Chooses what it was told to, in this order."""

    name = "listed"

    def __init__(self, *configs):
        self._configs, self.seen, self.enough = configs, [], None

    def choose(self, study, history):  # noqa: ARG002 - the port
        self.seen.append(history)
        done = len(history) - 1
        return Choice(config=self._configs[done], why="") if done < len(self._configs) else None

    def no_gain(self, study, history):  # noqa: ARG002 - as a strategy is asked
        return "enough" if len(history) == self.enough else None


@pytest.fixture(scope="module")
def small():
    (landscape,) = landscapes_of(["builtin-cpu"])
    return landscape


@pytest.mark.parametrize("strategy", CHOOSERS)
def test_every_strategy_begins_at_the_seed_and_never_leaves_the_feasible_set(strategy, small):
    ground = Ground(small)
    for run in run_searches(small, strategy, replace(FEW, seeds=(0,))):
        configs = [step.config for step in run.steps]
        assert configs[0] == ground.seed
        assert len(set(configs)) == len(configs) == 8
        assert set(configs) <= set(ground.space.feasible)


def listed(ground, *configs, seed=0, enough=None):
    chooser = Listed(*configs)
    chooser.enough = enough
    return search(ground, "listed", seed, 8, chooser=chooser), chooser


def test_a_strategy_that_repeats_a_launch_has_a_duplicate_and_no_further_launch(ground):
    run, _ = listed(ground, TP1)
    assert [step.failed for step in run.steps] == [False, True]
    assert run.steps[0].launch_count == run.steps[1].launch_count


def test_a_search_ends_when_its_strategy_has_nothing_left(ground):
    run, _ = listed(ground, TP2, TP4)
    assert [step.config for step in run.steps] == [TP1, TP2, TP4]
    assert run.announced.stop_reason == "every feasible configuration was tried"


def test_only_the_search_that_announces_ends_where_its_strategy_expects_no_more_gain(ground):
    run, _ = listed(ground, TP2, TP4, enough=2)
    assert len(run.steps) == 3
    assert (run.announced.trial_count, run.announced.stop_reason) == (2, "enough")


def test_launches_are_those_of_the_self_test_and_of_races_too(ground):
    run, chooser = listed(ground, TP2, TP2_PLAIN, TP4)
    assert [step.launch_count for step in run.steps] == [5, 10, 11, 12]
    assert [step.failed for step in run.steps] == [False, False, True, False]
    last = chooser.seen[-1]
    assert [last.cost(last.trials[n]) for n in (1, 3)] == pytest.approx([1.04, 1.0])
    assert isinstance(last.trials[2].outcome, Failed)


def test_who_was_lucky_once_does_not_lead_after_the_race(ground):
    entries = (
        Entry(config={"tp": 1}, samples=(1.0,)),
        Entry(config=TP4.values, samples=(0.9, 2.0, 2.0, 2.0, 2.0)),
    )
    unfair = Ground(replace(ground.landscape, entries=entries))
    # Of the seeds that draw the lucky sample first, each draws slow ones when it is raced.
    lucky = [n for n in range(40) if unfair.launch(TP4, 0, n) == 0.9]
    ends = [listed(unfair, TP4, seed=n)[0].steps[-1] for n in lucky]
    assert lucky
    assert {step.excess for step in ends} == {0.0}


def test_nothing_leads_while_everything_failed(ground):
    landscape = replace(ground.landscape, seed=TP2_PLAIN.values)
    run, _ = listed(Ground(landscape), TP4)
    assert [step.excess for step in run.steps] == [None, 0.0]


def test_what_is_announced_is_that_of_a_search_with_the_default_budget(small):
    ground, usual = Ground(small), Budget()
    run = search(ground, "grid", 0, 2 * usual.trials)
    assert len(run.steps) == 2 * usual.trials
    assert run.announced.trial_count <= usual.trials
    assert run.announced.launch_count > run.steps[run.announced.trial_count - 1].launch_count


def test_a_launch_reports_the_peak_memory_that_the_landscape_has(ground):
    entries = [replace(each, peak_memory_bytes=9) for each in ground.landscape.entries]
    _, chooser = listed(Ground(replace(ground.landscape, entries=tuple(entries))), TP4)
    assert chooser.seen[0].trials[0].outcome.measurement.peak_memory_bytes == (9,)


def test_the_same_seed_gives_the_same_search_and_all_begin_elsewhere_alike(small):
    somewhere = replace(FEW, start="random")
    runs = {name: run_searches(small, name, somewhere) for name in ("random", "coordinate")}
    again = run_searches(small, "random", somewhere)
    assert [run.steps for run in again] == [run.steps for run in runs["random"]]
    starts = [[run.steps[0].config for run in each] for each in runs.values()]
    assert starts[0] == starts[1]
    assert starts[0][0] != starts[0][1]


def test_runs_come_by_landscape_and_strategy_in_the_order_of_seeds(ground):
    terms = Terms(seeds=tuple(range(7)), trial_count=4)
    told = []
    runs = run_all(
        [ground.landscape],
        ["grid", "random"],
        terms,
        done=lambda *words: told.append(words),
        process_count=1,
    )
    assert [run.seed for run in runs["tiny"]["grid"]] == list(range(7))
    assert {run.strategy for run in runs["tiny"]["random"]} == {"random"}
    assert told[-1][2:] == (4, 4)
    here = run_searches(ground.landscape, "random", terms)
    assert [run.steps for run in runs["tiny"]["random"]] == [run.steps for run in here]
