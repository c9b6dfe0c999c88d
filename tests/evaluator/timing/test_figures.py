"""Times are written in the unit a person expects."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.benchmark.utils import common as torch_common

from evaluator.timing.timing import select_unit

ORDINARY = st.floats(1.1, 8.9)


@given(digits=ORDINARY, exponent=st.integers(-9, 5))
def test_units_are_those_of_torch(digits, exponent):
    seconds = digits * 10.0**exponent

    unit = select_unit(seconds)

    assert (unit.symbol, unit.size_s) == torch_common.select_unit(seconds)


@pytest.mark.parametrize(
    ("seconds", "symbol"),
    [
        (0.0, "ns"),
        (5e-324, "ns"),
        (1e-10, "ns"),
        (9.99e-7, "ns"),
        (1e-6, "us"),
        (1e-3, "ms"),
        (-2e-3, "ms"),
        (1.0, "s"),
        (sys.float_info.max, "s"),
    ],
)
def test_every_time_has_a_unit(seconds, symbol):
    assert select_unit(seconds).symbol == symbol
