"""Offline strategies are pure, never repeat a launch, and end when everything was tried."""

import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.contract import decide
from policies.space import Space
from records.errors import StudyError
from records.study import Constraint, Dimension, SearchSpace
from records.trial import Config, FailureKind, History, Stage
from search.strategies.base import attempted, change_words, untried
from search.strategies.catalog import CHOOSERS, chooser_named
from search.strategies.offline import CoordinateChooser, RandomChooser
from search.strategies.proposers import OfflineProposer, as_policy
from search.strategies.tpe import STARTUP, TpeChooser
from tests.support.records import ENVIRONMENT, WORKLOAD, failed, study, trial

STUDY = study(
    Dimension(name="tp", choices=(1, 2, 4)),
    Dimension(name="pp", choices=(1, 2, 4)),
    Dimension(name="mode", choices=("none", "some", "all")),
    Dimension(name="overlap", choices=(True, False), when="tp > 1"),
)
STUDY = replace(
    STUDY,
    space=replace(
        STUDY.space,
        constraints=(Constraint(name="ranks", expression="tp * pp <= world_size"),),
    ),
)
SPACE = Space(STUDY.space, STUDY.workload, STUDY.environment)


def proposer_named(name):
    return OfflineProposer(chooser_named(name, SPACE, lambda _: None))


OUT_OF_MEMORY = failed(FailureKind.OUT_OF_MEMORY)
INFRASTRUCTURE = failed(FailureKind.INFRASTRUCTURE)
DUPLICATE = failed(FailureKind.DUPLICATE, Stage.CHECK)
POLICY_ERROR = failed(FailureKind.POLICY_ERROR, Stage.DECIDE)
OUTCOMES = st.one_of(
    st.floats(0.1, 10.0),
    st.sampled_from([OUT_OF_MEMORY, INFRASTRUCTURE, DUPLICATE, failed()]),
)


def decided(proposal, space=SPACE):
    return decide(proposal.policy, WORKLOAD, ENVIRONMENT, space)


def of_source(proposal):
    namespace = {}
    exec(proposal.policy.source, namespace)
    return SPACE.check(namespace["generate_config"]({}, {}))


def past(*trials):
    """Trials from pairs of knobs and outcome, in this order."""
    return History(
        tuple(
            trial(n, outcome, None if knobs is None else dict(knobs))
            for n, (knobs, outcome) in enumerate(trials)
        )
    )


def small(*dimensions, constraints=()):
    return Space(SearchSpace(dimensions=dimensions, constraints=constraints), WORKLOAD, ENVIRONMENT)


histories = st.lists(
    st.tuples(st.sampled_from([c.values for c in SPACE.feasible]), OUTCOMES), max_size=8
).map(lambda rows: past(*rows))


@pytest.mark.parametrize("name", CHOOSERS)
@given(history=histories)
@settings(deadline=None, max_examples=40)
def test_the_same_history_gives_the_same_new_proposal(name, history):
    first, again = (proposer_named(name).propose(STUDY, history) for _ in range(2))
    assert first == again
    assert first.policy.author == proposer_named(name).name
    assert first.exchange is None
    config = of_source(first)
    assert config in SPACE.feasible
    assert config not in attempted(history)
    assert history.tried(config) is None


@pytest.mark.parametrize("name", CHOOSERS)
def test_every_feasible_configuration_is_proposed_once_and_then_none(name):
    proposer, history, seen = proposer_named(name), History(), []
    while (proposal := proposer.propose(STUDY, history)) is not None:
        config = of_source(proposal)
        if len(seen) == 1:
            assert decided(proposal) == config  # also in the sandbox
        seen.append(config)
        outcome = OUT_OF_MEMORY if len(seen) % 3 == 0 else 1.0 / len(seen)
        history = history.append(trial(len(history), outcome, dict(config.values)))
    assert len(seen) == len({*seen}) == len(SPACE.feasible)
    assert {*seen} == {*SPACE.feasible}


@pytest.mark.parametrize(
    "values",
    [
        {"tp": 4, "lr": 0.1, "on": True, "mode": "a"},
        {"lr": 1e-300, "big": 2**62, "negative": -1},
        {"quote": 'it\'s "so"', "back": "a\\b\n\t", "braces": "{}%s{x}"},
        {"word": "\N{SNOWMAN}\U0001f600", "empty": ""},
        {"a knob": 1, "it's": 2, "\N{SNOWMAN}": 3},
    ],
)
def test_any_configuration_survives_being_written_as_a_policy(values):
    space = small(*(Dimension(name=name, choices=(value,)) for name, value in values.items()))
    rationale = 'because """ \\ {x} \N{SNOWMAN}\n'
    policy = as_policy(Config(values), "test", rationale)
    assert decide(policy, WORKLOAD, ENVIRONMENT, space) == Config(values)
    assert policy.rationale == rationale


def test_a_configuration_counts_as_attempted_once_a_launch_was_tried():
    one, two, three = ({"n": 1}, {"n": 2}, {"n": 3})
    history = past((one, INFRASTRUCTURE), (two, DUPLICATE), (None, POLICY_ERROR), (three, 1.0))
    assert attempted(history) == {Config(one), Config(three)}


def test_after_an_infrastructure_failure_the_search_moves_on_but_may_come_back():
    space = small(Dimension(name="n", choices=(1, 2)))
    history = past(({"n": 1}, INFRASTRUCTURE))
    assert untried(space, history) == [Config({"n": 2})]
    assert history.tried(Config({"n": 1})) is None


