"""What a request must look like, who makes it, what they get, and how people sign in."""

import re
from collections import Counter

import pytest
from fastapi.routing import iter_route_contexts
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from search.service.access import cookie_in, local_place, refusal_of, token_in
from search.service.app import app_of
from search.service.auth import LIFE_S, Caller, KnownToken, Role, Sessions, digest_of
from search.service.config import Listen, ServiceConfig

HERE = "127.0.0.1:8765"
TOKEN = KnownToken(name="ann", role=Role.READ, sha256="0" * 64)
LOOPBACK = ServiceConfig()
BEHIND_HTTPS = ServiceConfig(listen=Listen(hosts=("ccl.example.org",), https=True), token=(TOKEN,))
EVERYWHERE = ServiceConfig(listen=Listen(address="0.0.0.0", hosts=("node1",)), token=(TOKEN,))
READ_TOKEN = "read-token-of-a-test"


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


@pytest.mark.parametrize(
    ("config", "known", "foreign"),
    [
        (
            LOOPBACK,
            [HERE, "localhost", "LOCALHOST:1", "[::1]:8765", "127.0.0.1"],
            ["evil.example", "evil.example:8765", "localhost.evil.example",
             "127.0.0.1.evil.example", "", "localhost:", "localhost:x", "[::1", "::1", "10.0.0.1",
             "a@b", "localhost ", None],
        ),
        (
            EVERYWHERE,
            ["10.1.2.3:8765", "[fe80::1]:8765", "node1:8765", "localhost"],
            ["evil.example"],
        ),
    ],
)  # fmt: skip
def test_a_service_answers_to_its_own_names_and_addresses_alone(config, known, foreign):
    assert {status(asked(host=host), config) for host in known} == {None}
    assert {status(asked(host=host), config) for host in foreign} == {421}


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        *(
            (asked(**{name: [HERE, HERE]}), 400)
            for name in (
                "authorization", "content_length", "content_type", "host", "origin",
                "sec_fetch_site",
            )
        ),
        *(
            (asked("POST", "/api/v1/studies", content_length=length), 413)
            for length in ("-1", "1e3", "x", "", "+1", "1048577", "9" * 40)
        ),
        (asked(x=["y"] * 101), 431),
        (asked(query=b"a" * 8192), 414),
    ],
)  # fmt: skip
def test_a_head_that_is_doubled_or_too_large_is_refused(request_, code):
    assert status(request_) == code


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


LINKED = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
FORM = {"host": "ccl.example.org", "cookie": "a=b"}


@pytest.mark.parametrize(
    ("request_", "config", "code"),
    [
        (asked("POST", "/studies/new", cookie="a=b", origin=f"http://{HERE}"), LOOPBACK, None),
        (asked("POST", "/studies/new", cookie="a=b", sec_fetch_site="same-origin"), LOOPBACK, None),
        (asked("POST", "/api/v1/studies", authorization="Bearer x"), LOOPBACK, None),
        (
            asked("POST", "/api/v1/studies", authorization="Bearer x", origin="http://evil.org"),
            LOOPBACK,
            403,
        ),
        (asked(**LINKED), LOOPBACK, None),
        (asked(path="/api/v1/studies", **LINKED), LOOPBACK, 403),
        (asked(sec_fetch_site="same-site", sec_fetch_mode="no-cors"), LOOPBACK, 403),
        (asked("POST", "/logout", origin="https://ccl.example.org", **FORM), BEHIND_HTTPS, None),
        (asked("POST", "/logout", origin="http://ccl.example.org", **FORM), BEHIND_HTTPS, 403),
    ],
)
def test_our_own_pages_and_programs_act_and_other_sites_may_only_link(request_, config, code):
    assert status(request_, config) == code


@pytest.mark.parametrize(
    ("header", "token"),
    [("Bearer abc", "abc"), ("bEaReR  abc ", "abc"), ("Basic YTpi", ""), ("Bearer", ""),
     ("Bearer a b", ""), ("Bearer é", ""), ("", ""), ("Bearer " + "a" * 513, ""), (None, None)],
)  # fmt: skip
def test_a_header_holds_one_token_or_an_empty_one(header, token):
    headers = {} if header is None else {"authorization": header}
    assert token_in(Headers(headers)) == token


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
            st.binary(max_size=60),
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


