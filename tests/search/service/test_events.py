"""Live events: read once for all who follow, on from where each of them is, also over HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.errors import StoreError
from search.service import events
from search.service.config import Limits, ServiceConfig
from search.service.events import Feeds, line_start, read_events, stream_events
from search.service.queue import State
from search.service.runner import EVENTS, run_folder
from tests.search.service.conftest import FINISHED, until
from tests.search.service.queueing import submission

STARTED = b'{"event": "study_started", "trials": 3}\n'
TRIAL = b'{"event": "trial_finished", "ordinal": 0}\n'
PATH = f"/api/v1/studies/{FINISHED}/events"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(events, "POLL_EVERY_S", 0.005)


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "events.jsonl"
    path.write_bytes(STARTED)
    return path


def parsed(text: str) -> list[dict[str, str]]:
    """Every event, as a browser takes them apart."""
    blocks = [block for block in text.split("\n\n") if "event: " in block]
    return [dict(line.split(": ", 1) for line in block.split("\n")) for block in blocks]


def names(text: str) -> list[str]:
    return [event["event"] for event in parsed(text)]


def followed(
    file: Path,
    over: Callable[[], bool] = lambda: True,
    offset: int = 0,
    on_piece: Callable[[str, Feeds], object] = lambda _piece, _feeds: None,
) -> str:
    """What somebody gets who follows a file to the end; `on_piece` acts on each piece of it."""

    async def read() -> str:
        text, feeds = "", Feeds()
        with feeds.follow(file, over) as feed:
            async for piece in stream_events(feed, offset):
                text += piece
                on_piece(piece, feeds)
        return text

    return asyncio.run(read())


def test_a_study_that_is_over_is_told_whole_and_ends(file, tmp_path):
    found = parsed(followed(file))

    assert [event["event"] for event in found] == ["study_started", "end"]
    assert json.loads(found[0]["data"]) == json.loads(STARTED)
    assert found[0]["id"] == str(len(STARTED))
    assert names(followed(tmp_path / "absent")) == ["end"]


def test_whoever_comes_back_goes_on_behind_the_last_event_they_had(file):
    with file.open("ab") as out:
        out.write(TRIAL)

    assert names(followed(file, offset=len(STARTED))) == ["trial_finished", "end"]
    assert names(followed(file, offset=-len(TRIAL))) == ["trial_finished", "end"]
    assert names(followed(file, offset=10**12)) == ["end"]


def test_events_come_as_they_are_written_by_search_after_search(file):
    written = [TRIAL[:20], TRIAL[20:]]

    def over() -> bool:  # asked at every look
        if written:
            with file.open("ab") as out:
                out.write(written.pop(0))
            return False
        return True

    assert names(followed(file, over)) == ["study_started", "trial_finished", "end"]


def test_how_far_the_launches_are_is_sent_when_it_changes_and_has_no_id(file):
    sent_count = 0

    def state() -> str:  # changes when the one before has come
        return str(min(sent_count + 1, 3))

    async def read() -> str:
        nonlocal sent_count
        text, feeds = "", Feeds()
        with feeds.follow(file, lambda: sent_count == 3, state) as feed:
            async for piece in stream_events(feed, 0):
                text += piece
                sent_count += "event: progress" in piece
        return text

    found = parsed(asyncio.run(read()))

    sent = [event for event in found if event["event"] == "progress"]
    assert [event["data"] for event in sent] == ["1", "2", "3"]
    assert not any("id" in event for event in sent)
    assert [found[0]["event"], found[-1]["event"]] == ["study_started", "end"]


def test_a_reader_who_comes_later_gets_the_latest_state_at_the_start(file):
    async def first_two() -> list[str]:
        feeds = Feeds()
        with feeds.follow(file, lambda: False, lambda: "now") as feed:
            while not feed.progress:
                await asyncio.sleep(0)
            async with aclosing(stream_events(feed, len(STARTED))) as pieces:
                return [await anext(pieces), await anext(pieces)]

    assert "event: progress\ndata: now" in asyncio.run(first_two())[1]


@pytest.mark.parametrize("name", ["end", "progress"])
def test_no_search_can_print_an_event_of_the_service(file, name):
    with file.open("ab") as out:
        out.write(json.dumps({"event": name}).encode() + b"\n")

    assert names(followed(file)) == ["study_started", "noise", "end"]


def test_one_look_at_the_file_serves_all_who_follow(file, monkeypatch):
    found_at = []
    read = events.read_events

    def noted(path, offset):
        text, end = read(path, offset)
        found_at.extend([offset] * bool(text))
        return text, end

    monkeypatch.setattr(events, "read_events", noted)

    async def many() -> list[list[str]]:
        feeds, started = Feeds(), asyncio.Semaphore(0)

        async def one() -> list[str]:
            text = ""
            with feeds.follow(file, lambda: False) as feed:
                async for piece in stream_events(feed, 0):
                    text += piece
                    if "study_started" in piece:
                        started.release()
                    if "trial_finished" in piece:
                        break
            return names(text)

        readers = [asyncio.create_task(one()) for _ in range(50)]
        for _ in readers:
            await started.acquire()
        with file.open("ab") as out:
            out.write(TRIAL)
        found = await asyncio.gather(*readers)
        assert not feeds._feeds  # the last who leaves takes the feed along
        return found

    assert asyncio.run(many()) == [["study_started", "trial_finished"]] * 50
    assert found_at == [0, len(STARTED)]


def test_a_slow_reader_gets_everything_out_of_the_file(file, monkeypatch):
    monkeypatch.setattr(events, "PIECE_BYTES", 200)

    def write(piece: str, _feeds: Feeds) -> None:
        if "study_started" in piece:
            with file.open("ab") as out:
                out.write(TRIAL * 100)

    assert len(names(followed(file, on_piece=write))) == 1 + 100 + 1


@pytest.mark.parametrize(
    "line",
    [b"a library says hello\x1b[31m", b"\xff\xfe", b"[1, 2]", b'{"event": 3}', b'{"event": "end"}',
     b'{"event": "two words"}', b'{"event": "trial", "score": NaN}', b"[" * 100_000, b"one\rtwo"],
)  # fmt: skip
def test_what_is_no_event_comes_as_noise_that_is_json(line, file):
    file.write_bytes(STARTED + line + b"\n" + TRIAL)
    found = parsed(followed(file))

    told = [event["event"] for event in found]
    assert told == ["study_started", "noise", "trial_finished", "end"]
    assert json.loads(found[1]["data"])["event"] == "noise"
    assert found[1]["data"].isascii() and "\x1b" not in found[1]["data"]


def test_a_line_without_end_does_not_stop_what_comes_behind_it(file):
    file.write_bytes(STARTED + b"x" * (3 << 20) + b"\n" + TRIAL)
    found = parsed(followed(file))
    first, *noise, trial, end = [event["event"] for event in found]

    assert (first, {*noise}, trial, end) == ("study_started", {"noise"}, "trial_finished", "end")
    assert max(len(event["data"]) for event in found) <= events.MOST_LINE_BYTES + 100


@given(st.lists(st.binary(max_size=30), max_size=20), st.integers(-700, 700))
def test_from_any_offset_on_every_whole_line_is_read_once(tmp_path_factory, lines, offset):
    path = tmp_path_factory.mktemp("events") / "events.jsonl"
    content = b"".join(line.replace(b"\n", b"") + b"\n" for line in lines)
    path.write_bytes(content)
    start = end = line_start(path, offset)
    found = ""
    while True:
        text, behind = read_events(path, end)
        if behind == end:
            break
        found += text
        end = behind

    assert end == len(content)
    assert 0 <= start <= end
    ids = [int(event["id"]) for event in parsed(found)]
    assert ids == sorted(set(ids))
    assert len(ids) == sum(bool(line.strip()) for line in content[start:].split(b"\n"))


def test_everyone_is_sent_away_without_an_end_when_the_service_stops(file):
    def close(piece: str, feeds: Feeds) -> None:
        if "study_started" in piece:
            feeds.close()

    assert names(followed(file, lambda: False, on_piece=close)) == ["study_started"]


def test_nobody_is_sent_away_because_the_queue_cannot_be_read(file):
    faults = [StoreError("the disk is full")] * 2

    def over() -> bool:
        if faults:
            raise faults.pop()
        return True

    assert names(followed(file, over)) == ["study_started", "end"]
    assert not faults


def test_a_quiet_stream_shows_that_it_is_alive(file, monkeypatch):
    monkeypatch.setattr(events, "ALIVE_EVERY_S", 0.01)

    async def read() -> str:
        with Feeds().follow(file, lambda: False) as feed:
            texts: AsyncIterator[str] = stream_events(feed, len(STARTED))
            async with aclosing(texts):
                await anext(texts)
                return await anext(texts)

    assert asyncio.run(read()) == ": alive\n\n"


@pytest.fixture
def follow(serve, recorded_store):
    """A service with a study that runs, which has printed events."""
    path = run_folder(recorded_store, FINISHED) / EVENTS
    path.parent.mkdir(parents=True)
    path.write_bytes(STARTED + TRIAL * 50)

    def started(**limits):
        served = serve(recorded_store, ServiceConfig(limits=Limits(**limits)))
        served.service.table.add(submission(FINISHED))
        served.service.table.change_from(FINISHED, State.PENDING, State.RUNNING)
        return served

    return started


def test_a_study_is_followed_over_http_from_where_it_is_asked(follow):
    served = follow()
    served.service.table.change_from(FINISHED, State.RUNNING, State.FINISHED)
    with served.client("read") as client:
        for asked, last_id, count in [
            ({}, None, 51),
            ({"since": len(STARTED)}, None, 50),
            ({"since": -100}, None, 2),
            ({"since": 0}, str(len(STARTED + TRIAL * 50)), 0),
            ({"since": 0}, "no number", 51),
            ({}, "9" * 15, 0),
        ]:
            headers = {} if last_id is None else {"last-event-id": last_id}
            answer = client.get(PATH, params=asked, headers=headers)
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert len(names(answer.text)) == count + 1
            assert names(answer.text)[-1] == "end"


def test_there_are_only_so_many_streams_for_one_caller(follow):
    served = follow(event_streams=1)
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


def test_whoever_asks_for_the_head_of_a_stream_follows_nothing(follow):
    served = follow()
    with served.client("read") as client:
        answer = client.head(PATH)
    until(lambda: not served.service.streams.total())

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.content == b""
