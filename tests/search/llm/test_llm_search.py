"""A whole search with a model that speaks the Messages API over a real socket."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from records.store.store import Store
from records.trial import History, Measured
from tests.support.records import contents
from tests.support.search import ScriptedMessagesServer, submission
from tests.support.service import run_cclsearch

KEY = "sk-ant-loopback-0123456789abcdef"
TINY = (Path(__file__).parents[2] / "data" / "tiny_study.toml").read_text(encoding="utf-8")

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
    study = folder / "study.toml"
    once = re.sub(r"^(self_test|race|confirm)_rounds = .*$", r"\1_rounds = 0", TINY, flags=re.M)
    study.write_text(once, encoding="utf-8")
    with ScriptedMessagesServer(script) as server:
        ended = run_cclsearch(
            folder,
            *("run", "--objective", "step_time"),
            *("-c", str(study), "--trials", "2", "--store", str(folder / "store")),
            ANTHROPIC_API_KEY=KEY,
            ANTHROPIC_BASE_URL=server.url,
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


def test_only_a_policy_that_can_be_launched_becomes_a_trial(history):
    assert [trial.policy.author for trial in history] == ["seed", "llm"]
    assert all(isinstance(trial.outcome, Measured) for trial in history)
    assert history.trials[1].policy.source.strip() == IMPROVES.replace("KEY", "[key]").strip()
    assert history.trials[1].config["dp_replicate"] == 2


def test_the_model_is_told_which_constraint_or_which_line_is_wrong(searched):
    first, second, third = (request.body["messages"] for request in searched[2])
    assert [len(messages) for messages in (first, second, third)] == [1, 3, 5]
    invalid, raised = (json.dumps(messages[-1]) for messages in (second, third))
    assert "ranks: dp_replicate * dp_shard * tp * cp * pp == world_size" in invalid
    assert "dp_replicate=2" in invalid
    assert "the policy failed: line 3: KeyError: 'gpu_count'" in raised


def test_the_conversation_and_what_it_used_are_on_record(records, history):
    exchange = records.exchange(history.trials[1].exchange)
    requests, replies = json.loads(exchange.request), json.loads(exchange.reply)
    assert [reply["request"] for reply in replies] == [0, 1, 2]
    assert len(requests) == exchange.request_count == 3
    assert all("submit_policy" in reply["body"] for reply in replies)
    (use,) = records.model_uses(records.find("").id)
    assert use.usage == exchange.usage
    assert use.usage.input_tokens > 0
    assert use.usage.output_tokens > 0


def test_the_report_says_what_the_model_used_and_cost(searched):
    (line,) = [x for x in searched[1].stdout.splitlines() if x.startswith("model: ")]
    assert line.startswith("model: claude-opus-5-5: 1 policies in 1 turns and 3 requests; ")
    assert line.endswith(" USD")


def test_the_key_is_in_no_file_and_no_output(searched):
    root, ended, _ = searched
    assert KEY not in ended.stdout + ended.stderr
    found = dict(contents(root))
    assert len(found) > 10
    assert [path for path, content in found.items() if KEY.encode() in content] == []


def test_the_key_was_sent_to_the_provider_only(searched):
    assert all(KEY in json.dumps(request.headers) for request in searched[2])
    assert all(KEY not in json.dumps(request.body) for request in searched[2])