NOBODY, READ, SUBMIT = "nobody", "read", "submit"
ROLES = (NOBODY, READ, SUBMIT, "admin")
STUDY = "/studies/{study_id}"
LEAST = {
    NOBODY: (
        "GET /api/v1/health",
        "GET /favicon.ico",
        "GET /login",
        "GET /static/{_version}/{name}",
        "POST /login",
        "POST /logout",
    ),
    READ: (
        *("GET /", "GET /compare", "GET /health", "GET /leaderboard", "GET /studies"),
        *(
            f"GET {STUDY}{rest}"
            for rest in (
                "", "/analysis", "/explore", "/policies", "/policies/{digest}", "/trials",
                "/trials.csv", "/trials/{ordinal}", "/trials/{ordinal}/log",
                "/trials/{ordinal}/timeline", "/trials/{ordinal}/transcript",
            )
        ),
        *(
            f"GET /api/v1{path}"
            for path in (
                "/compare/studies", "/compare/trials", "/environments", "/leaderboard",
                "/metric-definitions", "/metrics", "/openapi.json", "/status", "/studies", STUDY,
            )
        ),
        *(
            f"GET /api/v1{STUDY}/{rest}"
            for rest in (
                "events", "export", "front", "history", "knobs", "metrics", "policies",
                "policies/{digest}", "progress", "report", "trials", "trials/{ordinal}",
                "trials/{ordinal}/files", "trials/{ordinal}/files/{name:path}",
                "trials/{ordinal}/trace", "trials/{ordinal}/transcript",
            )
        ),
    ),
    SUBMIT: (
        "GET /studies/new",
        "POST /studies/new",
        "POST /api/v1/studies",
        *(f"POST {STUDY}/{what}" for what in ("cancel", "labels", "race", "resume")),
        *(f"POST /api/v1{STUDY}/{what}" for what in ("cancel", "labels", "race", "resume")),
    ),
}  # fmt: skip
"""What each role may do that those before it may not; a route that is missing here fails a test.

Whose study may be cancelled or resumed is told by the tests further down.
"""
ROUTES = [(route, role) for role, routes in LEAST.items() for route in routes]
VALUES = {
    "{study_id}": "20260101-000000-aaaa",
    "{ordinal}": "0",
    "{name:path}": "logs/rank0.log",
    "{name}": "pages.css",
    "{digest}": "0" * 64,
    "{_version}": "0",
}


def send(client, route):
    """The answer to a route with values that exist, sent as our own page would, but empty."""
    method, _, path = route.partition(" ")
    for name, value in VALUES.items():
        path = path.replace(name, value)
    sent = {"json": {}} if "/api/" in path else {"data": {"none": ""}}
    own = {"origin": str(client.base_url).rstrip("/")}
    return client.request(method, path, headers=own, **(sent if method == "POST" else {}))


def is_refused(answer):
    """Whether a role gets nothing but the way to the login page, or a refusal."""
    to_login = answer.headers.get("location", "").startswith("/login")
    named = answer.status_code == 403 or "www-authenticate" in answer.headers
    return named or (to_login and "set-cookie" not in answer.headers)


def test_every_route_has_an_expectation(shared):
    routes = iter_route_contexts(app_of(shared.service).app.routes)
    found = {f"{method} {r.path}" for r in routes for method in (r.methods or {"?"}) - {"HEAD"}}
    assert found == {route for route, _ in ROUTES}


@pytest.mark.parametrize("role", ROLES)
def test_each_role_gets_what_it_may_and_nothing_else(served, role):
    with served.client(None if role == NOBODY else role) as client:
        refused = {route for route, _ in ROUTES if is_refused(send(client, route))}
    beyond = ROLES[ROLES.index(role) + 1 :]
    assert refused == {route for route, least in ROUTES if least in beyond}


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer garbage"},
        {"authorization": "Basic YWRtaW46YWRtaW4="},
        {"cookie": "cclsearch=admin-token-of-a-test"},
        {"x-forwarded-user": "admin", "x-forwarded-for": "127.0.0.1", "x-api-key": "admin"},
    ],
)
def test_what_is_no_token_is_nobody(shared, headers):
    with shared.client(None, headers=headers) as client:
        answers = {route: is_refused(send(client, route)) for route, _ in ROUTES}
    assert answers == {route: least != NOBODY for route, least in ROUTES}


