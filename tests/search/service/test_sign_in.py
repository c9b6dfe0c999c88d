"""How people sign in, stay signed in, and leave."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.service.access import local_place
from search.service.auth import LIFE_S, KnownToken, Role, Sessions, digest_of
from search.service.config import Limits, Listen, ServiceConfig

READ = "read-token-of-a-test"


def cookie_of(answer):
    return answer.headers["set-cookie"].partition(";")[0]


def form(client, path, **fields):
    return client.post(path, data=fields, headers={"origin": str(client.base_url).rstrip("/")})


def test_the_link_signs_in_and_leads_to_the_same_page_without_the_token(shared):
    with shared.client(None) as browser:
        answer = browser.get(f"/studies?offset=50&token={READ}&text=a%26b")
        assert answer.status_code == 303
        assert answer.headers["location"] == "/studies?offset=50&text=a%26b"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert READ not in str(answer.headers)
        assert browser.get("/studies").status_code == 200


def test_the_cookie_is_kept_from_scripts_and_other_sites_and_is_not_the_token(shared):
    with shared.client(None) as browser:
        told = browser.get(f"/?token={READ}").headers["set-cookie"]
    assert set(told.split("; ")[1:]) == {
        "Path=/", f"Max-Age={LIFE_S}", "HttpOnly", "SameSite=strict",
    }  # fmt: skip
    assert READ not in told


def test_behind_https_the_cookie_is_secure_and_browsers_stay_with_https(serve, recorded_store):
    listen = Listen(hosts=("ccl.example.org",), https=True)
    token = KnownToken(name="read", role=Role.READ, sha256=digest_of(READ))
    served = serve(recorded_store, ServiceConfig(listen=listen, token=(token,)))
    with served.client(None, headers={"host": "ccl.example.org"}) as browser:
        answer = browser.get(f"/?token={READ}")
        assert "; Secure" in answer.headers["set-cookie"]
        assert answer.headers["set-cookie"].startswith("__Host-cclsearch=")
        assert answer.headers["strict-transport-security"] == "max-age=31536000"


def test_a_wrong_link_leads_to_the_login_page_without_the_token(shared):
    with shared.client(None, follow_redirects=True) as browser:
        answer = browser.get("/studies?token=wrong")
        assert answer.url.path == "/login"
        assert "not known here" in answer.text
        assert "wrong" not in str(answer.url)


def test_a_page_without_a_token_asks_for_one_and_leads_back(shared):
    with shared.client(None) as browser:
        sent = browser.get("/studies?sort=name")
        assert (sent.status_code, sent.headers["location"]) == (
            303, "/login?next=%2Fstudies%3Fsort%3Dname",
        )  # fmt: skip
        shown = browser.get(sent.headers["location"])
        assert 'name="next" value="/studies?sort=name"' in shown.text
        entered = form(browser, "/login", token=f" {READ}\n", next="/studies?sort=name")
        assert (entered.status_code, entered.headers["location"]) == (303, "/studies?sort=name")
        assert browser.get("/studies").status_code == 200


def test_the_api_without_a_token_says_so(shared):
    with shared.client(None) as program:
        answer = program.get("/api/v1/studies")
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "a token is needed" in answer.json()["error"]


def test_a_link_is_no_way_into_the_api(shared):
    with shared.client(None) as program:
        assert program.get(f"/api/v1/studies?token={READ}").status_code == 401


def test_the_login_page_can_be_used_by_everyone(shared):
    with shared.client(None) as browser:
        text = browser.get("/login?failed=1").text
    assert '<label for="token">' in text
    assert 'role="alert"' in text
    assert 'aria-describedby="problem hint"' in text
    assert not re.search(r"<script(?! type=\"module\" src)|<style|style=|onclick", text)


def test_a_wrong_token_in_the_form_is_told_and_not_shown(shared):
    with shared.client(None) as browser:
        answer = form(browser, "/login", token="<b>wrong", next="/studies")
        assert answer.status_code == 401
        assert "not known here" in answer.text
        assert "wrong</b>" not in answer.text and "&lt;b&gt;wrong" not in answer.text
        assert "set-cookie" not in answer.headers


def test_the_form_of_another_site_signs_nobody_in(shared):
    with shared.client(None, headers={"origin": "http://evil.example"}) as browser:
        assert browser.post("/login", data={"token": READ}).status_code == 403


def test_leaving_forgets_the_browser(shared):
    with shared.client(None) as browser:
        browser.get(f"/?token={READ}")
        answer = form(browser, "/logout")
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
        assert browser.get("/studies").headers["location"].startswith("/login")


def test_a_browser_comes_back_after_the_service_was_started_again(serve, recorded_store):
    before, after = serve(recorded_store), serve(recorded_store)
    with before.client(None) as browser:
        cookie = cookie_of(browser.get(f"/?token={READ}"))
    same_key = replace(after.service, sessions=before.service.sessions)
    assert same_key.sessions.holder(cookie.partition("=")[2], after.service.tokens) is not None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda cookie: cookie[:-1] + "0",
        lambda cookie: f"{cookie}; {cookie}",
        lambda cookie: cookie.replace(".", ""),
        lambda cookie: f"x={cookie}",
    ],
)
def test_a_cookie_that_is_not_ours_or_not_clear_is_none(shared, spoil):
    with shared.client(None) as browser:
        cookie = cookie_of(browser.get(f"/?token={READ}"))
    with shared.client(None, headers={"cookie": spoil(cookie)}) as browser:
        assert browser.get("/api/v1/studies").status_code == 401
        assert browser.get("/studies").status_code == 303


def test_a_cookie_ends(shared):
    ended = Sessions(key=shared.service.sessions.key, clock=lambda: 1e9)
    value = ended.begin(shared.service.tokens[0])
    cookie = {"cookie": f"{shared.service.config.listen.cookie_name}={value}"}
    with shared.client(None, headers=cookie) as browser:
        assert browser.get("/api/v1/studies").status_code == 401


def test_wrong_tokens_are_slowed_down_and_right_ones_are_not(served):
    with served.client(None) as guesser:
        answers = [form(guesser, "/login", token=str(n)).status_code for n in range(10)]
        assert answers == [401] * 10
        assert form(guesser, "/login", token="x").status_code == 429
        bearer = guesser.get("/api/v1/studies", headers={"authorization": "Bearer x"})
        assert (bearer.status_code, bearer.headers["retry-after"]) == (429, "60")
        assert guesser.get("/?token=x").status_code == 429
        assert guesser.get(f"/?token={READ}").status_code == 303


def test_a_browser_with_an_old_cookie_does_not_lock_its_owner_out(shared):
    with shared.client(
        None, headers={"cookie": f"{shared.service.config.listen.cookie_name}=old"}
    ) as browser:
        assert {browser.get("/studies").status_code for _ in range(30)} == {303}
        assert form(browser, "/login", token=READ).status_code == 303


def test_one_token_asks_too_often_and_the_others_go_on(serve, recorded_store):
    limits = Limits(requests_per_s=0.001, burst=3)
    served = serve(recorded_store, ServiceConfig(limits=limits))
    with served.client("read") as eager, served.client("submit") as calm:
        codes = [eager.get("/api/v1/status").status_code for _ in range(4)]
        assert codes == [200, 200, 200, 429]
        assert calm.get("/api/v1/status").status_code == 200


@pytest.mark.parametrize(
    "place",
    ["//evil.example", "/\\evil.example", "https://evil.example", "/\t/evil.example", "evil",
     "javascript:alert(1)", "/\r\nset-cookie: a=b", "", "/" + "a" * 2000, "/é"],
)  # fmt: skip
def test_nobody_is_sent_elsewhere(shared, place):
    with shared.client(None) as browser:
        answer = form(browser, "/login", token=READ, next=place)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")


@given(st.text(max_size=50).map(lambda text: "/" + text))
def test_a_place_of_ours_is_a_path_and_nothing_else(text):
    place = local_place(text)
    assert place.isascii() and place.isprintable() and " " not in place
    assert place[0] == "/" and place[1:2] not in {"/", "\\"}
