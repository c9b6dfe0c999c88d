"""What a search does now and did last, told from the events that it printed."""

import json

from hypothesis import given
from hypothesis import strategies as st

from search.service.pages.study import MOST_EVENTS, live_status
from search.views.terminal import JsonProgress
from tests.support import records as testing

FAILED = testing.failed(message="rank 0 died\nof a fault")


def written(tmp_path, *events: dict[str, object]):
    path = tmp_path / "events.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in events), encoding="utf-8")
    return path


def begun(ordinal: int) -> dict[str, object]:
    return {"event": "trial_started", "ordinal": ordinal, "author": "llm", "rationale": "why not"}


def ended(ordinal: int, **more: object) -> dict[str, object]:
    facts = {"status": "measured", "score": 0.25, "unit": "s", "best": ordinal}
    facts["words"] = f"trial {ordinal} ended"
    return {"event": "trial_finished", "ordinal": ordinal, **facts, **more}


def test_a_trial_under_way_is_told_with_who_why_what_and_how_far(tmp_path):
    path = written(
        tmp_path,
        begun(0),
        ended(0),
        begun(1),
        {"event": "config_decided", "ordinal": 1, "config": {"tp": 2, "compile": True}},
        {"event": "phase", "ordinal": 1, "phase": "warmup"},
    )
    (running,) = live_status(path).running

    assert (running.ordinal, running.author, running.rationale) == (1, "llm", "why not")
    assert (running.config, running.phase) == ({"tp": 2, "compile": True}, "warmup")


def test_nothing_is_under_way_once_the_search_has_ended(tmp_path):
    path = written(tmp_path, begun(0), {"event": "finished", "stop_reason": "all trials are used"})
    now = live_status(path)

    assert now.running == ()
    assert now.events[0].words == "the search ended: all trials are used"


def test_a_search_that_began_again_forgets_what_the_lost_one_did(tmp_path):
    path = written(tmp_path, begun(4), {"event": "study_started", "why": "strategy offline"})

    assert live_status(path).running == ()


def test_events_are_told_in_the_words_of_the_terminal_with_a_tone(tmp_path):
    path = tmp_path / "events.jsonl"
    with path.open("w") as out:
        progress, history = JsonProgress(out), testing.history()
        for trial in (testing.trial(0, 0.25), testing.trial(1, 0.5), testing.trial(2, FAILED)):
            history = history.append(trial)
            progress.trial_finished(trial, history)
    last, second, first = live_status(path).events

    assert first.words.startswith("trial 0 x (no configuration) 0.25 s best so far")
    assert (first.tone, second.tone, last.tone) == ("good", "", "bad")
    assert last.words.endswith("FAILED crash: rank 0 died of a fault")


def test_noise_and_launches_made_again_are_told_in_words(tmp_path):
    path = written(
        tmp_path,
        {"event": "noise_measured", "words": "rounds of equal launches differ by 2.0 %"},
        {
            "event": "repeat_finished",
            "purpose": "race",
            "ordinal": 3,
            "round": 1,
            "status": "measured",
            "words": "trial 3 repeated to compare, round 2: step_time 0.5 s",
        },
    )
    now = live_status(path)

    assert now.events[0].words == "trial 3 repeated to compare, round 2: step_time 0.5 s"
    assert "differ by 2.0 %" in now.events[1].words
    assert now.repeating == now.events[0].words


def test_only_the_newest_are_told_and_none_but_whole_lines(tmp_path):
    path = written(tmp_path, *(ended(n) for n in range(5000)))
    with path.open("a", encoding="utf-8") as file:
        file.write('{"event": "trial_finished", "ordinal": 9')
    now = live_status(path)

    assert len(now.events) == MOST_EVENTS
    assert now.events[0].words == "trial 4999 ended"
    assert now.end == path.stat().st_size - len('{"event": "trial_finished", "ordinal": 9')


def test_without_a_file_nothing_happens(tmp_path):
    now = live_status(tmp_path / "none")

    assert (now.running, now.events, now.end) == ((), (), 0)


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.sampled_from(
                [
                    b'{"event": "race_decided"}',
                    b'{"event": "race_decided", "challenger": {}}',
                    b'{"event": "phase", "ordinal": 7, "phase": "x"}',
                    b'{"event": "trial_finished", "ordinal": 1, "score": "NaN"}',
                    b'{"event": "repeat_finished", "purpose": "nonsense", "ordinal": 1}',
                    b'{"event": ["trial_started"]}',
                ]
            ),
        ),
        max_size=12,
    )
)
def test_whatever_is_in_the_file_something_can_be_told(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("noise") / "events.jsonl"
    path.write_bytes(b"\n".join(lines))

    assert live_status(path).end <= path.stat().st_size
