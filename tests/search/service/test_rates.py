"""How often one may ask, and that nobody fills the memory with names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.service.limits import MOST_CALLERS, Rates, address_of


class Clock:
    """A clock that the test sets."""

    now_s = 0.0

    def __call__(self):
        return self.now_s


def test_a_burst_is_allowed_and_then_what_the_rate_gives():
    clock = Clock()
    rates = Rates(per_s=2, burst=3, clock=clock)
    assert [rates.allow("a") for _ in range(4)] == [True, True, True, False]
    clock.now_s = 0.5
    assert [rates.allow("a") for _ in range(2)] == [True, False]
    clock.now_s = 1000
    assert [rates.allow("a") for _ in range(4)] == [True, True, True, False]


def test_one_caller_takes_nothing_from_another():
    rates = Rates(per_s=1, burst=1, clock=Clock())
    assert [rates.allow(who) for who in "aabb"] == [True, False, True, False]


def test_only_the_latest_callers_are_remembered():
    rates = Rates(per_s=1, burst=1, clock=Clock())
    for number in range(MOST_CALLERS + 1):
        rates.allow(str(number))
    assert len(rates._buckets) == MOST_CALLERS
    assert not rates.allow(str(MOST_CALLERS))


@given(st.lists(st.floats(0, 10), max_size=30), st.integers(1, 5))
def test_no_more_pass_than_the_burst_and_the_time_allow(waits, burst):
    clock = Clock()
    rates, passed = Rates(per_s=1, burst=burst, clock=clock), 0
    for wait in waits:
        clock.now_s += wait
        passed += rates.allow("a")
    assert passed <= burst + clock.now_s


@pytest.mark.parametrize(
    ("client", "address"),
    [
        (("10.1.2.3", 5), "10.1.2.3"),
        (("2001:db8:1:2:3::4", 5), "2001:db8:1:2::/64"),
        (("::ffff:10.1.2.3", 5), "10.1.2.3"),
        (("nonsense", 5), "unknown"),
        (None, "unknown"),
    ],
)
def test_a_caller_is_known_by_its_address_or_its_network(client, address):
    assert address_of({"client": client}) == address
