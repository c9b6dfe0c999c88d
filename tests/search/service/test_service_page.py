"""The page on the service says what it does."""

import hashlib
import hmac
import re
from dataclasses import fields
from pathlib import Path

import pytest

from search.client import client
from search.client import client as errors
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

PAGE = (Path(__file__).parents[3] / "docs" / "service.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def example(tmp_path):
    (text,) = blocks("toml")
    path = tmp_path / "service.toml"
    path.write_text(text, encoding="utf-8")
    return read_config(path)


def test_the_example_of_a_configuration_can_be_read(example):
    assert example.listen.url == "https://searches.example.org"
    assert set(example.environment) == {"cluster", "laptop"}
    assert example.token[0].role == "submit"


def test_the_limits_of_the_example_are_the_defaults_but_for_the_one_that_has_none(example):
    assert example.limits == Limits(cost_usd=5.0)


@pytest.mark.parametrize(
    "name",
    sorted(
        field.name
        for kind in (ServiceConfig, Listen, OfferedEnvironment, Limits, Webhook, KnownToken)
        for field in fields(kind)
    ),
)
def test_every_key_of_a_configuration_is_in_the_example(name):
    assert re.search(rf"\b{name}\b", blocks("toml")[0])


@pytest.mark.parametrize("role", Role)
def test_every_role_is_told(role):
    assert f"| `{role}` |" in PAGE


def test_a_path_that_is_told_is_one_of_the_api_and_none_is_left_out(served):
    told = {
        re.sub(r"\b(ID|N|NAME|SHA256)\b", "*", path)
        for line in re.findall(r"^\| `(?:GET|POST) (/.*?) \|", PAGE, re.MULTILINE)
        for path in re.findall(r"(/[\w/-]+)", line)
    }
    paths = app_of(served.service).app.openapi()["paths"]
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


@pytest.mark.parametrize(
    ("kind", "word"), [(client.Client, "client"), (client.RemoteStudy, "study")]
)
def test_methods_of_the_client_that_are_told_exist(kind, word):
    told = set(re.findall(rf"\b{word}\.(\w+)\(", PAGE))

    assert told
    assert {name for name in told if not hasattr(kind, name)} == set()


@pytest.mark.parametrize(
    "name", ["ServiceAway", "ServiceRefused", "NotAllowed", "NotThere", "StillRunning"]
)
def test_errors_of_the_client_that_are_told_exist(name):
    assert name in PAGE
    assert issubclass(getattr(errors, name), Exception)
