"""The page of one trial, the logs of its ranks, and what a model said about it."""

import gzip
import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest

from records.llm_exchange import LlmExchange, TokenUsage
from records.machine import LaunchRecord, RankEnd
from records.store.rows import PendingTrial
from records.store.store import Store
from records.trial import Artifact, FailureKind, Outcome, Policy
from tests.search.service.conftest import FINISHED, HOSTILE
from tests.search.service.reading_pages import get, links, table
from tests.support import records as testing

STUDY = "20260301-000000-made"
HERE = f"/studies/{STUDY}/trials"


@pytest.fixture
def made(reader_of, tmp_path):
    """A client of a service over a store with trial 0 as a function makes it from the store."""

    def start(outcome: Callable[[Store], Outcome], exchange: LlmExchange | None = None):
        with closing(Store(tmp_path / "store")) as store:
            store.create(STUDY, replace(testing.study(), strategy="offline"), "test")
            policy = Policy(source="x = 0\n", author="x", rationale="more")
            trial = testing.trial(0, outcome(store), {"tp": 1, "pp": 1})
            intent = PendingTrial(
                ordinal=0, policy=policy, started_at=trial.started_at, exchange=None
            )
            stored = store.begin(STUDY, intent, exchange)
            store.finish(STUDY, replace(trial, policy=policy, exchange=stored.exchange))
        return reader_of(store.root)

    return start


def with_files(**files: str) -> Callable[[Store], Outcome]:
    """A failed trial with these files; `__` in their names stands for a dot."""

    def outcome(store: Store) -> Outcome:
        kept = [
            store.artifacts.keep_text(text, name.replace("__", ".")) for name, text in files.items()
        ]
        return replace(testing.failed(), artifacts=tuple(kept))

    return outcome


def test_settings_are_beside_those_of_the_best_and_of_the_parent(client):
    page = get(client, f"/studies/{FINISHED}/trials/3")

    assert table(page, "Differences are marked") == [
        ["pp", "2", "≠ 1", "≠ 1"],
        ["tp", "2", "2", "2"],
    ]
    assert links(page)["Compare with the best"] == (f"/compare?side={FINISHED}:3&side={FINISHED}:2")


def test_a_measured_trial_shows_samples_time_and_metrics(client):
    page = get(client, f"/studies/{FINISHED}/trials/1")

    charts = [each.text for svg in page.all("svg") for each in svg.children if each.name == "title"]
    assert "Step times of the launches of trial 1" in charts
    assert "Where the step of each trial went" in charts
    assert table(page, "Values of the first launch") == [["step_time", "0.4 s", "lower", "1"]]
    assert "trial 2 is the best of the study" in page.text


def test_a_failure_tells_its_cause_and_how_ranks_ended(made):
    launched = LaunchRecord(
        argv=("torchrun", "train.py", "--name=a b"),
        environment={"OMP_NUM_THREADS": "1"},
        reason="crashed",
        wall_s=3.0,
        hosts=("node-1",),
        ranks=(
            RankEnd(rank=0, status=0, signal=None),
            RankEnd(rank=1, status=1, signal=None, first_error=f"Error: {HOSTILE}"),
        ),
    )
    failed = testing.failed(FailureKind.CRASH, message=f"rank 1: {HOSTILE}")
    page = get(made(lambda _: replace(failed, launched=launched)), f"{HERE}/0")

    assert "crash at launch" in page.text
    assert page.find("launch1-command").text == "torchrun train.py '--name=a b'"
    assert "rank 0 with status 0, rank 1 with status 1" in page.text
    assert "first error of rank 1Error: <img src=x onerror=alert(1)>&'\"" in page.text


def test_a_log_shows_its_end_first_and_control_characters_as_escapes(made):
    text = "".join(f"step {n}\n" for n in range(20_000)) + "\x1b[31mlast\x1b[0m\rover\u202e\n"
    client = made(with_files(rank0__log=text))
    page, whole = get(client, f"{HERE}/0"), get(client, f"{HERE}/0/log?name=rank0.log")

    (short,) = [each for each in page.all("pre") if "rank0.log" in each.attributes["aria-label"]]
    (end,) = whole.all("pre")
    for shown in (short.text, end.text):
        assert shown.endswith("step 19999\n\\u001b[31mlast\\u001b[0m\nover\\u202e")
        assert shown.startswith("step ")
    assert len(end.text) > len(short.text)
    (before,) = get(client, f"{HERE}/0/log{links(whole)['Earlier'].partition('/log')[2]}").all(
        "pre"
    )
    first, last = end.text.split("\n")[0], before.text.split("\n")[-1]
    assert int(last.split()[1]) + 1 == int(first.split()[1])


