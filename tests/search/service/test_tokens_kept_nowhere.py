"""Tokens are written to no log, no record and no error."""

import logging

from tests.support.records import contents


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
