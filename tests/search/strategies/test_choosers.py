"""Offline strategies are pure, never repeat a launch, and end when everything was tried."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.contract import decide
from policies.space import Space
from records.study import Constraint, Dimension, SearchSpace
from records.trial import Config, FailureKind, History, Stage
from search.strategies.base import attempted, change_words, untried
from search.strategies.catalog import CHOOSERS, chooser_named
from search.strategies.proposers import OfflineProposer, as_policy
from search.strategies.simple import CoordinateChooser, RandomChooser
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


def chosen(space, history):
    """What coordinate descent proposes, by the constants in its policy."""
    proposal = OfflineProposer(CoordinateChooser(space)).propose(STUDY, history)
    return str(decided(proposal, space))


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
    namespace = {}
    exec(first.policy.source, namespace)
    config = SPACE.check(namespace["generate_config"]({}, {}))
    assert config in SPACE.feasible
    assert config not in attempted(history)
    assert history.tried(config) is None


@pytest.mark.parametrize("name", CHOOSERS)
def test_every_feasible_configuration_is_proposed_once_and_then_none(name):
    proposer, history, seen = proposer_named(name), History(), []
    while (proposal := proposer.propose(STUDY, history)) is not None:
        namespace = {}
        exec(proposal.policy.source, namespace)
        config = SPACE.check(namespace["generate_config"]({}, {}))
        seen.append(config)
        outcome = OUT_OF_MEMORY if len(seen) % 3 == 0 else 1.0 / len(seen)
        history = history.append(trial(len(history), outcome, dict(config.values)))
    assert len(seen) == len({*seen}) == len(SPACE.feasible)
    assert {*seen} == {*SPACE.feasible}


@pytest.mark.parametrize("name", CHOOSERS)
def test_a_proposal_runs_in_the_sandbox_and_gives_exactly_its_configuration(name):
    history = past(({"tp": 1, "pp": 1, "mode": "none"}, 1.0))
    proposal = proposer_named(name).propose(STUDY, history)
    config = decided(proposal)
    assert config in SPACE.feasible
    assert all(
        f"{knob!r}: {value!r}" in proposal.policy.source for knob, value in config.values.items()
    )


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


# Coordinate descent.

SQUARE = small(Dimension(name="a", choices=(1, 2, 3, 4)), Dimension(name="b", choices=(1, 2, 3, 4)))


def test_the_first_proposal_without_a_past_is_the_first_feasible_configuration():
    assert chosen(SQUARE, History()) == "a=1 b=1"


def test_a_move_changes_one_knob_around_the_best_by_the_smallest_step():
    history = past(({"a": 2, "b": 2}, 1.0), ({"a": 4, "b": 4}, 2.0))
    config = decided(OfflineProposer(CoordinateChooser(SQUARE)).propose(STUDY, history), SQUARE)
    assert SQUARE.distance(Config({"a": 2, "b": 2}), config) == (1, 1)


def test_a_better_trial_becomes_the_centre():
    history = past(({"a": 1, "b": 1}, 1.0), ({"a": 4, "b": 4}, 0.5))
    config = decided(OfflineProposer(CoordinateChooser(SQUARE)).propose(STUDY, history), SQUARE)
    assert SQUARE.distance(Config({"a": 4, "b": 4}), config) == (1, 1)


def test_the_knob_that_was_varied_longest_ago_is_next():
    history = past(({"a": 2, "b": 2}, 1.0), ({"a": 3, "b": 2}, 2.0))
    assert chosen(SQUARE, history) == "a=2 b=1"
    history = past(({"a": 2, "b": 2}, 1.0), ({"a": 2, "b": 3}, 2.0))
    assert chosen(SQUARE, history) == "a=1 b=2"


def test_among_equal_moves_those_beside_what_ran_out_of_memory_come_last():
    line = small(Dimension(name="a", choices=(1, 2, 3)), Dimension(name="b", choices=(1, 2, 3)))
    history = past(({"a": 2, "b": 2}, 1.0), ({"a": 1, "b": 1}, OUT_OF_MEMORY))
    # a=1 b=2 and a=2 b=1 differ from the exhausted point in one knob, the other two do not.
    assert chosen(line, history) in {"a=3 b=2", "a=2 b=3"}
    crash = past(({"a": 2, "b": 2}, 1.0), ({"a": 1, "b": 1}, failed()))
    assert chosen(line, crash) in {"a=1 b=2", "a=2 b=1"}


def test_memory_does_not_outweigh_a_single_knob():
    line = small(Dimension(name="a", choices=(1, 2)), Dimension(name="b", choices=(1, 2)))
    history = past(({"a": 1, "b": 1}, 1.0), ({"a": 2, "b": 1}, OUT_OF_MEMORY))
    assert chosen(line, history) == "a=1 b=2"


def test_where_constraints_tie_knobs_a_move_changes_both():
    tied = small(
        Dimension(name="a", choices=(1, 2, 4)),
        Dimension(name="b", choices=(1, 2, 4)),
        constraints=(Constraint(name="product", expression="a * b == 4"),),
    )
    assert chosen(tied, past(({"a": 1, "b": 4}, 1.0))) == "a=2 b=2"


def test_while_nothing_is_measured_the_last_decided_configuration_is_the_centre():
    history = past(({"a": 4, "b": 4}, OUT_OF_MEMORY), (None, POLICY_ERROR))
    config = decided(OfflineProposer(CoordinateChooser(SQUARE)).propose(STUDY, history), SQUARE)
    assert SQUARE.distance(Config({"a": 4, "b": 4}), config) == (1, 1)


def test_a_rationale_says_what_is_changed():
    line = small(Dimension(name="a", choices=(1, 2)))
    proposal = OfflineProposer(CoordinateChooser(line)).propose(STUDY, past(({"a": 1}, 1.0)))
    assert proposal.policy.rationale == "from the best so far, change a 1 to 2"


# Random choice.


def test_another_seed_draws_other_configurations():
    def draws(seed):
        asked = replace(STUDY, random_seed=seed)
        return [
            OfflineProposer(RandomChooser(SPACE))
            .propose(asked, past(*[(None, POLICY_ERROR)] * n))
            .policy.source
            for n in range(6)
        ]

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)


def test_a_random_draw_says_what_it_was_drawn_from():
    proposal = OfflineProposer(RandomChooser(SPACE)).propose(STUDY, History())
    expected = f"random draw among {len(SPACE.feasible)} untried configurations"
    assert proposal.policy.rationale == expected


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
