"""What the head of a request must look like: foreign pages, doubled headers, nonsense."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from search.service.access import cookie_in, is_known_host, refusal_of, token_in
from search.service.auth import KnownToken, Role
from search.service.config import Listen, ServiceConfig

HERE = "127.0.0.1:8765"
LOOPBACK = ServiceConfig()
TOKEN = KnownToken(name="ann", role=Role.READ, sha256="0" * 64)
BEHIND_HTTPS = ServiceConfig(listen=Listen(hosts=("ccl.example.org",), https=True), token=(TOKEN,))
EVERYWHERE = ServiceConfig(listen=Listen(address="0.0.0.0", hosts=("node1",)), token=(TOKEN,))
BYTES = st.binary(max_size=60)


def asked(method="GET", path="/studies", query=b"", **headers):
    """A request by headers whose names have `_` for `-`; a list stands for several."""
    lines = []
    for name, values in ({"host": HERE} | headers).items():
        for value in values if isinstance(values, list) else [values]:
            if value is not None:
                lines.append((name.replace("_", "-").encode(), value.encode("latin-1")))
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "headers": lines,
    }


def status(request, config=LOOPBACK):
    refusal = refusal_of(request, config)
    return None if refusal is None else refusal.status_code


@pytest.mark.parametrize("host", [HERE, "localhost", "LOCALHOST:1", "[::1]:8765", "127.0.0.1"])
def test_this_machine_is_called_by_any_of_its_names_and_through_a_forwarded_port(host):
    assert is_known_host(host, LOOPBACK)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8765", "localhost.evil.example", "127.0.0.1.evil.example",
     "", "localhost:", "localhost:x", "[::1", "::1", "10.0.0.1", "a@b",
     "localhost "],
)  # fmt: skip
def test_a_name_that_is_not_ours_is_refused(host):
    assert status(asked(host=host)) == 421


@pytest.mark.parametrize("host", ["10.1.2.3:8765", "[fe80::1]:8765", "node1:8765", "localhost"])
def test_open_to_a_network_it_is_called_by_its_addresses_and_configured_names(host):
    assert is_known_host(host, EVERYWHERE)


def test_open_to_a_network_a_foreign_name_is_refused():
    assert not is_known_host("evil.example", EVERYWHERE)


def test_a_request_without_a_host_is_refused():
    assert status(asked(host=None)) == 421


@pytest.mark.parametrize(
    "name",
    ["authorization", "content_length", "content_type", "host", "origin", "sec_fetch_site"],
)
def test_a_header_that_decides_something_counts_only_once(name):
    assert status(asked(**{name: [HERE, HERE]})) == 400


@pytest.mark.parametrize("length", ["-1", "1e3", "x", "", "+1", "1048577", "9" * 40])
def test_a_length_that_is_none_or_too_much_is_refused(length):
    assert status(asked("POST", "/api/v1/studies", content_length=length)) == 413


def test_too_many_headers_and_too_long_addresses_are_refused():
    assert status(asked(x=["y"] * 101)) == 431
    assert status(asked(query=b"a" * 8192)) == 414


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "null"},
        {"origin": "http://evil.example"},
        {"origin": "http://localhost:9999", "sec_fetch_site": "same-site"},
        {"origin": "https://127.0.0.1:8765"},
        {"origin": f"http://{HERE}.evil.example"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "none"},
    ],
)
def test_a_browser_changes_nothing_for_another_site(method, headers):
    for path in ("/logout", "/login", "/studies/new", "/api/v1/studies"):
        assert status(asked(method, path, cookie="a=b", **headers)) == 403


@pytest.mark.parametrize(
    "headers", [{"origin": f"http://{HERE}"}, {"sec_fetch_site": "same-origin"}]
)
def test_a_form_of_our_own_page_is_taken(headers):
    assert status(asked("POST", "/studies/new", cookie="a=b", **headers)) is None


def test_a_program_with_a_token_needs_no_origin():
    request = asked("POST", "/api/v1/studies", authorization="Bearer x")
    assert status(request) is None


def test_a_foreign_page_cannot_spend_a_token_either():
    request = asked("POST", "/api/v1/studies", authorization="Bearer x", origin="http://evil.org")
    assert status(request) == 403


def test_another_site_may_link_to_a_page_but_not_embed_or_fetch_anything():
    linked = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    assert status(asked(**linked)) is None
    assert status(asked(path="/api/v1/studies", **linked)) == 403
    assert status(asked(sec_fetch_site="same-site", sec_fetch_mode="no-cors")) == 403


def test_behind_a_proxy_the_origin_is_the_one_that_browsers_see():
    form = {"host": "ccl.example.org", "cookie": "a=b"}
    own = asked("POST", "/logout", origin="https://ccl.example.org", **form)
    plain = asked("POST", "/logout", origin="http://ccl.example.org", **form)
    assert (status(own, BEHIND_HTTPS), status(plain, BEHIND_HTTPS)) == (None, 403)


@pytest.mark.parametrize(
    ("header", "token"),
    [("Bearer abc", "abc"), ("bEaReR  abc ", "abc"), ("Basic YTpi", ""), ("Bearer", ""),
     ("Bearer a b", ""), ("Bearer é", ""), ("", ""), ("Bearer " + "a" * 513, "")],
)  # fmt: skip
def test_a_header_holds_one_token_or_an_empty_one(header, token):
    assert token_in(Headers({"authorization": header})) == token


def test_without_the_header_there_is_no_token():
    assert token_in(Headers({})) is None


@pytest.mark.parametrize(
    ("cookie", "value"),
    [("c=1", "1"), (" x=2 ; c = 1 ;", "1"), ("c=1; c=2", None), ("cc=1", None), ("c", ""),
     ("", None)],
)  # fmt: skip
def test_a_cookie_that_is_given_twice_is_none(cookie, value):
    assert cookie_in(Headers({"cookie": cookie}), "c") == value


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [b"host", b"origin", b"cookie", b"authorization", b"content-length",
                 b"sec-fetch-site", b"sec-fetch-mode", b"transfer-encoding"]
            ),
            BYTES,
        ),
        max_size=6,
    ),
    st.sampled_from([LOOPBACK, BEHIND_HTTPS, EVERYWHERE]),
)  # fmt: skip
def test_no_header_whatever_breaks_the_checks(lines, config):
    request = asked("POST", "/api/v1/studies") | {"headers": lines}
    headers = Headers(scope=request)
    assert status(request, config) in {None, 400, 403, 413, 421}
    assert token_in(headers) is None or token_in(headers).isascii()
    assert cookie_in(headers, "c") is None or ";" not in cookie_in(headers, "c")
