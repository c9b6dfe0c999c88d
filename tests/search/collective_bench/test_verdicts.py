"""Points are judged by rounds that sides share, and by nothing else."""

import math
import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from evaluator.bus_bandwidth import bandwidth
from evaluator.timing.decision import LOST_AMONG_MANY
from evaluator.workloads.collectives.operations import Collective
from records.errors import StudyError
from search.collective_bench.verdicts import ONE_DEFINITION, Limits, Standing
from tests.search.collective_bench.conftest import STEADY

LATENCIES = st.floats(0.01, 1e9)


def only(verdicts):
    (verdict,) = verdicts.points.values()
    return verdict


UNSTEADY = (0.6, 1.5, 0.8, 1.3, 0.7, 1.4)


@pytest.mark.parametrize(
    ("latency", "factors", "limits", "standing", "reason"),
    [
        (12.0, STEADY, {}, "regression", "paired_interval_clears_band"),
        (8.0, STEADY, {}, "improvement", "paired_interval_clears_band"),
        (10.1, STEADY, {}, "neutral", "paired_interval_inside_band"),
        (10.8, STEADY, {"percent": 20}, "neutral", None),
        (9.2, STEADY, {"percent": 3}, "improvement", None),
        (12.0, UNSTEADY, {}, "neutral", "budget_exhausted"),
        (20.0, (1.0,), {}, "neutral", "too_few_rounds"),
        (20.0, (1.0,) * 3, {}, "neutral", "too_few_rounds"),
    ],
)
def test_enough_steady_rounds_judge(made, judged, latency, factors, limits, standing, reason):
    sides = made.rounds(10.0, (1.0,) * len(factors)), made.rounds(latency, factors)

    verdict = only(judged(*sides, **limits))

    assert verdict.standing == standing
    assert verdict.reason == (reason or verdict.reason)
    assert verdict.round_count == len(factors)
    assert (verdict.latency_change > 0) is (latency < 10)
    assert (verdict.bandwidth_change > 0) is (latency < 10)
    if reason == "too_few_rounds":
        assert (verdict.latency_change_low, verdict.latency_change_high) == (None, None)
    else:
        assert verdict.latency_change_low <= verdict.latency_change <= verdict.latency_change_high


@pytest.mark.parametrize(("count", "reason"), [(1, "one_sample"), (2, "not_interleaved")])
def test_without_rounds_a_difference_is_told_and_not_judged(made, judged, count, reason):
    verdict = only(judged([made.row(10.0)] * count, [made.row(20.0)] * count))

    assert (verdict.standing, verdict.reason) == ("neutral", reason)
    assert verdict.latency_change == pytest.approx(-100)
    assert (verdict.latency_change_low, verdict.latency_change_high) == (None, None)


@pytest.mark.parametrize("base", [10.0, 20.0, 3.0, 1.1, 7.0, 1e6])
@pytest.mark.parametrize(
    ("factor", "standing"),
    [
        (1.05, Standing.NEUTRAL),
        (0.95, Standing.NEUTRAL),
        (1.0501, Standing.REGRESSION),
        (0.9499, Standing.IMPROVEMENT),
    ],
)
def test_just_the_threshold_is_neutral_and_just_beyond_is_not(made, judged, base, factor, standing):
    level = (1.0,) * 5

    pair = judged(made.rounds(base, level), made.rounds(base * factor, level))

    assert only(pair).standing is standing


@pytest.mark.parametrize(("slower", "regresses"), [(1.0, False), (1.25, True)])
def test_of_325_noisy_points_equal_sides_do_not_regress_and_slower_ones_do(
    made, judged, slower, regresses
):
    draw = random.Random(1)
    base, own = (
        [
            row
            for size in range(1, 326)
            for row in made.rounds(
                latency,
                [math.exp(draw.gauss(0, 0.1)) for _ in range(6)],
                **{"SendMsgSize(B)": 1024 * size},
            )
        ]
        for latency in (10.0, 10.0 * slower)
    )

    pair = judged(base, own)

    assert pair.judged_count == 325
    assert (pair.regression_count > 0) is regresses