def test_only_logs_of_the_trial_are_read(made):
    client = made(with_files(rank0__log="here\n", job__json="{}"))
    for asked, status in [
        ("name=../../cclsearch.db", 404),
        ("name=/etc/passwd", 404),
        ("name=job.json", 404),
        ("name=rank0.log&end=-1", 422),
        ("", 422),
    ]:
        get(client, f"{HERE}/0/log?{asked}", status)


def test_a_file_that_is_gone_is_named_with_the_reason(made):
    gone = Artifact(name="rank0.log", digest="ab" * 32, size_bytes=10)
    page = get(made(lambda _: replace(testing.failed(), artifacts=(gone,))), f"{HERE}/0")

    (row,) = table(page, "Kept of the launch")
    assert row[:2] == ["rank0.log", "10 B"]
    assert "is missing from" in row[2]
    assert "Download" not in links(page)


def test_a_trace_can_be_opened_and_other_files_cannot(made):
    page = get(made(with_files(rank0_trace__json__gz="{}", job__json="{}")), f"{HERE}/0")

    (button,) = [each for each in page.all("button") if "data-trace" in each.attributes]
    assert button.attributes["data-trace"] == f"/api/v1{HERE}/0/files/rank0_trace.json.gz"
    assert "hidden" in button.attributes


def test_a_conversation_is_told_once_in_turns_with_its_cost(made):
    ask = {"role": "user", "content": [{"type": "text", "text": f"propose {HOSTILE}"}]}
    tool = {"type": "tool_use", "id": "a", "name": "submit_policy", "input": {"code": "x = 1"}}
    objection = [{"type": "tool_result", "tool_use_id": "a", "content": "it has no function"}]
    later = [ask, {"role": "assistant", "content": [tool]}, {"role": "user", "content": objection}]
    bodies = [{"system": "be brief", "messages": [ask]}, {"system": "be brief", "messages": later}]
    reply = [
        {"request": 0, "status": 529, "body": "overloaded"},
        {"request": 0, "status": 200, "body": json.dumps({"content": [tool]})},
        {"request": 1, "status": 200, "body": json.dumps({"content": "plain"})},
    ]
    exchange = LlmExchange(
        model="claude-haiku-4-5",
        request=json.dumps(bodies),
        reply=json.dumps(reply),
        result="submitted",
        usage=TokenUsage(input_tokens=100, output_tokens=20),
        latency_s=2.0,
        request_count=2,
    )
    page = get(made(lambda _: testing.measured(), exchange), f"{HERE}/0/transcript")

    said = [" ".join(each.text.split()) for each in page.all("pre")]
    assert said[0] == "be brief"
    assert said[1].startswith("propose <img src=x onerror=alert(1)>")
    assert said[2:] == ["overloaded", "x = 1", "it has no function", "plain"]
    assert "HTTP 529" in page.text
    assert "100" in page.text


def test_a_conversation_that_cannot_be_read_is_said_to_be_so(client):
    page = get(client, f"/studies/{FINISHED}/trials/1/transcript")

    assert "The texts cannot be read" in page.text
    assert "price not known" in page.text


@pytest.mark.parametrize("rest", ["9", "x", "-1", "9" * 20, "0/transcript", "9/log?name=a.log"])
def test_what_a_trial_does_not_have_is_a_page_that_says_so(client, rest):
    answer = client.get(f"/studies/{FINISHED}/trials/{rest}", headers={"accept": "text/html"})

    assert answer.status_code in (404, 422)
    assert "<h1>" in answer.text


def test_a_profiled_trial_draws_one_step_of_each_rank_and_offers_all_ranks_as_one_trace(
    reader_of, traced_store
):
    client, here = reader_of(traced_store()), "/studies/20260101-000000-aaaa/trials"
    page = get(client, f"{here}/0")
    (place,) = [each for each in page.all("div") if "data-from" in each.attributes]

    drawn = get(client, place.attributes["data-from"])
    merged = client.get(f"/api/v1{here}/0/trace")

    marks = [each.text for each in drawn.find("timeline").all("title")]
    assert [text.partition(":")[0] for text in marks[1:]] == ["rank 0", "rank 1"]
    assert all("exposed communication " in text and "idle " in text for text in marks[1:])
    assert page.find("timeline-heading").text == "Timeline of one step"
    assert f"/api/v1{here}/0/trace" in {
        each.attributes.get("data-trace") for each in page.all("button")
    }
    assert merged.headers["content-disposition"].endswith('-trial0.json.gz"')
    events = json.loads(gzip.decompress(merged.content))["traceEvents"]
    assert {each["pid"] for each in events} == {0, 1}


def test_what_left_no_traces_has_neither_timeline_nor_merged_trace(client):
    page = get(client, f"/studies/{FINISHED}/trials/3")

    assert "All ranks in one trace" not in page.text
    answer = client.get(f"/api/v1/studies/{FINISHED}/trials/3/trace")
    assert (answer.status_code, "left no traces" in answer.json()["error"]) == (422, True)
