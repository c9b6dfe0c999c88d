"""Trials that are measured at once: who runs beside whom, and what is recorded of them."""

import io
import re
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Event
from time import sleep

import pytest

from records.study import Budget
from records.trial import FailureKind, Measured, Policy, Purpose
from search.loop.batch import Capacity
from search.loop.budget import launches_used
from search.loop.leader import study_leader
from search.loop.ports import Proposal
from tests.support.evaluator import Fails, InTurn, Takes
from tests.support.search import ONCE, CutShort, seconds

TWO = Capacity(trial_count=2, place_count=2)
OUT_OF_MEMORY = Fails(kind=FailureKind.OUT_OF_MEMORY)
CRASH = Fails(kind=FailureKind.CRASH)


class Meets:
    """Ends only when others that meet at the same barrier are under way as well."""

    def __init__(self, barrier, step_time_s):
        self._barrier = barrier
        self._ending = Takes(step_time_s=step_time_s)

    def outcome(self, *arguments):
        self._barrier.wait(60)
        return self._ending.outcome(*arguments)


class Scripted:
    """Proposes these settings of `n` one after the other; keeps what was pending each time."""

    name = "scripted"

    def __init__(self, *settings):
        self._settings = list(settings)
        self.pending = []

    def propose(self, _study, history):
        if not self._settings:
            return None
        self.pending.append([config["n"] for config in history.pending])
        settings = self._settings.pop(0)
        source = f"def generate_config(workload, environment):\n    return {settings}\n"
        return Proposal(policy=Policy(source=source, author=self.name))


def beside(study):
    """How many others each measured trial was measured beside, by ordinal."""
    measured = [t for t in study.history if isinstance(t.outcome, Measured)]
    return {trial.ordinal: trial.outcome.measurement.beside_count for trial in measured}


def test_trials_that_fit_are_under_way_at_once_and_say_so(tabular):
    barrier = Barrier(2)
    endings = {0: Takes(step_time_s=0.5), 1: Meets(barrier, 0.4), 2: Meets(barrier, 0.3)}
    study = tabular(endings, measure=ONCE, capacity=TWO)

    finding = study.run()

    assert beside(study) == {0: 0, 1: 1, 2: 1}
    assert study.said.getvalue().count("measured in parallel with 1 other trial)") == 2
    assert (finding.winner, sorted(study.launched)) == (2, [0, 1, 2])
    assert not study.store.workdir(study.study_id).exists()


def test_trials_run_one_by_one_until_one_was_measured(tabular):
    endings = {0: OUT_OF_MEMORY, **{n: Takes(step_time_s=0.5) for n in (1, 2, 3)}}
    study = tabular(endings, measure=ONCE, capacity=TWO)

    study.run()

    assert beside(study) == {1: 0, 2: 1, 3: 1}


def test_a_study_without_room_measures_one_trial_after_the_other(tabular):
    study = tabular(
        seconds(0.5, 0.4, 0.3), measure=ONCE, capacity=Capacity(trial_count=3, place_count=0)
    )

    study.run()

    assert study.launched == [0, 1, 2]
    assert beside(study) == {0: 0, 1: 0, 2: 0}


def test_a_configuration_that_takes_every_place_runs_alone(tabular):
    capacity = replace(TWO, trial_count=3, places_of=lambda config: 2 if config["n"] == 2 else 1)
    study = tabular(seconds(0.5, 0.4, 0.3, 0.2, 0.1), measure=ONCE, capacity=capacity)

    study.run()

    assert study.launched[:3] == [0, 1, 2]
    assert beside(study) == {0: 0, 1: 0, 2: 0, 3: 1, 4: 1}


def test_a_proposer_sees_what_is_being_measured(tabular):
    proposer = Scripted({"n": 1}, {"n": 2}, {"n": 3})
    study = tabular(
        seconds(0.5, 0.4, 0.3, 0.2), measure=ONCE, capacity=TWO, proposer=lambda _space: proposer
    )

    study.run()

    assert proposer.pending == [[], [1], []]


def test_a_configuration_that_is_being_measured_is_not_launched_again(tabular):
    proposer = Scripted({"n": 1}, {"n": 1.0})
    study = tabular(seconds(0.5, 0.4), measure=ONCE, capacity=TWO, proposer=lambda _space: proposer)

    study.run()

    failed = study.history.find(2).outcome
    assert failed.kind is FailureKind.DUPLICATE
    assert failed.message == "same configuration as a trial that is being measured"
    assert study.launched == [0, 1]