def test_a_token_that_is_given_twice_is_refused_everywhere(shared):
    with shared.client(None) as client:
        twice = [("authorization", "Bearer admin-token-of-a-test")] * 2
        codes = Counter(
            client.get(route.partition(" ")[2], headers=twice).status_code for route, _ in ROUTES
        )
    assert codes == {400: len(ROUTES)}


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_who_may_only_read_changes_nothing_even_where_a_route_would_forget_it(shared, method):
    with shared.client("read") as reader, shared.client(None) as stranger:
        assert reader.request(method, "/api/v1/a-route-to-come").status_code == 403
        assert stranger.request(method, "/api/v1/a-route-to-come").status_code == 401


@pytest.mark.parametrize("path", ["/api/v1/a-route-to-come", "/a-page-to-come", "//", "/static"])
def test_what_is_not_known_is_shown_to_nobody_without_a_token(shared, path):
    with shared.client(None) as stranger:
        assert is_refused(stranger.get(path))


def test_a_study_is_changed_by_whoever_submitted_it_and_by_admins_alone(served):
    assert not Caller(name="other", role=Role.SUBMIT).may_change("submit")
    assert not Caller(name="submit", role=Role.READ).may_change("submit")
    with served.client("submit") as program, served.client("admin") as admin:
        own, foreign = (
            who.post("/api/v1/studies", json={"trials": 1}).json()["id"] for who in (program, admin)
        )
        changes = [
            *(program.post(f"/api/v1/studies/{own}/{what}") for what in ("cancel", "resume")),
            admin.post(f"/api/v1/studies/{own}/cancel"),
        ]
        refusals = [
            program.post(f"/api/v1/studies/{foreign}/{what}") for what in ("cancel", "resume")
        ]
    assert [answer.status_code for answer in (*changes, *refusals)] == [202] * 3 + [403] * 2
    assert "was submitted by admin; only they and admins" in refusals[0].json()["error"]


def cookie_of(answer):
    return answer.headers["set-cookie"].partition(";")[0]


def form(client, path, **fields):
    return client.post(path, data=fields, headers={"origin": str(client.base_url).rstrip("/")})


@pytest.fixture
def browser(shared):
    """A client without a token."""
    with shared.client(None) as found:
        yield found


def test_the_link_signs_in_and_leads_to_the_same_page_without_the_token(browser):
    answer = browser.get(f"/studies?offset=50&token={READ_TOKEN}&text=a%26b")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/studies?offset=50&text=a%26b"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert READ_TOKEN not in str(answer.headers)
    assert set(answer.headers["set-cookie"].split("; ")[1:]) == {
        "Path=/", f"Max-Age={LIFE_S}", "HttpOnly", "SameSite=strict",
    }  # fmt: skip
    refused = {route for route, _ in ROUTES[::-1] if is_refused(send(browser, route))}
    assert refused == set(LEAST[SUBMIT])


def test_behind_https_the_cookie_is_secure_and_browsers_stay_with_https(serve, made_once):
    listen = Listen(hosts=("ccl.example.org",), https=True)
    token = KnownToken(name="read", role=Role.READ, sha256=digest_of(READ_TOKEN))
    served = serve(made_once, ServiceConfig(listen=listen, token=(token,)))
    with served.client(None, headers={"host": "ccl.example.org"}) as browser:
        answer = browser.get(f"/?token={READ_TOKEN}")
    assert "; Secure" in answer.headers["set-cookie"]
    assert answer.headers["set-cookie"].startswith("__Host-cclsearch=")
    assert answer.headers["strict-transport-security"] == "max-age=31536000"


def test_a_wrong_link_leads_to_the_login_page_without_the_token(browser):
    answer = browser.get("/studies?token=wrong", follow_redirects=True)
    assert answer.url.path == "/login"
    assert "not known here" in answer.text
    assert "wrong" not in str(answer.url)


