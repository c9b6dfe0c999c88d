import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.bus_bandwidth import bandwidth
from evaluator.workloads.collectives.operations import Collective

MIB = 1 << 20
RANKS = 8
SECONDS = 100e-6
NCCL = "nccl-tests"
TORCHCOMMS = "torchcomms"
COLLECTIVES = st.sampled_from([each for each in Collective if each is not Collective.BARRIER])
CONVENTIONS = st.sampled_from([NCCL, TORCHCOMMS])


@pytest.mark.parametrize(
    ("collective", "nccl_tests", "torchcomms"),
    [
        ("all_reduce", 18.350, 18.350),
        ("all_gather", 73.400, 9.175),
        ("all_gather_single", 73.400, 9.175),
        ("reduce_scatter", 73.400, 73.400),
        ("reduce_scatter_single", 73.400, 73.400),
        ("all_to_all", 73.400, 73.400),
        ("all_to_all_single", 73.400, 73.400),
        ("broadcast", 10.486, 9.175),
        ("reduce", 10.486, 9.175),
        ("gather", 73.400, 9.175),
        ("scatter", 73.400, 9.175),
        ("send_recv", 10.486, 10.486),
        ("barrier", None, None),
    ],
)
def test_bus_bandwidth_of_a_mebibyte_in_100_us_on_8_ranks(collective, nccl_tests, torchcomms):
    for convention, expected in ((NCCL, nccl_tests), (TORCHCOMMS, torchcomms)):
        moved = bandwidth(Collective(collective), MIB, RANKS, SECONDS, convention)
        assert moved is expected or moved.bus_gbps == pytest.approx(expected, abs=5e-4)
    if collective in {"all_reduce", "all_gather", "reduce_scatter", "scatter"}:
        assert bandwidth(Collective(collective), MIB, 1, SECONDS, NCCL).bus_gbps == 0


@pytest.mark.parametrize(
    ("collective", "convention", "payload_bytes", "factor"),
    [
        ("all_reduce", NCCL, MIB, 1.75),
        ("all_gather", NCCL, 8 * MIB, 0.875),
        ("all_gather", TORCHCOMMS, MIB, 0.875),
        ("reduce_scatter", TORCHCOMMS, 8 * MIB, 0.875),
        ("broadcast", NCCL, MIB, 1.0),
        ("broadcast", TORCHCOMMS, MIB, 0.875),
        ("send_recv", NCCL, MIB, 1.0),
    ],
)
def test_what_is_counted_and_which_part_of_it_a_link_carries(
    collective, convention, payload_bytes, factor
):
    moved = bandwidth(Collective(collective), MIB, RANKS, SECONDS, convention)

    assert (moved.payload_bytes, moved.factor) == (payload_bytes, factor)
    assert moved.algorithm_gbps == pytest.approx(payload_bytes / SECONDS / 1e9)


@pytest.mark.parametrize("seconds", [0.0, -1e-6, math.inf, -math.inf, math.nan])
def test_a_time_that_is_none_is_refused(seconds):
    for collective in Collective:
        with pytest.raises(ValueError, match="a time above 0"):
            bandwidth(collective, MIB, RANKS, seconds, NCCL)


@given(part_bytes=st.integers(1, 1 << 40), ranks=st.integers(1, 4096), seconds=st.floats(1e-9, 1e3))
def test_an_all_reduce_takes_the_time_of_a_reduce_scatter_and_an_all_gather_at_equal_bandwidth(
    part_bytes, ranks, seconds
):
    gathered = bandwidth(Collective.ALL_GATHER, part_bytes, ranks, seconds, NCCL)
    scattered = bandwidth(Collective.REDUCE_SCATTER, part_bytes, ranks, seconds, NCCL)
    both = bandwidth(Collective.ALL_REDUCE, ranks * part_bytes, ranks, 2 * seconds, NCCL)

    assert gathered == scattered
    assert both.payload_bytes == gathered.payload_bytes
    assert both.bus_gbps == pytest.approx(gathered.bus_gbps)


@given(
    collective=COLLECTIVES,
    convention=CONVENTIONS,
    part_bytes=st.integers(0, 1 << 40),
    ranks=st.integers(1, 4096),
    seconds=st.floats(1e-9, 1e6),
)
def test_bandwidths_are_finite_and_grow_with_size_and_speed(
    collective, convention, part_bytes, ranks, seconds
):
    moved = bandwidth(collective, part_bytes, ranks, seconds, convention)
    more = bandwidth(collective, part_bytes + 1, ranks, seconds, convention)
    slower = bandwidth(collective, part_bytes, ranks, 2 * seconds, convention)

    theirs = bandwidth(collective, part_bytes, ranks, seconds, TORCHCOMMS)

    assert theirs.bus_gbps <= bandwidth(collective, part_bytes, ranks, seconds, NCCL).bus_gbps
    assert math.isfinite(moved.bus_gbps)
    assert 0 <= moved.bus_gbps <= more.bus_gbps
    assert slower.bus_gbps == pytest.approx(moved.bus_gbps / 2)
