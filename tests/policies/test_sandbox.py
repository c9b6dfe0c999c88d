"""What run_policy gives for honest, careless and broken policies."""

import json
import platform
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import sandbox
from policies.jail import ALLOWED_MODULES, REFUSED_CALLS
from policies.sandbox import (
    SANDBOX_RULES,
    Refusal,
    SandboxLimits,
    SandboxUnavailable,
    run_policy,
    sandbox_level,
)

WORKLOAD = {"global_batch": 16, "phase": "training", "sequence_length": None}
ENVIRONMENT = {"accelerators": 8, "links": [{"name": "nvlink", "bandwidth_bytes_per_s": 4.5e11}]}
SHORT = SandboxLimits(time_s=0.3)
DEFINITION = "def generate_config(workload, environment):\n"


def config_of(body, limits=SHORT):
    given_config = run_policy(f"{DEFINITION}    {body}\n", WORKLOAD, ENVIRONMENT, limits)
    assert isinstance(given_config, dict), given_config
    return dict(given_config)


def refusal_of(source, limits=SHORT):
    refusal = run_policy(source, WORKLOAD, ENVIRONMENT, limits)
    assert isinstance(refusal, Refusal), refusal
    return refusal


def refusal_in(body, limits=SHORT):
    return refusal_of(f"{DEFINITION}    {body}\n", limits)


def test_a_policy_gives_the_dict_it_returns_for_both_arguments():
    config = config_of(
        "return {'batch': workload['global_batch'], 'link': environment['links'][0]['name'],"
        " 'known': workload['sequence_length'] is not None, 'lr': 0.5}"
    )
    assert config == {"batch": 16, "link": "nvlink", "known": False, "lr": 0.5}
    assert [type(value) for value in config.values()] == [int, str, bool, float]


def test_a_policy_changes_copies_only():
    workload = {"nested": {"values": [1, 2]}}
    source = DEFINITION + "    workload['nested']['values'].clear()\n    return {}\n"
    assert run_policy(source, workload, {}) == {}
    assert workload == {"nested": {"values": [1, 2]}}


def test_an_argument_that_is_not_json_is_the_callers_error():
    with pytest.raises(TypeError):
        run_policy(DEFINITION + "    return {}\n", {"value": object()}, {})
    with pytest.raises(ValueError, match="not JSON compliant"):
        run_policy(DEFINITION + "    return {}\n", {"value": float("inf")}, {})


def test_members_of_scalar_enums_and_other_dicts_become_plain_values():
    source = (
        "from collections import OrderedDict\nfrom enum import IntEnum, StrEnum\n"
        "class Tp(IntEnum):\n    TWO = 2\nclass Algo(StrEnum):\n    RING = 'ring'\n"
        f"{DEFINITION}    return OrderedDict(tp=Tp.TWO, algo=Algo.RING)\n"
    )
    config = run_policy(source, {}, {})
    assert json.dumps(config) == '{"tp": 2, "algo": "ring"}'


def test_what_a_policy_prints_is_dropped(capfd):
    assert config_of("print('{\"config\": {}}' * 100000); return {'tp': 1}") == {"tp": 1}
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "body",
    [
        "return {'order': ''.join({'alpha', 'beta', 'gamma', 'delta', 'epsilon'})}",
        "import random; r = random.Random(); a = random.random(); random.seed(); "
        "return {'a': a, 'b': r.random(), 'c': random.random()}",
    ],
)
def test_sets_and_unseeded_random_numbers_repeat(body):
    assert config_of(body) == config_of(body)
    seeded = config_of("import random; return {'x': random.Random(7).random()}")
    assert seeded == {"x": random.Random(7).random()}


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("import os.path", "os.path"),
        ("import time", "time"),
        ("from datetime import datetime", "datetime"),
        ("from .sibling import tune", ".sibling"),
    ],
)
def test_an_import_outside_the_list_is_refused_with_the_list(statement, name):
    assert refusal_of(f"import math\n\n{statement}\n") == Refusal(
        f"line 3: import of {name!r} is not available in the sandbox; "
        f"a policy may import: {', '.join(ALLOWED_MODULES)}",
        3,
    )


def test_every_allowed_module_can_be_imported_and_is_named_in_the_rules():
    imports = "\n".join(f"import {name}" for name in ALLOWED_MODULES if name != "__future__")
    source = f"from __future__ import annotations\n{imports}\n{DEFINITION}    return {{}}\n"
    assert run_policy(source, {}, {}) == {}
    assert all(name in SANDBOX_RULES for name in (*ALLOWED_MODULES, *REFUSED_CALLS))
    assert sandbox_level().startswith("seccomp (8 system calls kept), resource limits")


@pytest.mark.parametrize("name", REFUSED_CALLS)
def test_a_builtin_that_reaches_outside_is_refused_by_name(name):
    assert refusal_in(f"{name}('/etc/passwd')").message == (
        f"line 2: {name}() is not available in the sandbox; "
        "compute from the workload and environment arguments alone"
    )


def test_a_missing_key_is_answered_with_the_keys_there_are():
    assert refusal_in("return {'tp': environment['gpus']}") == Refusal(
        "line 2: KeyError: 'gpus'; workload has 'global_batch', 'phase', 'sequence_length'; "
        "environment has 'accelerators', 'links'",
        2,
    )


