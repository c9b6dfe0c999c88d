"""Student's t distribution of the standard library agrees with scipy's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evaluator.timing.decision import student_quantile, student_tail

FREEDOMS = st.integers(1, 10_000) | st.floats(0.5, 1e6)


@given(level=st.floats(1e-9, 1 - 1e-9), freedom=FREEDOMS)
def test_quantiles(level, freedom):
    expected = float(stats.t.ppf(level, freedom))
    assert student_quantile(level, freedom) == pytest.approx(expected, rel=1e-6, abs=1e-7)


@given(value=st.floats(-100, 100), freedom=FREEDOMS)
def test_tails(value, freedom):
    expected = float(stats.t.sf(value, freedom))
    assert student_tail(value, freedom) == pytest.approx(expected, rel=1e-7, abs=1e-14)


@pytest.mark.parametrize(("level", "freedom"), [(0.0, 3), (1.0, 3), (0.5, 0)])
def test_a_quantile_outside_of_the_distribution_is_refused(level, freedom):
    with pytest.raises(ValueError, match="out of range"):
        student_quantile(level, freedom)
