"""Following a study over HTTP: from the beginning, from the last event, from near the end."""

import time

import pytest

from search.service.config import Limits, ServiceConfig
from search.service.queue import State
from search.service.runner import EVENTS, run_folder
from tests.search.service.conftest import FINISHED
from tests.search.service.queueing import submission

STARTED = '{"event": "study_started"}\n'
TRIALS = "".join(f'{{"event": "trial_finished", "ordinal": {n}}}\n' for n in range(50))
PATH = f"/api/v1/studies/{FINISHED}/events"


@pytest.fixture
def events(recorded_store):
    """The file of events of a study that is over."""
    path = run_folder(recorded_store, FINISHED) / EVENTS
    path.parent.mkdir(parents=True)
    path.write_text(STARTED + TRIALS)
    return path


def names(text):
    return [line[7:] for line in text.splitlines() if line.startswith("event: ")]


@pytest.mark.usefixtures("events")
@pytest.mark.parametrize(
    ("asked", "last_id", "count"),
    [
        ({}, None, 51),
        ({"since": len(STARTED)}, None, 50),
        ({"since": -100}, None, 2),
        ({"since": 0}, str(len(STARTED + TRIALS)), 0),
        ({"since": 0}, "no number", 51),
        ({}, "9" * 15, 0),
    ],
)
def test_a_study_is_followed_from_where_it_is_asked(served, asked, last_id, count):
    headers = {} if last_id is None else {"last-event-id": last_id}
    with served.client("read") as client:
        answer = client.get(PATH, params=asked, headers=headers)

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert len(names(answer.text)) == count + 1
    assert names(answer.text)[-1] == "end"


@pytest.mark.usefixtures("events")
def test_there_are_only_so_many_streams_for_one_caller(serve, recorded_store):
    served = serve(recorded_store, ServiceConfig(limits=Limits(event_streams=1)))
    served.service.table.add(submission(FINISHED))
    served.service.table.change_from(FINISHED, State.PENDING, State.RUNNING)
    with (
        served.client("read") as client,
        served.client("submit") as other,
        client.stream("GET", PATH) as first,
    ):
        texts = first.iter_text()
        assert "study_started" in next(texts) + next(texts)
        assert client.get(PATH).status_code == 429
        assert served.service.streams.total() == 1
        served.service.table.change_from(FINISHED, State.RUNNING, State.FINISHED)
        assert other.get(PATH).status_code == 200


@pytest.mark.usefixtures("events")
def test_whoever_asks_for_the_head_of_a_stream_follows_nothing(serve, recorded_store):
    served = serve(recorded_store)
    served.service.table.add(submission(FINISHED))
    served.service.table.change_from(FINISHED, State.PENDING, State.RUNNING)
    with served.client("read") as client:
        answer = client.head(PATH)
    until_s = time.monotonic() + 20
    while served.service.streams.total() and time.monotonic() < until_s:
        time.sleep(0.01)

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert (answer.content, served.service.streams.total()) == (b"", 0)


@pytest.mark.usefixtures("events")
def test_a_stream_is_closed_when_the_service_stops(serve, recorded_store):
    served = serve(recorded_store)
    served.service.table.add(submission(FINISHED))
    served.service.table.change_from(FINISHED, State.PENDING, State.RUNNING)
    with served.client("read") as client, client.stream("GET", PATH) as answer:
        texts = answer.iter_text()
        text = next(texts) + next(texts)
        served.service.feeds.close()
        text += "".join(texts)

    assert names(text)[-1] == "trial_finished"