def test_an_exception_is_told_with_the_innermost_line_of_the_policy():
    source = f"import json\ndef inner():\n    json.loads('[')\n{DEFINITION}    inner()\n"
    refusal = refusal_of(source)
    assert refusal.line == 3
    assert refusal.message.startswith("line 3: JSONDecodeError: Expecting value")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\ndef broken(:\n", "line 2: SyntaxError: invalid syntax"),
        ("def f():\nreturn 1\n", "line 2: IndentationError: expected an indented block"),
        ("x = 1\n1 / 0\n", "line 2: ZeroDivisionError: division by zero"),
        ("", "the text defines no function generate_config(workload, environment)"),
        ("generate_config = 5", "the text defines no function generate_config"),
        ("def generate_config(workload): return {}", "TypeError: generate_config() takes 1"),
        ("x = 1\nx = '\0'\n", "line 2: the text holds a null byte"),
        ("x = 1\n\nx = '\ud800'\n", "line 3: the text holds a lone surrogate"),
        ("(" * 5000, "line 1: SyntaxError: too many nested parentheses"),
    ],
)
def test_a_text_that_is_no_policy_is_refused_with_its_line(source, message):
    assert refusal_of(source).message.startswith(message)
    too_long = refusal_of("#" * 11, SandboxLimits(source_bytes=10))
    assert too_long.message == "the text is 11 bytes; write at most 10"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("None", "generate_config returned None; return a dict"),
        ("{'tp', 'pp'}", "generate_config returned a value of type set; return a dict"),
        ("(n for n in [1])", "generate_config returned a value of type generator; return a dict"),
        ("{1: 2}", "a key of the returned dict is a value of type int; make every key a str"),
        ("{'mesh': [2, 4]}", "setting 'mesh' is a value of type list; every value must be"),
        ("{'mesh': (2, 4)}", "setting 'mesh' is a value of type tuple; every value must be"),
        ("{'tp': None}", "setting 'tp' is None; every value must be"),
        ("{'lr': float('nan')}", "setting 'lr' is nan; give a finite number"),
        ("{'lr': -float('inf')}", "setting 'lr' is -inf; give a finite number"),
        ("{'n': 2**63}", "setting 'n' is an int outside 64 bits; give a smaller one"),
        ("{'n': -2**63 - 1}", "setting 'n' is an int outside 64 bits"),
        ("{'s': chr(0xd800)}", "setting 's' is text with lone surrogates"),
        ("{chr(0xd800): 1}", "setting '\\ud800' is named with lone surrogates"),
        ("{'s': 'x' * 70000}", "the returned dict takes more than 65536 bytes as JSON"),
        ("{f'k{n}': n for n in range(9999)}", "the returned dict takes more than 65536 bytes"),
    ],
)
def test_a_result_that_is_no_configuration_is_refused(value, message):
    assert refusal_in(f"return {value}").message.startswith(message)


def test_many_threads_may_run_policies_at_once():
    source = DEFINITION + "    return {'n': workload['n']}\n"
    with ThreadPoolExecutor(4) as pool:
        configs = list(pool.map(lambda n: run_policy(source, {"n": n}, {}), range(8)))
    assert configs == [{"n": n} for n in range(8)]


def test_a_call_leaves_no_descriptor_open():
    def open_count():
        return len(list(Path("/proc/self/fd").iterdir()))

    before = open_count()
    config_of("return {}")
    refusal_in("while True: pass")
    assert open_count() <= before


def test_a_machine_without_a_known_filter_runs_nothing(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(SandboxUnavailable, match="cannot be isolated on linux riscv64"):
        run_policy("", {}, {})


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (bytes.fromhex("060000000000ff7f"), "installed but refuses nothing"),
        (b"", "the kernel refuses prctl option 22"),
    ],
)
def test_a_filter_that_does_not_hold_stops_before_the_policy(program, reason, monkeypatch):
    monkeypatch.setattr(sandbox, "filter_program", lambda _machine: program)
    with pytest.raises(SandboxUnavailable, match=reason):
        run_policy(DEFINITION + "    return {}\n", {}, {})


@pytest.mark.parametrize(
    ("executable", "reason"),
    [("/bin/false", "did not start"), ("/no/python", "no process can be started for the policy")],
)
def test_an_interpreter_that_does_not_start_is_said(executable, reason, monkeypatch):
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(SandboxUnavailable, match=reason):
        run_policy("", {}, {})


@settings(max_examples=10)
@given(
    st.one_of(
        st.text(max_size=200),
        st.text(max_size=60).map(lambda text: f"{DEFINITION}    return {text}\n"),
        st.text(max_size=60).map(lambda text: f"{DEFINITION}    return {{'x': {text!r}}}\n"),
    )
)
def test_any_text_gives_a_configuration_or_a_refusal(source):
    assert isinstance(run_policy(source, WORKLOAD, ENVIRONMENT, SHORT), dict | Refusal)


SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8"), max_size=20),
)


@settings(max_examples=10)
@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=10), SCALARS, max_size=8))
def test_any_flat_dict_of_scalars_comes_back_as_it_was(config):
    given_config = run_policy(f"{DEFINITION}    return workload\n", config, {}, SHORT)
    assert repr(given_config) == repr(config)
