"""What the reading side makes of bytes that a policy forged."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from policies.sandbox import Ending, Refusal, SandboxLimits, agreed_reply

LIMITS = SandboxLimits(output_bytes=400)


def reply_to(payload, exit_code=0):
    ending = Ending(received=b"ready\n" + payload, exit_code=exit_code, expired=False)
    return agreed_reply([ending], LIMITS)


@given(st.binary(max_size=500), st.integers(-64, 255))
@example(b"[" * 400, 0)
@example(b'{"config": {"n": ' + b"9" * 300 + b"}}", 0)
@example(b'{"refused": 5, "line": "x"}', 0)
def test_any_bytes_give_a_configuration_or_a_refusal(payload, exit_code):
    assert isinstance(reply_to(payload, exit_code), dict | Refusal)


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
        max_leaves=8,
    )
)
def test_a_forged_configuration_is_checked_like_a_returned_one(config):
    reply = reply_to(json.dumps({"config": config}).encode())
    if isinstance(reply, dict):
        assert reply == config
        assert all(isinstance(value, bool | int | float | str) for value in reply.values())
    else:
        assert isinstance(reply, Refusal)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"", "the policy ended its process without a result"),
        (b'{"config": {"a": 1}}\n{"config": {}}\n', "the policy wrote over its own result"),
        (b'{"config": {"a": NaN}}', "setting 'a' is nan"),
        (b'{"config": {"a": 1e999}}', "setting 'a' is inf"),
        (b'{"config": {"a": {"b": 1}}}', "setting 'a' is a value of type dict"),
        (b'{"config": {"a": "\\ud800"}}', "setting 'a' is text with lone surrogates"),
        (b"\xff\xfe", "the policy wrote over its own result"),
        (b"x" * 401, "the returned dict takes more than 400 bytes"),
    ],
)
def test_a_forged_reply_is_refused_for_what_is_wrong(payload, message):
    reply = reply_to(payload)
    assert isinstance(reply, Refusal)
    assert reply.message.startswith(message)


def test_a_forged_message_becomes_one_bounded_printable_line():
    forged = json.dumps({"refused": "a\n\x1b[31mb\u2028c " + "x" * 2000, "line": -3}).encode()
    ending = Ending(received=b"ready\n" + forged, exit_code=0, expired=False)
    reply = agreed_reply([ending], SandboxLimits())
    assert isinstance(reply, Refusal)
    assert reply.line is None
    assert reply.message.startswith("a ?[31mb c xxx")
    assert len(reply.message) < 1100
    assert reply.message.isprintable()
    assert reply_to(b'{"refused": "no", "line": true}').line is None


@pytest.mark.parametrize(
    ("one", "other", "settings"),
    [("4", "8", "4 in one and 8 in the other"), ("true", "1", "True in one and 1 in the other")],
)
def test_runs_that_answer_differently_give_no_configuration(one, other, settings):
    replies = (f'ready\n{{"config": {{"tp": {value}}}}}\n'.encode() for value in (one, other))
    endings = [Ending(received=reply, exit_code=0, expired=False) for reply in replies]
    assert agreed_reply(endings, LIMITS) == Refusal(
        f"two runs with the same arguments disagree: setting 'tp' is {settings}; "
        "depend on the arguments only, not on id() or the order of objects",
        None,
    )


def test_a_run_that_outlived_the_deadline_is_refused():
    ending = Ending(received=b"ready\n", exit_code=-9, expired=True)
    assert agreed_reply([ending], LIMITS) == Refusal(
        "no result in time; a policy may take 2 s of processor time and 10 s in all, so bound "
        "every loop and score fewer candidates",
        None,
    )
