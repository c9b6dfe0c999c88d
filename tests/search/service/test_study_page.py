"""The page of a study: what it found, what failed, what it does now, what can be done with it."""

import json
import shutil
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.store.store import Store
from search.client.client import Client
from search.service.models import StudyProgress
from search.service.pages.study import MOST_EVENTS, live_status
from search.service.queue import State
from search.service.runner import EVENTS, run_folder
from search.views.terminal import JsonProgress
from tests.search.service.conftest import FAILED, FINISHED, HOSTILE, IMPORTED, running
from tests.search.service.reading_pages import get, links
from tests.support import records as testing

BROKEN = testing.failed(message="rank 0 died\nof a fault")


@pytest.fixture(scope="module")
def changed(made_once, tmp_path_factory):
    """A service whose studies the tests here may change; nothing is ever searched."""
    with running(shutil.copytree(made_once, tmp_path_factory.mktemp("changed") / "store")) as found:
        yield found


@pytest.fixture
def admin(changed):
    """A client that may do everything."""
    with changed.client("admin") as found:
        yield found


def facts(page, identity: str) -> str:
    return " ".join(page.find(identity).text.split())


def test_a_finished_study_tells_its_best_with_unit_evidence_and_why_it_ended(client):
    told = facts(get(client, f"/studies/{FINISHED}"), "best")

    assert "0.25 s in trial 2" in told
    assert "One launch" in told
    assert "patience: 6 launches without improvement" in told


def test_the_best_is_shown_to_copy_as_the_terminal_prints_it(client):
    page = get(client, f"/studies/{FINISHED}")
    names = {
        b.attributes["data-copies"]: b.text
        for b in page.all("button")
        if b.attributes.get("data-copies")
    }

    shown = {name: page.find(place).text for place, name in names.items()}
    assert shown == {
        "arguments": "--pp=1 --tp=2",
        "environment": "PP=1\nTP=2",
        "JSON": '{\n "pp": 1,\n "tp": 2\n}',
    }  # no launch is recorded, so there is no script


def test_what_a_study_found_counts_no_more_once_it_went_on(served):
    with closing(Store(served.service.store)) as store:
        store.update(FINISHED, status="interrupted")
    with served.client("read") as reader:
        page, trial = (get(reader, f"/studies/{FINISHED}{rest}") for rest in ("", "/trials/2"))

    assert "patience" not in facts(page, "best")
    assert "the best of the study" not in trial.text


def test_failures_are_told_by_kind_with_the_first_cause(client):
    page = get(client, f"/studies/{FAILED}")

    assert "2 out_of_memory; first in trial 0" in facts(page, "failures")
    assert "it broke <img src=x onerror=alert(1)>" in facts(page, "failures")
    assert f"/studies/{FAILED}/trials/0" in links(page).values()
    assert "no configuration could be measured" in facts(page, "best")
    assert "No trial has a value yet" in facts(page, "history")


def test_the_history_is_a_chart_with_a_mark_for_every_trial(client):
    page = get(client, f"/studies/{FINISHED}").find("history")

    marks = [each for each in page.all("a") if each.attributes.get("class") == "mark"]
    assert [each.attributes["href"].rpartition("/")[2] for each in marks] == ["0", "1", "2", "3"]
    assert any(each.attributes.get("class") == "failure" for each in page.all("g"))


def test_an_imported_study_says_that_nothing_was_launched_here(client):
    page = get(client, f"/studies/{IMPORTED}")

    assert "Imported (ccl-search)" in facts(page, "notice")
    assert "Imported value" in facts(page, "best")
    assert "lost <img src=x onerror=alert(1)>" in page.text


@pytest.fixture
def queued(admin) -> str:
    """The id of a study that waits."""
    answer = admin.post("/api/v1/studies", json={"trials": 3, "name": "waits"})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def test_a_queued_study_says_that_it_waits_and_is_read_again_without_scripts(admin, queued):
    page = get(admin, f"/studies/{queued}")
    (meta,) = (each for each in page.all("meta") if "http-equiv" in each.attributes)

    assert "Waiting." in facts(page, "notice")
    assert "It has not started." in facts(page, "now")
    assert (meta.attributes["http-equiv"], meta.parent.name) == ("refresh", "noscript")
    assert not any(
        "http-equiv" in m.attributes for m in get(admin, f"/studies/{FINISHED}").all("meta")
    )