UNEVEN = (1.0, 1.04, 0.97, 1.03, 0.98, 1.0)


def test_points_of_all_labels_are_corrected_together(made, analysed):
    folders = [
        f"{label}:{made.folder(label, made.rounds(latency, UNEVEN if label == 'new' else STEADY))}"
        for label, latency in (("old", 10.0), ("new", 10.8), ("other", 10.0))
    ]

    (alone,) = analysed(*folders[:2], baseline="old").pairs
    among, _ = analysed(*folders, baseline="old").pairs

    assert only(alone).standing is Standing.REGRESSION
    assert (only(among).standing, only(among).reason) == (Standing.NEUTRAL, LOST_AMONG_MANY)
    assert only(among).is_undecided


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *((name, "other") for name in ("Collective", "ReduceOp", "DType", "DispatchMode")),
        *((name, 2) for name in ("SendMsgSize(B)", "Ranks", "SyncInterval")),
        *((name, "other") for name in ("DeviceType", "DeviceName")),
    ],
)
def test_a_point_without_partner_is_absent_and_counts_for_nothing(made, judged, column, value):
    own = [made.row(10.0), made.row(50.0, **{column: value})]

    pair = judged([made.row(10.0)], own)

    assert pair.counts[Standing.ABSENT] == 1
    assert (pair.judged_count, pair.missing) == (1, ())
    (verdict,) = [each for each in pair.points.values() if each.standing is Standing.ABSENT]
    assert (verdict.latency_change, verdict.bandwidth_change) == (None, None)


@pytest.mark.parametrize("latency", [0.0, -1.0])
def test_a_latency_that_is_none_is_not_compared(made, judged, latency):
    verdict = only(judged([made.row(latency)], [made.row(10.0)]))

    assert (verdict.standing, verdict.reason) == (Standing.ABSENT, "bad_time")


def test_bandwidths_by_two_definitions_are_not_compared(made, judged):
    names = ("all_reduce", "all_gather")
    theirs = [made.row(10.0, Collective=name) for name in names]
    ours = [made.row(10.0, Collective=name, BwConvention="nccl-tests") for name in names]

    pair = judged(theirs, ours)

    changes = {each.collective: told.bandwidth_change for each, told in pair.points.items()}
    assert changes == {"all_gather": None, "all_reduce": 0.0}


@pytest.mark.parametrize("collective", sorted(set(Collective) - {Collective.BARRIER}))
def test_collectives_of_one_definition_have_one_bandwidth(collective):
    both = {
        bandwidth(collective, 4096, 4, 1e-3, convention).bus_gbps
        for convention in ("nccl-tests", "torchcomms")
    }

    assert (len(both) == 1) is (collective in ONE_DEFINITION)


@pytest.mark.parametrize(
    "limits",
    [
        {"percent": -1.0},
        {"percent": float("nan")},
        {"percent": 100.0},
        {"alpha": 0.0},
        {"alpha": 0.5},
    ],
)
def test_limits_that_mean_nothing_are_refused(limits):
    with pytest.raises(StudyError, match="give"):
        Limits(**limits)


@settings(max_examples=60)
@given(base=LATENCIES, own=LATENCIES)
def test_changes_have_the_sign_of_better(made, judged, base, own):
    assume(abs(base - own) > 1e-6 * base)

    verdict = only(judged([made.row(base)], [made.row(own)]))

    assert (verdict.latency_change > 0) is (own < base)
    assert (verdict.bandwidth_change > 0) is (own < base)
    assert verdict.latency_change < 100


@settings(max_examples=30)
@given(base=LATENCIES, ratio=st.floats(0.2, 5))
def test_swapping_the_sides_swaps_the_sign(made, judged, base, ratio):
    assume(abs(ratio - 1) > 1e-6)
    a, b = made.rounds(base), made.rounds(base * ratio)

    forward, backward = only(judged(a, b)), only(judged(b, a))

    assert (forward.latency_change > 0) is (backward.latency_change < 0)
    assert (1 - forward.latency_change / 100) * (1 - backward.latency_change / 100) == (
        pytest.approx(1)
    )
