"""Tokens, cookies and limits: whose a cookie is, that no token is found, what each may use."""

import asyncio
import logging
import stat
from contextlib import ExitStack, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.errors import StoreError, StudyError
from search.service.access import HeldResponse
from search.service.app import print_new_token
from search.service.auth import (
    LIFE_S,
    MOST_CALLERS,
    KnownToken,
    Rates,
    Role,
    Sessions,
    Slots,
    TooManyError,
    address_of,
    digest_of,
    find_token,
    load_key,
    local_token,
    new_token,
)
from search.service.config import Limits, ServiceConfig, read_config
from tests.search.service.conftest import FINISHED, until
from tests.support.records import contents

ANN = KnownToken(name="ann@lab", role=Role.READ, sha256=digest_of("a"))
BOB = KnownToken(name="bob", role=Role.ADMIN, sha256=digest_of("b"))
RENEWED = KnownToken(name=ANN.name, role=ANN.role, sha256=digest_of("new"))
RAISED = KnownToken(name=ANN.name, role=Role.SUBMIT, sha256=ANN.sha256)
START_S = 1_700_000_000.0
LOG = f"/api/v1/studies/{FINISHED}/trials/0/files/logs/rank0.log"
EXPORT = f"/api/v1/studies/{FINISHED}/export"


def at(now_s=START_S, key=b"k" * 32):
    return Sessions(key=key, clock=lambda: now_s)


@pytest.mark.parametrize(
    ("sessions", "known", "holder"),
    [
        (at(), (BOB, ANN), ANN),
        (at(START_S + LIFE_S - 1), (ANN,), ANN),
        (at(START_S + LIFE_S), (ANN,), None),
        (at(), (BOB,), None),
        (at(), (RENEWED,), None),
        (at(), (RAISED,), RAISED),
        (at(key=b"x" * 32), (ANN,), None),
    ],
)
def test_a_cookie_stands_for_its_token_while_both_last_with_the_role_of_now(
    sessions, known, holder
):
    assert sessions.holder(at().begin(ANN), known) is holder


@given(st.text(max_size=200))
def test_no_text_is_taken_for_a_cookie(text):
    assert at().holder(text, (ANN, BOB)) is None


@given(st.integers(0, 500), st.characters(codec="ascii"))
def test_a_cookie_that_was_changed_anywhere_is_none(place, character):
    cookie = at().begin(ANN)
    place %= len(cookie)
    changed = cookie[:place] + character + cookie[place + 1 :]
    assert (at().holder(changed, (ANN, BOB)) is None) == (changed != cookie)


def test_neither_the_token_nor_the_key_can_be_read_from_a_cookie():
    assert digest_of("a") not in at().begin(ANN)
    assert "k" * 8 not in repr(at())


def test_the_key_is_made_once_and_for_its_owner_alone(tmp_path):
    key = load_key(tmp_path)
    assert load_key(tmp_path) == key
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert [*tmp_path.iterdir()] == [tmp_path / "key"]
    with pytest.raises(StoreError, match="cannot use"):
        load_key(tmp_path / "missing")


@pytest.mark.parametrize(("content", "mode"), [(b"short", 0o600), (b"k" * 32, 0o644)])
def test_a_key_that_others_can_read_or_that_is_damaged_is_refused(tmp_path, content, mode):
    (tmp_path / "key").write_bytes(content)
    (tmp_path / "key").chmod(mode)
    with pytest.raises(StoreError, match="remove it, and everyone signs in again"):
        load_key(tmp_path)


def test_tokens_cannot_be_guessed_and_the_local_one_outlives_the_service():
    assert at().local_token == at().local_token != at(key=b"x" * 32).local_token
    assert min(len(at().local_token), len(new_token())) >= 43
    assert len({new_token() for _ in range(100)}) == 100


@given(st.text(max_size=80) | st.sampled_from([digest_of("right"), "right", "own"]))
def test_only_the_token_itself_is_known(text):
    known = (
        KnownToken(name="ann", role=Role.READ, sha256=digest_of("right")),
        local_token("own"),
    )
    assert find_token(text, known) is {"right": known[0], "own": known[1]}.get(text)


def test_a_new_token_is_shown_once_and_only_its_hash_is_to_be_kept(capsys, tmp_path):
    print_new_token("ci@lab:submit")
    said = capsys.readouterr()
    token = said.err.split()[-1]
    (tmp_path / "service.toml").write_text(said.out)
    config = read_config(tmp_path / "service.toml")
    assert token not in said.out
    assert find_token(token, config.token) == config.token[0]
    assert config.token[0].role is Role.SUBMIT


@pytest.mark.parametrize("asked", ["", "ann", "ann:root", ":read", "a b:read", "ann:READ"])
def test_a_token_for_nobody_or_with_no_role_is_not_made(asked, capsys):
    with pytest.raises(StudyError):
        print_new_token(asked)
    assert capsys.readouterr().out == ""


def test_a_token_is_found_in_no_file_and_no_log(served, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    token, wrong = served.tokens["submit"], "a-token-that-is-wrong"
    with served.client("submit") as program:
        program.post("/api/v1/studies", json={"trials": 1}, headers={"idempotency-key": "k"})
        refused = program.post("/api/v1/studies", json={"trials": -1})
    with served.client(None) as browser:
        signed = browser.get(f"/studies?token={token}")
        failed = browser.get(f"/studies?token={wrong}")
        browser.get("/studies")
    with served.client(None, headers={"authorization": f"Bearer {wrong}"}) as stranger:
        unknown = stranger.get("/api/v1/studies")
    cookie = signed.headers["set-cookie"].partition("=")[2].partition(";")[0]

    kept = b"".join(content for _, content in contents(served.service.store))
    told = "".join(answer.text + str(answer.headers) for answer in (refused, failed, unknown))
    ours = [record.getMessage() for record in caplog.records if "http" not in record.name]
    logged = "".join(ours) + "".join(capfd.readouterr())
    for secret in (token, wrong, cookie):
        assert secret.encode() not in kept
        assert secret not in told
        assert secret not in logged
    assert token not in str(signed.headers)


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
