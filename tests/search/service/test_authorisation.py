"""Every route of the application, and what each role gets from it."""

from collections import Counter

import pytest
from fastapi.routing import iter_route_contexts

from search.service.app import app_of
from search.service.auth import Caller, Role

NOBODY, READ, SUBMIT = "nobody", "read", "submit"
ROLES = (NOBODY, READ, SUBMIT, "admin")
LOGIN = "/login"

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
        "GET /",
        "GET /api/v1/compare/studies",
        "GET /api/v1/compare/trials",
        "GET /api/v1/environments",
        "GET /api/v1/leaderboard",
        "GET /api/v1/metric-definitions",
        "GET /api/v1/metrics",
        "GET /api/v1/openapi.json",
        "GET /api/v1/status",
        "GET /api/v1/studies",
        "GET /api/v1/studies/{study_id}",
        "GET /api/v1/studies/{study_id}/events",
        "GET /api/v1/studies/{study_id}/export",
        "GET /api/v1/studies/{study_id}/front",
        "GET /api/v1/studies/{study_id}/history",
        "GET /api/v1/studies/{study_id}/knobs",
        "GET /api/v1/studies/{study_id}/metrics",
        "GET /api/v1/studies/{study_id}/policies",
        "GET /api/v1/studies/{study_id}/policies/{digest}",
        "GET /api/v1/studies/{study_id}/report",
        "GET /api/v1/studies/{study_id}/trials",
        "GET /api/v1/studies/{study_id}/trials/{ordinal}",
        "GET /api/v1/studies/{study_id}/trials/{ordinal}/files",
        "GET /api/v1/studies/{study_id}/trials/{ordinal}/files/{name:path}",
        "GET /api/v1/studies/{study_id}/trials/{ordinal}/transcript",
        "GET /compare",
        "GET /health",
        "GET /leaderboard",
        "GET /studies",
        "GET /studies/{study_id}",
        "GET /studies/{study_id}/explore",
        "GET /studies/{study_id}/policies",
        "GET /studies/{study_id}/policies/{digest}",
        "GET /studies/{study_id}/trials",
        "GET /studies/{study_id}/trials.csv",
        "GET /studies/{study_id}/trials/{ordinal}",
        "GET /studies/{study_id}/trials/{ordinal}/log",
        "GET /studies/{study_id}/trials/{ordinal}/transcript",
    ),
    SUBMIT: (
        "GET /studies/new",
        "POST /api/v1/studies",
        "POST /api/v1/studies/{study_id}/cancel",
        "POST /api/v1/studies/{study_id}/resume",
        "POST /studies/new",
        "POST /studies/{study_id}/cancel",
        "POST /studies/{study_id}/resume",
    ),
}
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


def asked(client, route):
    """The answer to a route with values that exist, sent as our own page would, but empty."""
    method, _, path = route.partition(" ")
    for name, value in VALUES.items():
        path = path.replace(name, value)
    sent = {"json": {}} if "/api/" in path else {"data": {"none": ""}}
    own = {"origin": str(client.base_url).rstrip("/")}
    return client.request(method, path, headers=own, **(sent if method == "POST" else {}))


def is_refused(answer):
    """Whether a role gets nothing but the way to the login page, or a refusal."""
    to_login = answer.headers.get("location", "").startswith(LOGIN)
    named = answer.status_code == 403 or "www-authenticate" in answer.headers
    return named or (to_login and "set-cookie" not in answer.headers)


def test_every_route_has_an_expectation(shared):
    routes = iter_route_contexts(app_of(shared.service).app.routes)
    found = {f"{method} {r.path}" for r in routes for method in (r.methods or {"?"}) - {"HEAD"}}
    assert found == {route for route, _ in ROUTES}


@pytest.mark.parametrize("role", ROLES)
def test_each_role_gets_what_it_may_and_nothing_else(served, role):
    with served.client(None if role == NOBODY else role) as client:
        refused = {route for route, _ in ROUTES if is_refused(asked(client, route))}
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
        answers = {route: is_refused(asked(client, route)) for route, _ in ROUTES}
    assert answers == {route: least != NOBODY for route, least in ROUTES}


def test_a_token_that_is_given_twice_is_refused_everywhere(shared):
    with shared.client(None) as client:
        twice = [("authorization", "Bearer admin-token-of-a-test")] * 2
        codes = Counter(
            client.get(route.partition(" ")[2], headers=twice).status_code for route, _ in ROUTES
        )
    assert codes == {400: len(ROUTES)}


def test_a_browser_gets_what_its_token_gets(shared):
    with shared.client(None) as browser:
        browser.get("/?token=read-token-of-a-test")
        refused = {route for route, _ in ROUTES[::-1] if is_refused(asked(browser, route))}
    assert refused == set(LEAST[SUBMIT])


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_who_may_only_read_changes_nothing_even_where_a_route_would_forget_it(shared, method):
    with shared.client("read") as reader:
        assert reader.request(method, "/api/v1/a-route-to-come").status_code == 403
    with shared.client(None) as stranger:
        assert stranger.request(method, "/api/v1/a-route-to-come").status_code == 401


@pytest.mark.parametrize("path", ["/api/v1/a-route-to-come", "/a-page-to-come", "//", "/static"])
def test_what_is_not_known_is_shown_to_nobody_without_a_token(shared, path):
    with shared.client(None) as stranger:
        assert is_refused(stranger.get(path))


@pytest.fixture
def submitted(served):
    """The id of a study that `submit` has put into the queue."""
    with served.client("submit") as program:
        return program.post("/api/v1/studies", json={"trials": 1}).json()["id"]


def test_a_study_is_cancelled_and_resumed_by_whoever_submitted_it(served, submitted):
    with served.client("submit") as program:
        codes = [
            program.post(f"/api/v1/studies/{submitted}/{what}").status_code
            for what in ("cancel", "resume")
        ]
    assert codes == [202, 202]


def test_a_study_of_another_is_cancelled_and_resumed_by_admins_alone(served, submitted):
    other = Caller(name="other", role=Role.SUBMIT)
    assert not other.may_change("submit")
    assert not Caller(name="submit", role=Role.READ).may_change("submit")
    with served.client("admin") as admin:
        mine = admin.post("/api/v1/studies", json={"trials": 1}).json()["id"]
        assert admin.post(f"/api/v1/studies/{submitted}/cancel").status_code == 202
    with served.client("submit") as program:
        refused = program.post(f"/api/v1/studies/{mine}/cancel")
        assert program.post(f"/api/v1/studies/{mine}/resume").status_code == 403
    assert refused.status_code == 403
    assert "was submitted by admin; only they and admins" in refused.json()["error"]