def test_every_part_that_changes_while_a_search_runs_is_there_when_it_has_ended(admin, queued):
    def live(page):
        return {e.attributes.get("id") for e in page.all() if "data-live" in e.attributes}

    before = live(get(admin, f"/studies/{queued}"))
    admin.post(f"/studies/{queued}/cancel")
    after = live(get(admin, f"/studies/{queued}"))

    assert None not in before
    assert {"status", "actions", "now", "best", "history", "spent"} <= before
    assert before - after <= {"events"}


def test_what_a_search_says_is_told_in_words_and_never_as_markup(changed, admin, queued):
    folder = run_folder(changed.service.store, queued)
    folder.mkdir(parents=True)
    said = [
        {"event": "trial_started", "ordinal": 0, "author": HOSTILE, "rationale": HOSTILE},
        {"event": "config_decided", "ordinal": 0, "config": {"tp": HOSTILE}},
        {"event": "phase", "ordinal": 0, "phase": HOSTILE},
        {"event": "notice", "words": HOSTILE},
    ]
    (folder / EVENTS).write_text("".join(f"{json.dumps(each)}\n" for each in said))
    page = get(admin, f"/studies/{queued}")

    assert "<img src=x onerror=alert(1)>" in facts(page, "now")
    assert "<img src=x onerror=alert(1)>" in facts(page, "events")
    assert page.find("study").attributes["data-since"] == str((folder / EVENTS).stat().st_size)


def test_a_study_is_cancelled_and_resumed_by_its_buttons(admin, queued):
    cancelled = admin.post(f"/studies/{queued}/cancel")
    shown = get(admin, f"/studies/{queued}")
    resumed = admin.post(f"/studies/{queued}/resume", data={"more_trials": ""})

    assert (cancelled.status_code, cancelled.headers["location"]) == (303, f"/studies/{queued}")
    assert "cancelled" in facts(shown, "status")
    assert "Resume" in facts(shown, "actions")
    assert resumed.status_code == 303
    assert "queued" in facts(get(admin, f"/studies/{queued}"), "status")


@pytest.mark.parametrize(
    ("role", "path", "sent", "status", "words"),
    [
        *(
            ("admin", "{queued}/resume", {"more_trials": more}, 422, "is not a number of trials")
            for more in ("0", "-1", "many", "1e9", "9" * 40)
        ),
        ("admin", f"{FINISHED}/cancel", {}, 409, "<h1>That does not fit any more</h1>"),
        ("read", f"{FINISHED}/cancel", {}, 403, "needs the role submit"),
        ("read", f"{FINISHED}/resume", {}, 403, "needs the role submit"),
    ],
)
def test_what_cannot_be_done_is_said_on_a_page(changed, queued, role, path, sent, status, words):
    with changed.client(role) as client:
        answer = client.post(f"/studies/{path.format(queued=queued)}", data=sent)

    assert answer.status_code == status
    assert words in answer.text


@pytest.fixture
def under_way(changed, queued) -> str:
    """The id of a study that runs: a launch of its first trial has begun its third step."""
    changed.service.table.change_from(queued, State.QUEUED, State.RUNNING)
    folder = changed.service.records.workdir(queued)
    folder.mkdir(parents=True)
    (folder / "rank0.progress.jsonl").write_text('{"phase": "timed", "step": 2, "at_ns": 1}\n')
    (folder / "rank0.log").write_text(f"step 1 {HOSTILE}\nkey ghp_{'x' * 36}\n")
    return queued


def test_a_running_launch_shows_its_step_and_the_end_of_its_log(admin, under_way):
    told = facts(get(admin, f"/studies/{under_way}"), "now")

    assert "Now step 3 of at most 13, " in told
    assert "End of rank0.logstep 1 " in told
    assert "<img src=x onerror=alert(1)>" in told
    assert "key ***" in told
    assert "ghp_" not in told


def test_the_api_and_its_client_say_what_the_page_says(changed, under_way):
    with Client(changed.url, changed.tokens["read"], patience_s=0) as client:
        found = client.study(under_way).progress()
        finished = client.study(FINISHED).progress()

    (launch,) = found.launches
    assert (launch.phase, launch.step, launch.most_steps) == ("timed", 3, 13)
    assert launch.words.startswith("step 3 of at most 13, ")
    assert launch.log.endswith("key ***")
    assert found.left is None  # nothing has shown how long a launch takes
    assert finished == StudyProgress(launches=[], left=None)


def test_the_stream_says_how_far_a_launch_is(admin, under_way):
    with admin.stream("GET", f"/api/v1/studies/{under_way}/events") as answer:
        lines = answer.iter_lines()
        while next(lines) != "event: progress":
            pass
        sent = json.loads(next(lines).removeprefix("data: "))

    assert sent["launches"][0]["step"] == 3


