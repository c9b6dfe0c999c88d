"""How often one may ask, and how much at once; whatever is taken is given back."""

import asyncio
from contextlib import ExitStack, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.service.auth import MOST_CALLERS, HeldResponse, Rates, Slots, TooManyError, address_of
from search.service.config import Limits, ServiceConfig
from tests.search.service.conftest import FINISHED, until

LOG = f"/api/v1/studies/{FINISHED}/trials/0/files/logs/rank0.log"
EXPORT = f"/api/v1/studies/{FINISHED}/export"


class Clock:
    """A clock that the test sets."""

    now_s = 0.0

    def __call__(self):
        return self.now_s


def test_a_burst_is_allowed_and_then_what_the_rate_gives_to_each_caller():
    clock = Clock()
    rates = Rates(per_s=2, burst=3, clock=clock)
    assert [rates.allow("a") for _ in range(4)] == [True, True, True, False]
    assert rates.allow("b")
    clock.now_s = 0.5
    assert [rates.allow("a") for _ in range(2)] == [True, False]
    clock.now_s = 1000
    assert [rates.allow("a") for _ in range(4)] == [True, True, True, False]


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


def test_each_caller_has_so_many_places_and_all_together_have_so_many():
    slots = Slots("no place", each=2, most=3)
    for who in ("one", "one", "two"):
        slots.take(who)
    for who in ("one", "two"):
        with pytest.raises(TooManyError, match="no place"):
            slots.take(who)
    assert slots.total() == 3

    slots.release("one")
    slots.take("two")
    with pytest.raises(TooManyError, match="no place"):
        slots.take("one")


@pytest.mark.parametrize("fault", [None, ConnectionResetError, asyncio.CancelledError])
def test_an_answer_gives_its_place_back_however_it_ends(fault):
    async def send(_message):
        if fault is not None:
            raise fault

    async def receive():
        await asyncio.sleep(10)

    slots = Slots("no place", each=1)
    slots.take("one")
    answer = HeldResponse(iter([b"a", b"b"])).holding(slots, "one")
    scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
    try:
        asyncio.run(answer(scope, receive, send))
    except (BaseExceptionGroup, ConnectionResetError, asyncio.CancelledError):
        assert fault is not None
    assert slots.total() == 0


@pytest.mark.parametrize("address", [LOG, EXPORT])
def test_who_takes_away_too_much_at_once_is_told_to_wait(serve, made_once, address):
    served = serve(made_once, ServiceConfig(limits=Limits(downloads=1)))
    slots = served.service.exports if address == EXPORT else served.service.downloads
    with suppress(TooManyError):
        while True:
            slots.take("read")
    taken = slots.total()
    with served.client("read") as reader, served.client("submit") as other:
        refused = reader.get(address)
        assert (refused.status_code, "retry-after" in refused.headers) == (429, True)
        assert other.get(address).status_code == 200
        until(lambda: slots.total() == taken)
        slots.release("read")
        for _ in range(3):
            assert reader.get(address).status_code == 200
            until(lambda: slots.total() == taken - 1)


def test_a_reader_who_goes_away_leaves_his_place(shared, client):
    asked = f"GET {LOG} HTTP/1.1\r\nhost: {shared.url[7:]}\r\n"
    asked += f"authorization: Bearer {shared.tokens['read']}\r\n\r\n"
    with ExitStack() as opened:
        for _ in range(5):
            opened.enter_context(shared.connected()).sendall(asked.encode())
    assert client.get(LOG).status_code == 200
    until(lambda: shared.service.downloads.total() == 0)


def test_one_token_asks_too_often_and_the_others_go_on(serve, made_once):
    limits = Limits(requests_per_s=0.001, burst=3)
    served = serve(made_once, ServiceConfig(limits=limits))
    with served.client("read") as eager, served.client("submit") as calm:
        codes = [eager.get("/api/v1/status").status_code for _ in range(4)]
        assert codes == [200, 200, 200, 429]
        assert calm.get("/api/v1/status").status_code == 200
