"""No secret is left in a scrubbed text, whatever stands around it, and all else stays."""

import json
import string
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from records.codec import with_texts
from records.errors import CodecError
from records.scrub import MARK, Scrubber, expanded
from records.trial import FailureKind
from tests.support import records as testing

PASSWORD = 'pa"ss\\wörd/4711'
ALICE = Scrubber(
    homes=("/home/alice", "/data/people/alice"), secrets=(PASSWORD, "0123456789abcdef")
)
ALNUM = string.ascii_letters + string.digits
KEY_BLOCK = (
    "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0A1B\n\n"
    "MIIEpAIBAAKCAQEA7bq\n-----END RSA PRIVATE KEY-----"
)


def letters(count, alphabet=ALNUM):
    return st.text(alphabet=alphabet, min_size=count, max_size=count + 8)


tokens = st.one_of(
    letters(24).map("sk-ant-api03-{}".format),
    letters(24).map("sk-proj-{}".format),
    letters(34).map("hf_{}".format),
    letters(36).map("ghp_{}".format),
    letters(30).map("github_pat_{}".format),
    st.text(string.ascii_uppercase + string.digits, min_size=16, max_size=16).map("AKIA{}".format),
    letters(20).map("xoxb-{}".format),
    letters(24).map("glpat-{}".format),
    st.just(KEY_BLOCK),
)


@given(st.text(max_size=60), st.text(max_size=60))
def test_a_known_secret_goes_whatever_surrounds_it(before, after):
    for form in (PASSWORD, json.dumps(PASSWORD)[1:-1], quote(PASSWORD, safe="")):
        left = ALICE.text(before + form + after)

        assert form not in left
        assert PASSWORD not in left
        assert form not in ALICE.known(before + form + after)


@given(st.text(max_size=40), tokens, st.text(max_size=40))
@example("task", f"hf_{'a' * 34}", "")
def test_a_token_of_a_known_form_goes_whatever_surrounds_it(before, token, after):
    assert token not in ALICE.text(before + token + after)
    assert token not in ALICE.secrets(before + token + after)


@settings(max_examples=300)
@given(st.lists(st.sampled_from([
    *(PASSWORD, "0123456789", "abcdef", "/home/alice", "/home/bob", "/root", "~", MARK, "*"),
    *("sk-", "sk-ant-", "a" * 34, "hf_", "Bearer ", "://u:", "pw", "@", "/", ":", "-", ".", " "),
    *("x", "=", '"', "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "eyJ", "\n"),
]), max_size=12).map("".join))  # fmt: skip
def test_scrubbing_twice_is_scrubbing_once(text):
    for scrub in (ALICE.text, ALICE.secrets, ALICE.known, ALICE.path):
        assert scrub(scrub(text)) == scrub(text)


@given(st.text(alphabet=f"{ALNUM} .,=:()[]{{}}'\"\n\t%+", max_size=200))
def test_a_text_without_secrets_is_unchanged(text):
    assert Scrubber(secrets=("#secret#secret",)).text(text) == text


@given(st.binary(max_size=200))
def test_bytes_that_are_no_text_are_unchanged(content):
    assert Scrubber(secrets=("#secret#secret",)).content(b"\xff" + content) == b"\xff" + content


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Authorization: Bearer abcdefghijkl0123", f"Authorization: Bearer {MARK}"),
        ("https://alice:hunter2@host/x", f"https://alice:{MARK}@host/x"),
        ("redis://:hunter2@host:6379", f"redis://:{MARK}@host:6379"),
        ("tcp://127.0.0.1:29500 and a@b.c", "tcp://127.0.0.1:29500 and a@b.c"),
        (f"token {'eyJhbGciOiJI' * 2}.{'a' * 20}.{'b' * 20};", f"token {MARK};"),
        ("disk-usage sk-learn task-0123 risk-free", "disk-usage sk-learn task-0123 risk-free"),
        (KEY_BLOCK + "\nnext", f"{MARK}\nnext"),
        (json.dumps({"key": KEY_BLOCK}), f'{{"key": "{MARK}"}}'),
        ('at "/home/alice/run.py", line 3', 'at "~/run.py", line 3'),
        ("/home/bob/x:/home/alice:/root", "~/x:~:~"),
        ("-I/home/bob/include A=/root/x.", "-I~/include A=~/x."),
        ("file:///home/bob/x", "file://~/x"),
        ("cd /data/people/alice/project", "cd ~/project"),
        ("/data/people/alice2 /rootfs /mnt/home/bob /home", "/data/people/alice2 /rootfs "
         "/mnt/home/bob /home"),
        ("see /home/bob.", "see ~."),
    ],
)  # fmt: skip
def test_what_is_taken_out_leaves_a_mark(text, left):
    assert ALICE.text(text) == left


def test_a_secret_of_several_lines_goes_line_by_line():
    scrubber = Scrubber(secrets=("first line of it\nsecond line of it\nend",))

    left = scrubber.text("[rank0]: first line of it\n[rank0]: second line of it\n[rank0]: end")

    assert left == f"[rank0]: {MARK}\n[rank0]: {MARK}\n[rank0]: end"


def test_what_is_too_short_to_be_secret_stays():
    assert Scrubber(secrets=("true", "1234567", "")).text("true 1234567") == "true 1234567"


@pytest.mark.parametrize("home", ["/", "", "/home", "/tmp", "/usr/", "relative"])
def test_a_folder_that_many_share_is_nobody_s_home(home):
    text = "/tmp/x /usr/lib/y /home relative/z"

    assert Scrubber(homes=(home,)).text(text) == text


def test_a_path_is_whole_again_for_whoever_reads_it(monkeypatch):
    recorded = ALICE.path("/home/alice/a:/data/people/alice/b:/home/bob/c")
    monkeypatch.setenv("HOME", "/home/carol")

    assert recorded == "~/a:~/b:/home/bob/c"
    assert expanded(recorded) == "/home/carol/a:/home/carol/b:/home/bob/c"
    assert expanded("~x/y ~ a~/b") == "~x/y ~ a~/b"
    assert expanded("A=~/b") == f"A={Path.home()}/b"


def test_every_text_of_a_value_is_scrubbed_and_nothing_else_changes():
    failed = testing.failed(message=f"{PASSWORD} in /home/alice/x")

    assert ALICE.value(failed) == replace(failed, message=f"{MARK} in ~/x")
    measured = testing.measured()
    assert ALICE.value(measured) is measured


def test_hostile_texts_take_no_longer_than_others():
    begins = ("eyJ", "sk-", "://a:", "-----BEGIN PRIVATE KEY-----", "/home/a-", "Bearer ", "://")
    for part in begins:
        assert Scrubber(homes=("/home/a",)).text(part * 100_000)


@pytest.mark.parametrize("secret", ["measured", "out_of_m", "infrastructure"])
def test_a_word_that_records_are_made_of_is_no_secret(secret):
    outcome = testing.failed(FailureKind.OUT_OF_MEMORY, message="/home/bob: measured")

    assert Scrubber(secrets=(secret,)).value(outcome) == replace(outcome, message="~: measured")


def test_a_value_that_cannot_be_without_its_text_is_refused_in_one_line():
    with pytest.raises(CodecError, match=r"^Failed: kind: Input should be"):
        with_texts(testing.failed(), lambda text: text.replace("crash", MARK))
