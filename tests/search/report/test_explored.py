"""What charts get of a study: all of a small one, and the shape of a large one."""

import math
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from records.errors import StudyError
from records.store.store import Store
from records.study import Dimension, Objective
from records.trial import MetricValue
from search.loop.leader import study_leader, unbeaten
from search.loop.study_result import leader_of
from search.report.explored import study_front, study_history, study_knobs
from tests.support.records import failed, measured, study, trial

OUTCOMES = st.one_of(st.none(), st.floats(0.1, 10.0))


@pytest.fixture
def add(tmp_path):
    """Adds a study with these trials; gives its row and its store."""
    with closing(Store(tmp_path)) as store:

        def added(trials, asked=None):
            store.add_study("one", asked or study(), "1", trials)
            return store.find("one"), store

        yield added


def with_memory(ordinal, seconds, peak_bytes, knobs=None):
    """A trial that was measured with a step time and a peak of memory."""
    peak = MetricValue(
        name="peak_memory", value=peak_bytes, unit="bytes", better="lower", version=1
    )
    outcome = measured(seconds)
    return trial(ordinal, replace(outcome, metrics=(*outcome.metrics, peak)), knobs)


def test_a_small_history_is_whole_and_what_breaks_a_limit_does_not_lead(add):
    broken = trial(3, 0.1, {"tp": 4})
    broken = replace(broken, score=replace(broken.score, broken=("too much memory",)))
    measured_trials = [trial(0, 0.5, {"tp": 1}), trial(1, failed()), trial(2, 0.25, {"tp": 2})]
    found = study_history(*add([*measured_trials, broken]))
    assert [(p.ordinal, p.value, p.ended) for p in found.points] == [
        (0, 0.5, "measured"),
        (1, None, "failed"),
        (2, 0.25, "measured"),
        (3, 0.1, "breaks a limit"),
    ]
    assert [step.ordinal for step in found.best_so_far] == [0, 2]
    assert (found.best, found.shown, found.total) == (2, 4, 4)
    assert found.points[2].words == "trial 2, 0.25 s: tp=2"


def test_a_study_without_trials_has_an_empty_history(add):
    row, store = add([])
    found = study_history(row, store)
    assert (found.points, found.best, found.total) == ((), None, 0)
    assert study_front(row, store).points == study_knobs(row, store).lines == ()
    assert store.sampled_ordinals(row.id, 10) == ()


@settings(max_examples=8)
@given(values=st.lists(OUTCOMES, min_size=1, max_size=150), most=st.integers(8, 60))
def test_a_thinned_history_keeps_the_best_so_far_of_each_run(tmp_path_factory, values, most):
    with closing(Store(tmp_path_factory.mktemp("thinned"))) as store:
        trials = [trial(n, failed() if v is None else v) for n, v in enumerate(values)]
        store.add_study("one", study(), "1", trials)
        told = store.sampled_ordinals("one", most)
    width = -(-len(values) * 4 // most)
    assert len(told) <= most + 6
    assert {0, len(values) - 1} <= {*told}
    for start in range(0, len(values), width):
        run = [v for v in values[start : start + width] if v is not None]
        shown = [values[n] for n in told if start <= n < start + width and values[n] is not None]
        assert min(shown, default=math.inf) == min(run, default=math.inf)
        assert max(shown, default=0) == max(run, default=0)


def test_one_objective_is_shown_against_the_memory_that_it_takes(add):
    row, store = add([with_memory(0, 0.5, 100), with_memory(1, 0.4, 300), with_memory(2, 0.6, 200)])
    found = study_front(row, store)
    assert [axis.name for axis in found.axes] == ["step_time", "peak_memory"]
    assert [(p.ordinal, p.on_front) for p in found.points] == [(0, True), (1, True), (2, False)]
    assert not found.is_multi_objective
    with pytest.raises(StudyError, match="no measured trial of study one has a metric 'beauty'"):
        study_front(row, store, "beauty")


def test_several_objectives_have_the_front_that_the_search_has(add):
    asked = replace(study(), more_objectives=(Objective(expression="peak_memory"),))
    pairs = [(0.5, 100), (0.4, 300), (0.6, 200), (0.45, 150), (0.45, 150)]
    trials = [with_memory(n, s, b, {"tp": 1, "pp": 1}) for n, (s, b) in enumerate(pairs)]
    row, store = add([*trials, trial(5, failed())], asked)
    store.update(row.id, status="running")
    found = study_front(replace(row, summary=None), store)
    members = [point.ordinal for point in found.points if point.on_front]
    assert sorted(study_leader(row, store).history.front) == members
    assert {*unbeaten(dict(enumerate(pairs)))} == {*members}


def test_configurations_are_lines_with_their_rank(add):
    dimensions = (Dimension(name="tp", choices=(1, 2, 4)), Dimension(name="pp", choices=(1, 2)))
    trials = [
        trial(0, 0.5, {"tp": 1, "pp": 1}),
        trial(1, 0.25, {"tp": 4, "pp": 1}),
        trial(2, failed()),
        trial(3, failed(), {"tp": 4}),
    ]
    row, store = add(trials, study(*dimensions))
    found = study_knobs(row, store)
    assert [(knob.name, knob.choices) for knob in found.knobs] == [("tp", (1, 4)), ("pp", (1,))]
    lines = [(line.ordinal, line.places, line.rank) for line in found.lines]
    assert lines == [(0, (0, 0), 1.0), (1, (1, 0), 0.0), (3, (1, None), None)]
    assert found.best == leader_of(row, store).ordinal == 1
