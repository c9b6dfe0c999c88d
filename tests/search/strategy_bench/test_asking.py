"""Strategies that ask a model, benchmarked: once over a real socket, then from what was kept."""

import json

import pytest

from tests.support.search import ScriptedMessagesServer, submission

POLICY = "def generate_config(workload, environment):\n    return {}\n"
ANSWERS = (
    {"tp": 8, "overlap": True},  # more than there are ranks
    {"tp": 4, "overlap": False},  # never measured
    {"tp": 1},  # tried
    {"tp": 4, "overlap": True},
    {"tp": 2, "overlap": True},
)


def answering():
    """A model that is wrong three times before it is right."""
    answers = iter(ANSWERS)
    return lambda _: submission(POLICY.format(next(answers)))


@pytest.fixture
def compare(document, landscape_file, tmp_path, cclsearch):
    path = landscape_file(document)

    def run(strategies="llm"):
        return cclsearch(
            "bench", "search", path, "--strategies", strategies,
            "--transcripts", tmp_path / "kept", "--seeds", 1, "--trials", 3, "--json",
        )  # fmt: skip

    return run


def without_seconds(text):
    document = json.loads(text)
    for report in document["reports"]:
        for summary in report["summaries"]:
            summary.pop("thinking_s")
    return document


def test_what_a_model_answered_once_is_the_same_run_again_without_it(
    compare, tmp_path, monkeypatch
):
    with ScriptedMessagesServer(answering()) as server:
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test-key-0123456789")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        live = compare()
    monkeypatch.delenv("ANTHROPIC_API_KEY")

    again = compare()

    assert (live.code, again.code) == (0, 0)
    assert without_seconds(again.out) == without_seconds(live.out)
    assert len(server.requests) == len(ANSWERS) == len(list((tmp_path / "kept").glob("*.json")))
    kept = " ".join(path.read_text() for path in (tmp_path / "kept").iterdir())
    assert "sk-test-key" not in kept


def test_without_key_and_transcript_it_says_that_the_request_is_not_recorded(compare):
    ended = compare("hybrid")

    assert ended.code == 1
    assert "a request to the model is not recorded" in ended.err


def test_strategies_that_ask_a_model_are_refused_without_a_folder(cclsearch):
    ended = cclsearch("bench", "search", "generated:small-1", "--strategies", "hybrid")

    assert ended.code == 2
    assert "give --transcripts FOLDER" in ended.err
