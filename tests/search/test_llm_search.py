"""A whole search with a model that speaks the Messages API over a real socket."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from records.store import Store
from records.trial import Failed, FailureKind, History, Measured
from search.testing import ScriptedMessagesServer, submission

KEY = "sk-ant-loopback-0123456789abcdef"
CCLSEARCH = str(Path(sys.executable).with_name("cclsearch"))
TINY = Path(__file__).parents[1] / "data" / "tiny_study.toml"

BREAKS_A_CONSTRAINT = """
def generate_config(workload, environment):
    return {"dp_replicate": 2, "dp_shard": 2, "tp": 2, "pp": 1, "micro_batch": 1,
            "activation_checkpointing": "none"}
"""
RAISES = """
def generate_config(workload, environment):
    return {"dp_replicate": environment["gpu_count"]}
"""
IMPROVES = """
def generate_config(workload, environment):
    # a model that was told a key might repeat it: KEY
    return {"dp_replicate": environment["world_size"], "dp_shard": 1, "tp": 1, "pp": 1,
            "micro_batch": workload["global_batch"] // environment["world_size"],
            "activation_checkpointing": "none"}
"""


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("llm")
    script = [
        submission(BREAKS_A_CONSTRAINT, rationale="use every rank twice"),
        submission(RAISES, rationale="read the GPU count"),
        submission(
            IMPROVES.replace("KEY", KEY),
            rationale=f"plain data parallelism; by the way, your key is {KEY}",
        ),
    ]
    with ScriptedMessagesServer(script) as server:
        ended = subprocess.run(
            [
                *(CCLSEARCH, "run", "--objective", "step_time"),
                *("-c", str(TINY), "--trials", "2", "--store", str(folder / "store")),
            ],
            env={
                "PATH": os.defpath,
                "ANTHROPIC_API_KEY": KEY,
                "ANTHROPIC_BASE_URL": server.url,
            },
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        requests = list(server.requests)
    assert ended.returncode == 0, ended.stderr
    return folder / "store", ended, requests


@pytest.fixture
def records(searched) -> Iterator[Store]:
    store = Store(searched[0])
    yield store
    store.close()


@pytest.fixture
def history(records) -> History:
    return records.history(records.find("").id)


def test_the_record_holds_every_policy_of_the_model_and_what_became_of_it(history):
    kinds = [trial.outcome.kind if isinstance(trial.outcome, Failed) else None for trial in history]
    assert [trial.policy.author for trial in history] == ["seed", "llm", "llm", "llm"]
    assert kinds == [None, FailureKind.INVALID_CONFIG, FailureKind.POLICY_ERROR, None]
    assert [trial.policy.source.strip() for trial in history][1:] == [
        BREAKS_A_CONSTRAINT.strip(),
        RAISES.strip(),
        IMPROVES.replace("KEY", "[key]").strip(),
    ]


def test_a_failed_policy_says_which_constraint_or_which_line(history):
    _, invalid, raised, _ = (trial.outcome for trial in history)
    assert "ranks: dp_replicate * dp_shard * tp * cp * pp == world_size" in invalid.message
    assert "dp_replicate=2" in invalid.message
    assert raised.message.startswith("line 3: KeyError: 'gpu_count'")


def test_the_third_policy_was_launched_and_measured(history):
    outcome = history.trials[3].outcome
    assert isinstance(outcome, Measured)
    assert len(outcome.measurement.slowest_rank_s) == 5
    assert history.trials[3].config["dp_replicate"] == 2


def test_each_turn_shows_the_model_what_became_of_the_last(searched):
    second, third = (json.dumps(request.body) for request in searched[2][1:])
    assert "dp_replicate * dp_shard * tp * cp * pp == world_size" in second
    assert "KeyError" in third


def test_prompts_replies_and_token_usage_are_on_record(records, history):
    exchanges = [records.exchange(trial.exchange) for trial in history if trial.exchange]
    assert len(exchanges) == 3
    for exchange, trial in zip(exchanges, list(history)[1:], strict=True):
        assert "generate_config" in exchange.request
        assert "submit_policy" in exchange.reply
        assert exchange.usage.input_tokens > 0
        assert exchange.usage.output_tokens > 0
        assert trial.policy.rationale


def test_the_key_is_in_no_file_and_no_output(searched):
    root, ended, _ = searched
    assert KEY not in ended.stdout + ended.stderr
    files = [path for path in root.rglob("*") if path.is_file()]
    assert len(files) > 10
    for path in files:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        assert KEY.encode() not in data, path


def test_the_key_was_sent_to_the_provider_only(searched):
    assert all(KEY in json.dumps(request.headers) for request in searched[2])
    assert all(KEY not in json.dumps(request.body) for request in searched[2])