SQUARE = small(*(Dimension(name=name, choices=(1, 2, 3, 4)) for name in "ab"))
LINE, PAIR = (
    small(*(Dimension(name=name, choices=choices) for name in "ab"))
    for choices in ((1, 2, 3), (1, 2))
)
TIED = small(
    *(Dimension(name=name, choices=(1, 2, 4)) for name in "ab"),
    constraints=(Constraint(name="product", expression="a * b == 4"),),
)


def at(a, b):
    return {"a": a, "b": b}


@pytest.mark.parametrize(
    ("space", "rows", "chosen_among"),
    [
        (SQUARE, [], {(1, 1)}),
        (SQUARE, [(at(2, 2), 1.0), (at(4, 4), 2.0)], {(1, 2), (3, 2), (2, 1), (2, 3)}),
        (SQUARE, [(at(1, 1), 1.0), (at(4, 4), 0.5)], {(3, 4), (4, 3)}),
        (SQUARE, [(at(2, 2), 1.0), (at(3, 2), 2.0)], {(2, 1)}),
        (SQUARE, [(at(2, 2), 1.0), (at(2, 3), 2.0)], {(1, 2)}),
        # Those beside what ran out of memory come last, but knobs count more.
        (LINE, [(at(2, 2), 1.0), (at(1, 1), OUT_OF_MEMORY)], {(3, 2), (2, 3)}),
        (LINE, [(at(2, 2), 1.0), (at(1, 1), failed())], {(1, 2), (2, 1)}),
        (PAIR, [(at(1, 1), 1.0), (at(2, 1), OUT_OF_MEMORY)], {(1, 2)}),
        (TIED, [(at(1, 4), 1.0)], {(2, 2)}),
        (SQUARE, [(at(4, 4), OUT_OF_MEMORY), (None, POLICY_ERROR)], {(3, 4), (4, 3)}),
    ],
    ids=[
        "first",
        "smallest step",
        "better centre",
        "longest ago",
        "longest ago, other",
        "memory",
        "crash",
        "memory against knobs",
        "tied knobs",
        "last decided",
    ],
)
def test_coordinate_descent_moves_to_the_nearest_configuration(space, rows, chosen_among):
    history = past(*rows)
    proposal = OfflineProposer(CoordinateChooser(space)).propose(STUDY, history)

    assert tuple(decided(proposal, space).values.values()) in chosen_among


def test_another_seed_draws_other_configurations():
    def draws(seed):
        asked = replace(STUDY, random_seed=seed)
        return [
            OfflineProposer(RandomChooser(SPACE))
            .propose(asked, past(*[(None, POLICY_ERROR)] * n))
            .policy.source
            for n in range(6)
        ]

    why = f"random draw among {len(SPACE.feasible)} untried configurations"
    assert OfflineProposer(RandomChooser(SPACE)).propose(STUDY, History()).policy.rationale == why
    assert draws(1) == draws(1)
    assert draws(1) != draws(2)


def test_a_knob_that_is_not_set_on_one_side_is_called_so():
    plain, staged = Config({"pp": 1}), Config({"pp": 2, "schedule": "1f1b"})

    assert change_words(plain, staged) == "pp 1 to 2, schedule (not set) to 1f1b"
    assert change_words(staged, plain) == "pp 2 to 1, schedule 1f1b to (not set)"


def test_what_changes_the_best_so_far_has_its_policy_as_parent():
    history = past(({"a": 1, "b": 1}, 1.0), ({"a": 4, "b": 4}, 0.5))

    first = OfflineProposer(CoordinateChooser(SQUARE)).propose(STUDY, History())
    later = OfflineProposer(CoordinateChooser(SQUARE)).propose(STUDY, history)

    assert first.policy.parent is None
    assert later.policy.rationale.startswith("from the best so far")
    assert later.policy.parent == history.best.policy.digest


FORTY = small(Dimension(name="n", choices=tuple(range(40))))
PRODUCT = small(
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
    whys = [choice.why for choice in searched(FORTY, lambda v: 1.0 + v["n"], STARTUP + 1)]
    assert set(whys[:STARTUP]) == {"random draw: the estimator begins after 5 trials"}
    assert "Parzen" in whys[STARTUP]


def test_it_moves_towards_what_is_fast():
    taken = [c.config["n"] for c in searched(FORTY, lambda v: 1.0 + abs(v["n"] - 30), 20)]
    assert sum(abs(n - 30) <= 8 for n in taken[10:]) >= 8
    assert 30 in taken


def test_it_keeps_away_from_what_failed():
    def outcome(values):
        return OUT_OF_MEMORY if values["n"] < 25 else 40.0 - values["n"]

    taken = [c.config["n"] for c in searched(FORTY, outcome, 20)]
    assert sum(n >= 25 for n in taken[10:]) >= 8


def test_while_everything_failed_it_draws_at_random():
    choices = searched(FORTY, lambda _: OUT_OF_MEMORY, 8)
    assert all("random draw" in choice.why for choice in choices)
    assert len({choice.config for choice in choices}) == 8


def test_a_suggestion_that_is_not_feasible_becomes_the_nearest_that_is():
    choices = searched(PRODUCT, lambda v: 1.0 + v["b"], len(PRODUCT.feasible))
    assert {choice.config for choice in choices} == {*PRODUCT.feasible}
    assert "the nearest to what the Parzen estimator suggested" in {c.why for c in choices}


def test_the_same_seed_searches_alike_and_another_does_not():
    def taken(seed):
        return [c.config for c in searched(PRODUCT, lambda v: 1.0 + v["b"], 9, seed)]

    assert taken(1) == taken(1)
    assert taken(1) != taken(2)


def test_without_optuna_one_line_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(StudyError, match=r"pip install 'cclsearch\[optuna\]'"):
        TpeChooser(FORTY)
