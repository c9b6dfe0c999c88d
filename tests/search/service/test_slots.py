"""Places for what lasts: so many for each caller, so many for all, and always given back."""

import asyncio
import socket
import time
from contextlib import ExitStack, suppress

import pytest

from search.service.config import Limits, ServiceConfig
from search.service.limits import HeldResponse, Slots, TooManyError
from tests.search.service.conftest import FINISHED

LOG = f"/api/v1/studies/{FINISHED}/trials/0/files/logs/rank0.log"
EXPORT = f"/api/v1/studies/{FINISHED}/export"


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
    answer = HeldResponse(iter([b"a", b"b"]), slots, "one", media_type="text/plain")
    scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
    try:
        asyncio.run(answer(scope, receive, send))
    except (BaseExceptionGroup, ConnectionResetError, asyncio.CancelledError):
        assert fault is not None
    assert slots.total() == 0


@pytest.mark.parametrize("address", [LOG, EXPORT])
def test_who_takes_away_too_much_at_once_is_told_to_wait(serve, recorded_store, address):
    served = serve(recorded_store, ServiceConfig(limits=Limits(downloads=1)))
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


def test_a_reader_who_goes_away_leaves_his_place(serve, recorded_store):
    served = serve(recorded_store)
    asked = f"GET {LOG} HTTP/1.1\r\nhost: {served.url[7:]}\r\n"
    asked += f"authorization: Bearer {served.tokens['read']}\r\n\r\n"
    with ExitStack() as opened:
        for _ in range(5):
            one = opened.enter_context(socket.create_connection(_address(served)))
            one.sendall(asked.encode())
    with served.client("read") as reader:
        assert reader.get(LOG).status_code == 200
    until(lambda: served.service.downloads.total() == 0)


def until(fact):
    """Wait for what comes a moment after an answer is there."""
    end_s = time.monotonic() + 20
    while not fact():
        assert time.monotonic() < end_s
        time.sleep(0.005)


def _address(served):
    return "127.0.0.1", served.service.config.listen.port