def test_a_page_without_a_token_asks_for_one_and_leads_back_until_signing_out(browser):
    sent = browser.get("/studies?sort=name")
    assert sent.status_code == 303
    assert sent.headers["location"] == "/login?next=%2Fstudies%3Fsort%3Dname"
    shown = browser.get(sent.headers["location"])
    assert 'name="next" value="/studies?sort=name"' in shown.text
    entered = form(browser, "/login", token=f" {READ_TOKEN}\n", next="/studies?sort=name")
    assert (entered.status_code, entered.headers["location"]) == (303, "/studies?sort=name")
    assert browser.get("/studies").status_code == 200
    left = form(browser, "/logout")
    assert (left.status_code, left.headers["location"]) == (303, "/login")
    assert browser.get("/studies").headers["location"].startswith("/login")


@pytest.mark.parametrize("query", ["", f"?token={READ_TOKEN}"])
def test_the_api_without_a_token_in_a_header_says_so(browser, query):
    answer = browser.get(f"/api/v1/studies{query}")
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "a token is needed" in answer.json()["error"]


def test_the_login_page_can_be_used_by_everyone(browser):
    text = browser.get("/login?failed=1").text
    assert '<label for="token">' in text
    assert 'role="alert"' in text
    assert 'aria-describedby="problem hint"' in text
    assert not re.search(r"<script(?! type=\"module\" src)|<style|style=|onclick", text)


def test_a_wrong_token_in_the_form_is_told_and_not_shown(browser):
    answer = form(browser, "/login", token="<b>wrong", next="/studies")
    foreign = {"origin": "http://evil.example"}
    assert answer.status_code == 401
    assert "not known here" in answer.text
    assert "wrong</b>" not in answer.text and "&lt;b&gt;wrong" not in answer.text
    assert "set-cookie" not in answer.headers
    assert browser.post("/login", data={"token": READ_TOKEN}, headers=foreign).status_code == 403


@pytest.mark.parametrize(
    "spoil",
    [
        lambda cookie, _service: cookie[:-1] + "0",
        lambda cookie, _service: f"{cookie}; {cookie}",
        lambda cookie, _service: cookie.replace(".", ""),
        lambda cookie, _service: f"x={cookie}",
        lambda cookie, service: (
            cookie.partition("=")[0]
            + "="
            + Sessions(key=service.sessions.key, clock=lambda: 1e9).begin(service.tokens[0])
        ),
    ],
)
def test_a_cookie_that_is_not_ours_not_clear_or_over_is_none(shared, browser, spoil):
    cookie = spoil(cookie_of(browser.get(f"/?token={READ_TOKEN}")), shared.service)
    with shared.client(None, headers={"cookie": cookie}) as other:
        assert other.get("/api/v1/studies").status_code == 401
        assert other.get("/studies").status_code == 303


def test_wrong_tokens_are_slowed_down_and_right_ones_are_not(served):
    old = {"cookie": f"{served.service.config.listen.cookie_name}=old"}
    with served.client(None, headers=old) as owner:  # an old cookie is no wrong token
        assert {owner.get("/studies").status_code for _ in range(30)} == {303}
        assert form(owner, "/login", token=READ_TOKEN).status_code == 303
    with served.client(None) as guesser:
        answers = [form(guesser, "/login", token=str(n)).status_code for n in range(10)]
        assert answers == [401] * 10
        assert form(guesser, "/login", token="x").status_code == 429
        bearer = guesser.get("/api/v1/studies", headers={"authorization": "Bearer x"})
        assert (bearer.status_code, bearer.headers["retry-after"]) == (429, "60")
        assert guesser.get("/?token=x").status_code == 429
        assert guesser.get(f"/?token={READ_TOKEN}").status_code == 303


@pytest.mark.parametrize(
    "place",
    ["//evil.example", "/\\evil.example", "https://evil.example", "/\t/evil.example", "evil",
     "javascript:alert(1)", "/\r\nset-cookie: a=b", "", "/" + "a" * 2000, "/é"],
)  # fmt: skip
def test_nobody_is_sent_elsewhere(browser, place):
    answer = form(browser, "/login", token=READ_TOKEN, next=place)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


@given(st.text(max_size=50).map(lambda text: "/" + text))
def test_a_place_of_ours_is_a_path_and_nothing_else(text):
    place = local_place(text)
    assert place.isascii() and place.isprintable() and " " not in place
    assert place[0] == "/" and place[1:2] not in {"/", "\\"}