BEGUN = {"event": "trial_started", "ordinal": 1, "author": "llm", "rationale": "why not"}
DECIDED = {"event": "config_decided", "ordinal": 1, "config": {"tp": 2, "compile": True}}
WARMS_UP = {"event": "phase", "ordinal": 1, "phase": "warmup"}
ENDED = {"event": "trial_finished", "ordinal": 1, "status": "measured", "words": "it ended"}
REPEATED = {"event": "repeat_finished", "ordinal": 3, "words": "trial 3 repeated to compare"}
NOISE = {"event": "noise_measured", "words": "rounds differ by 2.0 %"}
OVER = {"event": "finished", "stop_reason": "all trials are used"}


@pytest.mark.parametrize(
    ("events", "running", "repeating", "newest"),
    [
        ([BEGUN, ENDED, BEGUN], [1], "", "trial 1 is proposed by llm: why not"),
        ([BEGUN, ENDED], [], "", "it ended"),
        ([BEGUN, OVER], [], "", "the search ended: all trials are used"),
        ([BEGUN, {"event": "study_started", "why": "resumed"}], [], "", "resumed"),
        ([NOISE, REPEATED], [], REPEATED["words"], REPEATED["words"]),
        ([REPEATED, NOISE], [], "", NOISE["words"]),
    ],
)
def test_the_events_tell_what_happens_now(tmp_path, events, running, repeating, newest):
    path = tmp_path / "events.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in events))
    now = live_status(path)

    assert [each.ordinal for each in now.running] == running
    assert (now.repeating, now.events[0].line) == (repeating, newest)


def test_a_trial_under_way_is_told_with_what_it_sets_and_how_far_it_is(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in (BEGUN, DECIDED, WARMS_UP)))
    (running,) = live_status(path).running

    assert (running.author, running.rationale) == ("llm", "why not")
    assert (running.config, running.phase) == ({"tp": 2, "compile": True}, "warmup")


def test_events_are_told_in_the_words_of_the_terminal_with_a_tone(tmp_path):
    path = tmp_path / "events.jsonl"
    with path.open("w") as out:
        progress, history = JsonProgress(out), testing.history()
        for trial in (testing.trial(0, 0.25), testing.trial(1, 0.5), testing.trial(2, BROKEN)):
            history = history.append(trial)
            progress.trial_finished(trial, history)
    last, second, first = live_status(path).events

    assert first.line.startswith("trial 0 x (no configuration) 0.25 s best so far")
    assert (first.tone, second.tone, last.tone) == ("good", "", "bad")
    assert last.line.endswith("FAILED crash: rank 0 died of a fault")


def test_only_the_newest_are_told_and_none_but_whole_lines(tmp_path):
    path, torn = tmp_path / "events.jsonl", '{"event": "trial_finished", "ordinal": 9'
    lines = "".join(f"{json.dumps({**ENDED, 'words': str(n)})}\n" for n in range(5000))
    path.write_text(lines + torn)
    now = live_status(path)

    assert (len(now.events), now.events[0].line) == (MOST_EVENTS, "4999")
    assert now.end == path.stat().st_size - len(torn)
    assert live_status(tmp_path / "none").end == 0


ODD_LINES = [
    b'{"event": "race_decided"}',
    b'{"event": "phase", "ordinal": 7, "phase": "x"}',
    b'{"event": "trial_finished", "ordinal": 1, "score": "NaN"}',
    b'{"event": ["trial_started"]}',
]


@given(st.lists(st.one_of(st.binary(max_size=60), st.sampled_from(ODD_LINES)), max_size=12))
def test_whatever_is_in_the_file_something_can_be_told(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("noise") / "events.jsonl"
    path.write_bytes(b"\n".join(lines))

    assert live_status(path).end <= path.stat().st_size


def test_trials_are_compared_in_a_part_of_the_page_that_comes_later(client):
    page = get(client, f"/studies/{FINISHED}")
    (place,) = [each for each in page.all("div") if "data-from" in each.attributes]

    found = get(client, place.attributes["data-from"])

    assert links(page)["Parameter importance and step time breakdown"] == (
        f"/studies/{FINISHED}/analysis"
    )
    assert "Too few trials to estimate importance" in found.text
    bars = [each.attributes["href"] for each in found.all("a") if "mark" in str(each.attributes)]
    assert bars == [f"/studies/{FINISHED}/trials/{ordinal}" for ordinal in (0, 1, 2)]
    assert place.attributes["data-part"] == f"#{found.find('analysis').attributes['id']}"
