"""What Optuna is told, and what becomes of its suggestions."""

import sys
from dataclasses import replace

import pytest

from policies.space import Space
from records.errors import StudyError
from records.study import Constraint, Dimension, SearchSpace
from records.trial import FailureKind, History
from search.strategies.tpe import STARTUP, TpeChooser
from tests.support.records import ENVIRONMENT, WORKLOAD, failed, study, trial

STUDY = study()
OUT_OF_MEMORY = failed(FailureKind.OUT_OF_MEMORY)


def space(*dimensions, constraints=()):
    return Space(SearchSpace(dimensions=dimensions, constraints=constraints), WORKLOAD, ENVIRONMENT)


LINE = space(Dimension(name="n", choices=tuple(range(40))))
TIED = space(
    Dimension(name="a", choices=(1, 2, 4, 8, 16)),
    Dimension(name="b", choices=(1, 2, 4, 8, 16)),
    Dimension(name="c", choices=("x", "y", "z"), when="a > 2"),
    Dimension(name="d", choices=(True, False)),
    constraints=(Constraint(name="product", expression="a * b == 16"),),
)


def searched(space, outcome_of, count, seed=42):
    """Configurations that a search of so many trials takes, and why."""
    asked, history, choices = replace(STUDY, random_seed=seed), History(), []
    for ordinal in range(count):
        choice = TpeChooser(space).choose(asked, history)
        choices.append(choice)
        values = dict(choice.config.values)
        history = history.append(trial(ordinal, outcome_of(values), values))
    return choices


def test_the_first_trials_are_random_and_say_so():
    whys = [choice.why for choice in searched(LINE, lambda v: 1.0 + v["n"], STARTUP + 1)]
    assert set(whys[:STARTUP]) == {"random draw: the estimator begins after 5 trials"}
    assert "Parzen" in whys[STARTUP]


def test_it_moves_towards_what_is_fast():
    taken = [c.config["n"] for c in searched(LINE, lambda v: 1.0 + abs(v["n"] - 30), 20)]
    assert sum(abs(n - 30) <= 8 for n in taken[10:]) >= 8
    assert 30 in taken


def test_it_keeps_away_from_what_failed():
    def outcome(values):
        return OUT_OF_MEMORY if values["n"] < 25 else 40.0 - values["n"]

    taken = [c.config["n"] for c in searched(LINE, outcome, 20)]
    assert sum(n >= 25 for n in taken[10:]) >= 8


def test_while_everything_failed_it_draws_at_random():
    choices = searched(LINE, lambda _: OUT_OF_MEMORY, 8)
    assert all("random draw" in choice.why for choice in choices)
    assert len({choice.config for choice in choices}) == 8


def test_a_suggestion_that_is_not_feasible_becomes_the_nearest_that_is():
    choices = searched(TIED, lambda v: 1.0 + v["b"], len(TIED.feasible))
    assert {choice.config for choice in choices} == {*TIED.feasible}
    assert "the nearest to what the Parzen estimator suggested" in {c.why for c in choices}


def test_the_same_seed_searches_alike_and_another_does_not():
    def taken(seed):
        return [c.config for c in searched(TIED, lambda v: 1.0 + v["b"], 9, seed)]

    assert taken(1) == taken(1)
    assert taken(1) != taken(2)


def test_without_optuna_one_line_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(StudyError, match=r"pip install 'cclsearch\[optuna\]'"):
        TpeChooser(LINE)
