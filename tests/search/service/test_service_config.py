"""The configuration of an operator: what it takes, what it refuses, and the tokens in it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.errors import StudyError
from search.service.app import print_new_token
from search.service.auth import KnownToken, Role, digest_of, find_token, local_token, new_token
from search.service.config import Listen, ServiceConfig, read_config
from search.service.service import check_offered

HEX = "0" * 64
TOKEN = f'[[token]]\nname = "ann"\nrole = "read"\nsha256 = "{HEX}"\n'
OPEN = f'[listen]\naddress = "0.0.0.0"\n\n{TOKEN}'


@pytest.fixture
def read(tmp_path):
    """Reads a configuration out of a text."""

    def reading(text):
        path = tmp_path / "service.toml"
        path.write_text(text, encoding="utf-8")
        return read_config(path)

    return reading


def test_without_a_file_only_this_machine_can_come():
    config = read_config(None)
    assert config.listen.is_private
    assert config.token == ()
    assert [*config.environment] == ["builtin"]


def test_a_file_says_who_may_come_and_from_where(read):
    config = read(OPEN)
    assert not config.listen.is_private
    assert config.token[0].role is Role.READ


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[listen]\naddress = "0.0.0.0"', "open to other machines, which needs tokens"),
        ('[listen]\naddress = "::"', "open to other machines, which needs tokens"),
        ('[listen]\nhttps = true\nhosts = ["a.b"]', "open to other machines, which needs tokens"),
        ("[listen]\nhttps = true", "https needs hosts"),
        ('[listen]\naddress = "localhost"', "is not an IP address"),
        ("[listen]\nport = 65536", "less than 65536"),
        ('[listen]\nhosts = ["https://a.b"]', "is not a host name"),
        ('[listen]\nhosts = ["a.b:80"]', "give it without a port"),
        ('[listen]\nhosts = ["*"]', "is not a host name"),
        (TOKEN + TOKEN, "two tokens have the same name"),
        (
            TOKEN.replace("read", "root"),
            "token.0.role: Input should be 'read', 'submit' or 'admin'",
        ),
        (TOKEN.replace("ann", "a b"), "is not a word of letters and digits"),
        (TOKEN.replace(HEX, "0" * 63), "is not a SHA-256 in hex"),
        ("[limits]\nburst = 0", "limits.burst: Input should be greater"),
        ("[limits]\nrequests_per_s = inf", "requests_per_s"),
        ("[limits]\ncost_usd = -1", "limits.cost_usd: Input should be greater"),
        ("[other]", "unknown key 'other'; known are"),
        ("[limits]\nbrust = 1", "[limits] unknown key 'brust'; did you mean 'burst'?"),
        ("[listen", "service.toml"),
        (
            '[[webhook]]\nurl = "http://a"\nsecret_file = "s"\n' * 2,
            "two webhooks have the same url",
        ),
        ('[[webhook]]\nurl = "ftp://a"\nsecret_file = "s"', "begins with https://"),
    ],
)
def test_what_makes_no_sense_is_told_with_the_file(read, text, words):
    with pytest.raises(StudyError, match=re.escape(words)) as told:
        read(text)
    assert "service.toml" in str(told.value)
    assert "\n" not in str(told.value)


def test_a_token_that_was_pasted_in_place_of_its_hash_is_not_repeated(read):
    with pytest.raises(StudyError) as told:
        read(TOKEN.replace(HEX, "a-very-secret-token"))
    assert "a-very-secret-token" not in str(told.value)


@pytest.mark.parametrize("content", [None, "[other]", "[measure]\nrounds = 'x'"])
def test_an_environment_without_a_study_is_told_before_anybody_submits(tmp_path, read, content):
    if content is not None:
        (tmp_path / "gpus.toml").write_text(content, encoding="utf-8")
    config = read('[environment.gpus]\nstudy = "gpus.toml"')
    with pytest.raises(StudyError, match=r"\[environment.gpus\] .*gpus.toml"):
        check_offered(config, tmp_path)


def test_a_file_that_is_missing_is_told(tmp_path):
    with pytest.raises(StudyError, match="cannot be read"):
        read_config(tmp_path / "none.toml")


@given(st.text(max_size=200))
def test_no_text_breaks_the_reading_of_a_configuration(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(text, encoding="utf-8", errors="replace")
    try:
        assert read_config(path).listen.is_private
    except StudyError as error:
        assert "any.toml" in str(error)


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        (Listen(), "http://127.0.0.1:8765"),
        (Listen(address="::1", port=9), "http://[::1]:9"),
        (Listen(hosts=("ccl.example.org",), https=True), "https://ccl.example.org"),
    ],
)
def test_the_address_that_is_printed_is_the_one_that_browsers_open(listen, url):
    assert listen.url == url


def test_a_new_token_is_shown_once_and_only_its_hash_is_to_be_kept(capsys, read):
    print_new_token("ci@lab:submit")
    said = capsys.readouterr()
    token = said.err.split()[-1]
    config = read(said.out)
    assert token not in said.out
    assert find_token(token, config.token) == config.token[0]
    assert config.token[0].role is Role.SUBMIT


@pytest.mark.parametrize("asked", ["", "ann", "ann:root", ":read", "a b:read", "ann:READ"])
def test_a_token_for_nobody_or_with_no_role_is_not_made(asked, capsys):
    with pytest.raises(StudyError):
        print_new_token(asked)
    assert capsys.readouterr().out == ""


def test_tokens_cannot_be_guessed():
    assert len({new_token() for _ in range(100)}) == 100
    assert len(new_token()) >= 43


@given(st.text(max_size=80))
def test_only_the_token_itself_is_known(text):
    known = (KnownToken(name="ann", role=Role.READ, sha256=digest_of("right")), local_token("own"))
    assert find_token(text, known) is {"right": known[0], "own": known[1]}.get(text)


def test_the_hash_is_no_token():
    known = KnownToken(name="ann", role=Role.READ, sha256=digest_of("right"))
    assert find_token(known.sha256, [known]) is None
    assert ServiceConfig(token=(known,)).token == (known,)
