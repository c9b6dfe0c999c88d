"""Signed cookies: whose they are, until when, and that nobody makes one."""

import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.errors import StoreError
from search.service.auth import LIFE_S, KnownToken, Role, Sessions, digest_of, load_key
from search.service.config import Listen

ANN = KnownToken(name="ann@lab", role=Role.READ, sha256=digest_of("a"))
BOB = KnownToken(name="bob", role=Role.ADMIN, sha256=digest_of("b"))
START_S = 1_700_000_000.0


def at(now_s=START_S, key=b"k" * 32):
    return Sessions(key=key, clock=lambda: now_s)


def test_a_cookie_stands_for_the_token_that_it_was_made_for():
    cookie = at().begin(ANN)
    assert at().holder(cookie, (BOB, ANN)) is ANN
    assert at(START_S + LIFE_S - 1).holder(cookie, (ANN,)) is ANN


def test_a_cookie_ends():
    assert at(START_S + LIFE_S).holder(at().begin(ANN), (ANN,)) is None


def test_a_cookie_ends_with_its_token():
    cookie = at().begin(ANN)
    replaced = KnownToken(name=ANN.name, role=ANN.role, sha256=digest_of("new"))
    assert at().holder(cookie, (BOB,)) is None
    assert at().holder(cookie, (replaced,)) is None


def test_a_cookie_of_another_service_is_worth_nothing():
    assert at(key=b"x" * 32).holder(at().begin(ANN), (ANN,)) is None


def test_the_role_is_that_of_the_configuration_now():
    raised = KnownToken(name=ANN.name, role=Role.SUBMIT, sha256=ANN.sha256)
    assert at().holder(at().begin(ANN), (raised,)) is raised


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


def test_the_link_of_this_machine_outlives_the_service_and_differs_from_others():
    assert at().local_token == at().local_token
    assert at().local_token != at(key=b"x" * 32).local_token
    assert len(at().local_token) >= 43


@pytest.mark.parametrize(("content", "mode"), [(b"short", 0o600), (b"k" * 32, 0o644)])
def test_a_key_that_others_can_read_or_that_is_damaged_is_refused(tmp_path, content, mode):
    (tmp_path / "key").write_bytes(content)
    (tmp_path / "key").chmod(mode)
    with pytest.raises(StoreError, match="remove it, and everyone signs in again"):
        load_key(tmp_path)


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(StoreError, match="cannot use"):
        load_key(tmp_path / "missing")


def test_a_cookie_is_told_apart_by_port_and_kept_to_its_host_over_https():
    assert Listen(port=9).cookie_name == "cclsearch_9"
    assert Listen(hosts=("a.b",), https=True).cookie_name == "__Host-cclsearch"