def test_a_trial_that_failed_beside_others_is_launched_again_alone(tabular):
    endings = {**seconds(0.5, 0.4, 0.3), 1: InTurn((OUT_OF_MEMORY, Takes(step_time_s=0.2)))}
    study = tabular(endings, measure=ONCE, capacity=TWO)

    finding = study.run()

    assert (beside(study), finding.winner) == ({0: 0, 1: 0, 2: 1}, 1)
    assert study.history.find(1).attempts == 2


@pytest.mark.parametrize(("share_memory", "launches"), [(True, 2), (False, 1)])
def test_a_failure_is_its_own_where_nothing_is_shared_or_it_was_alone(
    tabular, share_memory, launches
):
    endings = {**seconds(0.5, 0.4, 0.3), 1: OUT_OF_MEMORY}
    study = tabular(endings, measure=ONCE, capacity=replace(TWO, share_memory=share_memory))

    study.run()

    assert study.history.find(1).outcome.kind is FailureKind.OUT_OF_MEMORY
    assert study.history.find(1).attempts == study.launched.count(1) == launches


@pytest.mark.parametrize(
    ("limits", "reason", "launched"),
    [
        ({"trials": 4}, "all 4 trials are used", 4),
        ({"trials": 20, "launches": 5}, "all 5 launches are used", 5),
        ({"trials": 20, "patience": 4}, "4 measured trials in a row brought no improvement", 5),
        ({"trials": 1}, "all 1 trials are used", 1),
    ],
)
def test_a_batch_passes_no_limit(tabular, limits, reason, launched):
    budget = Budget(**{"patience": 20, "max_failures": 20, **limits})
    capacity = Capacity(trial_count=3, place_count=3)
    study = tabular(seconds(0.1, *[0.2] * 9), measure=ONCE, capacity=capacity, budget=budget)

    finding = study.run()

    assert (finding.stop_reason, len(study.launched)) == (reason, launched)


def test_no_more_trials_fail_in_a_row_than_the_budget_allows(tabular):
    endings = {0: Takes(step_time_s=0.1), **dict.fromkeys(range(1, 9), CRASH)}
    budget = Budget(trials=20, patience=20, max_failures=4)
    capacity = Capacity(trial_count=3, place_count=3, share_memory=False)
    study = tabular(endings, measure=ONCE, capacity=capacity, budget=budget)

    finding = study.run()

    assert finding.stop_reason == "4 trials in a row failed"
    assert len(study.history) == 5


def test_launches_beside_others_and_again_alone_stay_within_their_limit(tabular):
    endings = {0: Takes(step_time_s=0.1), **dict.fromkeys(range(1, 9), OUT_OF_MEMORY)}
    budget = Budget(trials=20, patience=20, max_failures=20, launches=7)
    study = tabular(
        endings, measure=ONCE, capacity=Capacity(trial_count=3, place_count=3), budget=budget
    )

    study.run()

    assert launches_used(study.history, ()) == len(study.launched) <= 7


def test_nothing_more_is_proposed_after_the_time_limit_is_reached_in_a_batch(tabular):
    proposer = Scripted({"n": 1}, {"n": 2})
    study = tabular(
        seconds(0.5, 0.4, 0.3),
        measure=ONCE,
        capacity=TWO,
        proposer=lambda _space: proposer,
        budget=Budget(trials=10, patience=10, max_wall_s=60.0),
        clock=iter([0.0, 0.0, 0.0, 10.0, 61.0, 61.0, 62.0]).__next__,
    )

    study.run()

    assert ordinals(study) == [0, 1]


RACED = replace(ONCE, self_test_rounds=1, race_rounds=4)


class After:
    """Ends once something has happened."""

    def __init__(self, event, step_time_s):
        self._event = event
        self._ending = Takes(step_time_s=step_time_s)

    def outcome(self, *arguments):
        assert self._event.wait(60)
        return self._ending.outcome(*arguments)


class Lingering(After):
    """Takes a while to end once it may."""

    def outcome(self, *arguments):
        outcome = super().outcome(*arguments)
        sleep(0.3)
        return outcome


class Listening(io.StringIO):
    """Does something once a line with these words was said."""

    def __init__(self, words, act):
        super().__init__()
        self._words, self._act = words, act

    def write(self, text):
        super().write(text)
        if self._words in text:
            self._act()
        return len(text)


class Interrupts:
    """Ctrl-C is pressed during the launch."""

    def outcome(self, *_):
        raise KeyboardInterrupt


def ordinals(study):
    return [trial.ordinal for trial in study.history]


def raise_interrupt():
    raise KeyboardInterrupt


