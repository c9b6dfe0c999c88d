"""The configuration of an operator: what it takes, what it refuses, and that its page is true."""

import hashlib
import hmac
import re
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.errors import StudyError
from records.study import Cluster
from search.client import client
from search.service.app import app_of
from search.service.auth import KnownToken, Role
from search.service.config import (
    Limits,
    Listen,
    OfferedEnvironment,
    ServiceConfig,
    Webhook,
    read_config,
)
from search.service.service import check_offered, offered_study

HEX = "0" * 64
TOKEN = f'[[token]]\nname = "ann"\nrole = "read"\nsha256 = "{HEX}"\n'
WEBHOOK = '[[webhook]]\nurl = "http://a"\nsecret_file = "s"\n'
PAGE = (Path(__file__).parents[3] / "docs" / "service.md").read_text(encoding="utf-8")


@pytest.fixture
def read(tmp_path):
    """Reads a configuration out of a text."""

    def reading(text):
        path = tmp_path / "service.toml"
        path.write_text(text, encoding="utf-8")
        return read_config(path)

    return reading


def test_a_file_says_who_may_come_and_from_where_and_without_one_only_this_machine_can(read):
    config, own = read(f'[listen]\naddress = "0.0.0.0"\n\n{TOKEN}'), read_config(None)
    assert (config.listen.is_private, config.token[0].role) == (False, Role.READ)
    assert (own.listen.is_private, own.token, [*own.environment]) == (True, (), ["builtin"])


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
        (TOKEN.replace("read", "root"), "[token.0] role: Input should be 'read', 'submit' or"),
        (TOKEN.replace("ann", "a b"), "is not a word of letters and digits"),
        (TOKEN.replace(HEX, "a-secret-token"), "is not a SHA-256 in hex"),
        ("[limits]\nburst = 0", "[limits] burst: Input should be greater"),
        ("[limits]\nrequests_per_s = inf", "requests_per_s"),
        ("[limits]\ncost_usd = -1", "[limits] cost_usd: Input should be greater"),
        ("[other]", "unknown key 'other'; known are"),
        ("[limits]\nbrust = 1", "[limits] unknown key 'brust'; did you mean 'burst'?"),
        ("[listen", "service.toml"),
        (
            '[environment.a]\nlauncher = "slrum"',
            "[environment] launcher 'slrum' is unknown; did you mean 'slurm'?",
        ),
        ("[environment.a.cluster]\nnodes = 0", "[cluster] nodes is 0; it must be at least 1"),
        (WEBHOOK * 2, "two webhooks have the same url"),
        (WEBHOOK.replace("http", "ftp"), "begins with https://"),
    ],
)
def test_what_makes_no_sense_is_told_with_the_file(read, text, words):
    with pytest.raises(StudyError, match=re.escape(words)) as told:
        read(text)
    assert "service.toml" in str(told.value)
    assert "\n" not in str(told.value)
    assert "a-secret-token" not in str(told.value)  # pasted in place of its hash


@pytest.mark.parametrize("content", [None, "[other]", "[measure]\nrounds = 'x'"])
def test_an_environment_without_a_study_is_told_before_anybody_submits(tmp_path, read, content):
    if content is not None:
        (tmp_path / "gpus.toml").write_text(content, encoding="utf-8")
    config = read('[environment.gpus]\nstudy = "gpus.toml"')
    with pytest.raises(StudyError, match=r"\[environment.gpus\] .*gpus.toml"):
        check_offered(config, tmp_path)


def test_an_environment_names_a_launcher_and_what_it_asks_its_cluster_for(tmp_path, read):
    text = '[launch]\nlauncher = "ssh"\n[cluster]\npartition = "old"\n'
    (tmp_path / "gpus.toml").write_text(text, encoding="utf-8")
    config = read(
        """
        [environment.file]
        study = "gpus.toml"
        [environment.gpus]
        study = "gpus.toml"
        launcher = "slurm"
        cluster = {partition = "gpu", nodes = 4}
        """
    )

    file, gpus = (offered_study(each, tmp_path) for each in config.environment.values())

    assert (file.launch.launcher, file.cluster) == ("ssh", Cluster(partition="old"))
    assert (gpus.launch.launcher, gpus.cluster) == ("slurm", Cluster(partition="gpu", nodes=4))
    assert config.environment["gpus"].devices == "nodes of slurm"


@given(st.text(max_size=200))
def test_no_text_breaks_the_reading_of_a_configuration(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(text, encoding="utf-8", errors="replace")
    try:
        assert read_config(path).listen.is_private
    except StudyError as error:
        assert "any.toml" in str(error)
    with pytest.raises(StudyError, match="cannot be read"):
        read_config(path.with_name("none.toml"))


@pytest.mark.parametrize(
    ("listen", "url", "cookie"),
    [
        (Listen(), "http://127.0.0.1:8765", "cclsearch_8765"),
        (Listen(address="::1", port=9), "http://[::1]:9", "cclsearch_9"),
        (
            Listen(hosts=("ccl.example.org",), https=True),
            "https://ccl.example.org",
            "__Host-cclsearch",
        ),
    ],
)
def test_the_address_is_the_one_that_browsers_open_and_the_cookie_stays_with_it(
    listen, url, cookie
):
    assert (listen.url, listen.cookie_name) == (url, cookie)


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_example_of_the_page_can_be_read_and_has_every_key_and_the_defaults(read):
    (text,) = blocks("toml")
    example = read(text)
    sections = (ServiceConfig, Listen, OfferedEnvironment, Limits, Webhook, KnownToken)

    assert example.listen.url == "https://searches.example.org"
    assert set(example.environment) == {"cluster", "laptop"}
    assert example.token[0].role is Role.SUBMIT
    assert example.limits == Limits(cost_usd=5.0)
    for name in {field.name for kind in sections for field in fields(kind)}:
        assert re.search(rf"\b{name}\b", text), name
    assert all(f"| `{role}` |" in PAGE for role in Role)


def test_a_path_that_is_told_is_one_of_the_api_and_none_is_left_out(shared):
    told = {
        re.sub(r"\b(ID|N|NAME|SHA256)\b", "*", path)
        for line in re.findall(r"^\| `(?:GET|POST) (/.*?) \|", PAGE, re.MULTILINE)
        for path in re.findall(r"(/[\w/-]+)", line)
    }
    paths = app_of(shared.service).app.openapi()["paths"]
    known = {re.sub(r"{[^}]+}", "*", path.removeprefix("/api/v1")) for path in paths}

    assert {path for path in told if not any(one.endswith(path) for one in known)} == set()
    assert {path for path in known if not any(path.endswith(one) for one in told)} == set()


def test_the_program_that_checks_a_signature_knows_ours_from_others():
    program, *_ = blocks("python")
    scope = {}
    exec(program, scope)
    signed = hmac.new(b"secret", b"17.{}", hashlib.sha256).hexdigest()
    headers = {"X-Cclsearch-Timestamp": "17", "X-Cclsearch-Signature": f"sha256={signed}"}

    assert scope["is_from_us"](b"secret", headers, b"{}")
    assert not scope["is_from_us"](b"other", headers, b"{}")


def test_methods_and_errors_of_the_client_that_are_told_exist():
    for kind, word in ((client.Client, "client"), (client.RemoteStudy, "study")):
        told = set(re.findall(rf"\b{word}\.(\w+)\(", PAGE))
        assert told
        assert {name for name in told if not hasattr(kind, name)} == set()
    for name in ("ServiceAway", "ServiceRefused", "NotAllowed", "NotThere", "StillRunning"):
        assert name in PAGE
        assert issubclass(getattr(client, name), Exception)
