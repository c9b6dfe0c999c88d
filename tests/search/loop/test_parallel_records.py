"""What is on record of trials that are measured at once, in whatever order they end."""

import io
import re
from dataclasses import replace
from pathlib import Path
from threading import Event
from time import sleep

import pytest

from records.study import Measure
from records.trial import Purpose
from search.loop.batch import Capacity
from search.loop.leader import study_leader
from tests.support.evaluator import InTurn, Takes

ONCE = Measure(
    infrastructure_retries=0,
    self_test_rounds=0,
    race_rounds=0,
    confirm_rounds=0,
    profiled_steps=0,
)
"""Every trial is launched once, and nothing is launched again."""
RACED = replace(ONCE, self_test_rounds=1, race_rounds=4, together="never")
TWO = Capacity(trial_count=2, place_count=2)


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


def seconds(*step_times_s):
    return {n: Takes(step_time_s=step_time_s) for n, step_time_s in enumerate(step_times_s)}


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


def test_an_interruption_stops_what_runs_beside(tabular):
    stopped = Event()
    endings = {0: Takes(step_time_s=0.5), 1: After(stopped, 0.4), 2: Interrupts()}
    study = tabular(endings, measure=ONCE, capacity=replace(TWO, stop=stopped.set))

    with pytest.raises(KeyboardInterrupt):
        study.run()

    assert stopped.is_set()
    assert study.store.find("").status == "interrupted"
    assert [each.ordinal for each in study.store.pending(study.study_id)] == [1, 2]


def test_an_interruption_waits_until_nothing_uses_a_folder(tabular):
    stopped = Event()
    endings = {0: Takes(step_time_s=0.5), 1: Lingering(stopped, 0.4), 2: Interrupts()}
    study = tabular(endings, measure=ONCE, capacity=replace(TWO, stop=stopped.set))

    with pytest.raises(KeyboardInterrupt):
        study.run()

    assert [path.name for path in Path(study.root, "work", study.study_id).iterdir()] == ["trial2"]


def test_every_challenger_of_a_batch_is_raced_in_its_turn(tabular):
    study = tabular(seconds(0.8, 0.4, 0.2), measure=RACED, capacity=TWO)

    finding = study.run()

    assert [(race.challenger, race.incumbent) for race in finding.races] == [(1, 0), (2, 1)]
    assert finding.winner == 2


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
