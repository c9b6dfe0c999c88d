"""Which knobs count as dead, and which do not."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from policies.space import Space
from records.study import Dimension
from records.trial import History
from search.loop.learned import DeadKnob, dead_knobs
from tests.support.records import failed, study, trial

STUDY = study(
    Dimension(name="tp", choices=(1, 2, 4)),
    Dimension(name="bucket", choices=(25, 50, 100)),
    Dimension(name="fused", choices=(False, True)),
)
SPACE = Space(STUDY.space, STUDY.workload, STUDY.environment)


def past(*told):
    return History(
        tuple(
            trial(n, outcome, {"tp": tp, "bucket": bucket, "fused": fused})
            for n, (tp, bucket, fused, outcome) in enumerate(told)
        )
    )


def test_a_knob_that_made_no_difference_in_two_pairs_is_dead() -> None:
    history = past(
        (1, 25, True, 1.00), (1, 50, True, 1.02), (2, 25, True, 2.00), (2, 50, True, 1.99)
    )

    (knob,) = dead_knobs(SPACE, history)
    assert replace(knob, largest_share=0.0) == DeadKnob(
        name="bucket", pair_count=2, largest_share=0.0, values=(25, 50)
    )
    assert abs(knob.largest_share - 0.02) < 1e-9


def test_one_difference_beyond_a_tie_brings_a_knob_to_life() -> None:
    history = past(
        (1, 25, True, 1.00),
        (1, 50, True, 1.00),
        (2, 25, True, 2.00),
        (2, 50, True, 2.00),
        (4, 25, True, 3.00),
        (4, 50, True, 3.10),
    )

    assert dead_knobs(SPACE, history) == ()


def test_three_values_alone_are_three_pairs() -> None:
    history = past((1, 25, True, 1.0), (1, 50, True, 1.01), (1, 100, True, 1.02))

    (knob,) = dead_knobs(SPACE, history)
    assert (knob.pair_count, knob.values) == (3, (25, 50, 100))


def test_one_pair_is_not_enough() -> None:
    assert dead_knobs(SPACE, past((1, 25, True, 1.0), (1, 50, True, 1.0))) == ()


def test_knobs_that_change_together_say_nothing() -> None:
    history = past((1, 25, True, 1.0), (1, 50, False, 1.0), (2, 25, True, 2.0), (2, 50, False, 2.0))

    assert dead_knobs(SPACE, history) == ()


def test_failures_make_no_pairs() -> None:
    history = past(
        (1, 25, True, 1.0), (1, 50, True, failed()), (2, 25, True, 2.0), (2, 50, True, failed())
    )

    assert dead_knobs(SPACE, history) == ()


def test_what_launches_made_again_say_counts_more() -> None:
    history = past((1, 25, True, 1.0), (1, 50, True, 1.5), (2, 25, True, 2.0), (2, 50, True, 2.0))

    assert dead_knobs(SPACE, history) == ()
    assert [k.name for k in dead_knobs(SPACE, replace(history, costs={1: 1.01}))] == ["bucket"]


def test_costs_below_zero_compare_by_size_and_zero_only_with_itself() -> None:
    history = past((1, 25, True, 1.0), (1, 50, True, 1.0), (2, 25, True, 1.0), (2, 50, True, 1.0))

    maximised = replace(history, costs={0: -100.0, 1: -101.0, 2: -50.0, 3: -50.5})
    assert [knob.name for knob in dead_knobs(SPACE, maximised)] == ["bucket"]
    assert dead_knobs(SPACE, replace(history, costs={0: 0.0, 1: 1.0, 2: 5.0, 3: 5.0})) == ()


def test_several_objectives_have_no_dead_knobs() -> None:
    history = past((1, 25, True, 1.0), (1, 50, True, 1.0), (1, 100, True, 1.0))

    assert dead_knobs(SPACE, replace(history, weights=(("step_time", 1.0),))) == ()


@given(st.lists(st.sampled_from([1.0, 1.01, 1.02]), min_size=18, max_size=18), st.randoms())
def test_the_order_of_trials_does_not_matter(costs: list[float], random) -> None:
    told = [
        (config["tp"], config["bucket"], config["fused"], cost)
        for config, cost in zip(SPACE.feasible, costs, strict=True)
    ]
    mixed = random.sample(told, len(told))

    dead = dead_knobs(SPACE, past(*told))
    assert [knob.name for knob in dead] == ["tp", "bucket", "fused"]
    assert dead_knobs(SPACE, past(*mixed)) == dead
