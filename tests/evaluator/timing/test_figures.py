"""Times are written in the unit a person expects, and in no more digits than are known."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.benchmark.utils import common as torch_common

from evaluator.timing.timing import decimals, known_figures, select_unit, trim

FIGURES = st.integers(1, 6)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
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


@given(digits=ORDINARY, exponent=st.integers(-9, 9), figures=FIGURES)
def test_trimming_is_that_of_torch_but_for_its_single_precision(digits, exponent, figures):
    value = digits * 10.0**exponent

    # Where it lies halfway, their single precision may round to the other neighbour.
    one_unit = 10.0 ** (exponent - figures + 1)
    assert trim(value, figures) == pytest.approx(
        torch_common.trim_sigfig(value, figures), abs=1.01 * one_unit
    )


@pytest.mark.parametrize(
    ("value", "figures", "trimmed"),
    [
        (3.14159, 2, 3.1),
        (123456, 3, 123000),
        (-123456, 3, -123000),
        (0.0, 3, 0.0),
        (9.99, 2, 10.0),
        (1.26e-300, 2, 1.3e-300),
        (5e-324, 1, 5e-324),
        (1.234e300, 2, 1.2e300),
        (sys.float_info.max, 1, sys.float_info.max),
    ],
)
def test_a_value_keeps_its_leading_figures(value, figures, trimmed):
    assert trim(value, figures) == trimmed


@given(value=FINITE, figures=FIGURES)
def test_trimming_twice_is_trimming_once(value, figures):
    once = trim(value, figures)

    assert trim(once, figures) == once
    assert trim(-value, figures) == -once


@given(value=FINITE, figures=FIGURES)
def test_a_trimmed_value_is_within_half_a_unit_of_its_last_figure(value, figures):
    assert abs(trim(value, figures) - value) <= 0.51 * 10.0 ** (1 - figures) * abs(value) + 5e-324


@pytest.mark.parametrize(("value", "figures"), [(1.0, 0), (1.0, -1), (float("nan"), 2)])
def test_what_has_no_figures_is_refused(value, figures):
    with pytest.raises(ValueError, match="give a finite number and 1 or more"):
        trim(value, figures)


@pytest.mark.parametrize(
    ("value", "figures", "digits"),
    [
        (1.234, 3, 2),
        (12.34, 3, 1),
        (10.0, 2, 0),
        (1234.0, 2, 0),
        (0.05, 2, 3),
        (9.99, 2, 0),
        (0, 2, 1),
    ],
)
def test_the_digits_after_the_point_are_those_that_are_known(value, figures, digits):
    assert decimals(value, figures) == digits


@pytest.mark.parametrize(
    ("seconds", "uncertainty_s", "figures"),
    [
        (1.0, 0.5, 1),
        (1.0, 2.0, 1),
        (1.0, 0.009, 2),
        (1.0, 0.0009, 3),
        (1.0, 1e-9, 4),
        (1.0, 0.0, 4),
        # No clock knows a microsecond to more than two figures.
        (3e-6, 1e-12, 2),
    ],
)
def test_figures_are_known_as_far_as_the_uncertainty_leaves_them(seconds, uncertainty_s, figures):
    assert known_figures(seconds, uncertainty_s) == figures