def test_a_result_is_recorded_as_soon_as_it_is_there(tabular):
    second_is_told = Event()
    endings = {0: Takes(step_time_s=0.5), 1: After(second_is_told, 0.3), 2: Takes(step_time_s=0.4)}
    study = tabular(endings, measure=ONCE, capacity=TWO)
    study.said = Listening("trial 2 ", second_is_told.set)

    finding = study.run()

    said = study.said.getvalue()
    assert said.index("trial 2 ") < said.index("trial 1 ")
    assert (ordinals(study), finding.winner) == ([0, 1, 2], 1)


def test_what_ended_before_an_interruption_is_neither_lost_nor_repeated(tabular):
    never = Event()
    endings = {
        0: Takes(step_time_s=0.5),
        1: InTurn((After(never, 0.3), Takes(step_time_s=0.3))),
        2: Takes(step_time_s=0.4),
    }
    study = tabular(endings, measure=ONCE, capacity=replace(TWO, stop=never.set))
    study.said = Listening("trial 2 ", raise_interrupt)

    with pytest.raises(KeyboardInterrupt):
        study.run()
    left = (ordinals(study), [each.ordinal for each in study.store.pending(study.study_id)])
    led = study_leader(study.store.find(""), study.store).history.best.ordinal
    study.said = io.StringIO()
    finding = study.run()

    assert left == ([0, 2], [1])
    assert led == 2
    assert sorted(study.launched) == [0, 1, 1, 2]
    assert study.history.find(1).policy.author == "coordinate"
    assert (ordinals(study), finding.winner) == ([0, 1, 2], 1)


def test_a_trial_that_has_not_ended_is_not_mistaken_for_a_later_one(tabular, cclsearch):
    never = Event()
    endings = {**seconds(0.5, 0.3, 0.4), 1: After(never, 0.3)}
    study = tabular(endings, measure=ONCE, capacity=replace(TWO, stop=never.set))
    study.said = Listening("trial 2 ", raise_interrupt)
    with pytest.raises(KeyboardInterrupt):
        study.run()

    shown = [cclsearch("trial", "show", n, "--store", study.root) for n in (1, 2)]

    assert (shown[0].code, shown[1].code) == (2, 0)
    assert "has no trial 1; it has 2" in shown[0].err
    assert re.search(r"^  n +2\b", shown[1].out, re.MULTILINE)


@pytest.mark.parametrize("beside", [After, Lingering])
def test_an_interruption_stops_what_runs_beside_and_waits_for_its_folder(tabular, beside):
    stopped = Event()
    endings = {0: Takes(step_time_s=0.5), 1: beside(stopped, 0.4), 2: Interrupts()}
    study = tabular(endings, measure=ONCE, capacity=replace(TWO, stop=stopped.set))

    with pytest.raises(KeyboardInterrupt):
        study.run()

    assert stopped.is_set()
    assert study.store.find("").status == "interrupted"
    assert [each.ordinal for each in study.store.pending(study.study_id)] == [1, 2]
    assert [path.name for path in Path(study.root, "work", study.study_id).iterdir()] == ["trial2"]


def test_every_challenger_of_a_batch_is_raced_in_its_turn(tabular):
    study = tabular(seconds(0.8, 0.4, 0.2), measure=RACED, capacity=TWO)

    finding = study.run()

    assert [(race.challenger, race.incumbent) for race in finding.races] == [(1, 0), (2, 1)]
    assert finding.winner == 2


@pytest.mark.parametrize("launches", [3, 5, 8])
def test_an_interruption_anywhere_leaves_every_race_run_once(tabular, launches):
    endings = seconds(0.8, 0.4, 0.2)
    whole, study = (tabular(endings, measure=RACED, capacity=TWO) for _ in range(2))
    expected = whole.run()
    evaluator = study.evaluator

    study.evaluator = CutShort(evaluator, launches)
    with pytest.raises(KeyboardInterrupt):
        study.run()
    study.evaluator = evaluator
    finding = study.run()

    assert finding == expected
    places = [(r.series, r.round, r.ordinal) for r in study.store.repeats(study.study_id)]
    assert len(places) == len(set(places))
    assert places == [(r.series, r.round, r.ordinal) for r in whole.store.repeats(whole.study_id)]


def test_races_and_finals_run_alone(tabular):
    measure = replace(RACED, confirm_rounds=2, max_confirm_rounds=2, confirm_top=2)
    study = tabular(seconds(0.8, 0.4, 0.2), measure=measure, capacity=TWO)

    study.run()

    repeats = study.store.repeats(study.study_id)
    assert {repeat.purpose for repeat in repeats} >= {Purpose.RACE, Purpose.CONFIRM}
    assert {repeat.outcome.measurement.beside_count for repeat in repeats} == {0}
