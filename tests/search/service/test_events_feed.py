"""Live events: read once for all who follow, on from where each of them is."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.errors import StoreError
from search.service import events
from search.service.events import Feeds, line_start, read_events, stream_events

STARTED = b'{"event": "study_started", "trials": 3}\n'
TRIAL = b'{"event": "trial_finished", "ordinal": 0}\n'


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(events, "POLL_EVERY_S", 0.005)


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "events.jsonl"
    path.write_bytes(STARTED)
    return path


async def all_of(texts: AsyncIterator[str]) -> list[dict[str, str]]:
    """Every event to the end, as a browser takes them apart."""
    return parsed("".join([text async for text in texts]))


def parsed(text: str) -> list[dict[str, str]]:
    blocks = [block for block in text.split("\n\n") if "event: " in block]
    return [dict(line.split(": ", 1) for line in block.split("\n")) for block in blocks]


def names(found: list[dict[str, str]]) -> list[str]:
    return [event["event"] for event in found]


def ended(file: Path, offset: int = 0) -> list[dict[str, str]]:
    """What somebody gets who follows a study that is over."""

    async def read() -> list[dict[str, str]]:
        with Feeds().follow(file, lambda: True) as feed:
            return await all_of(stream_events(feed, offset))

    return asyncio.run(read())


def test_a_study_that_is_over_is_told_whole_and_ends(file):
    found = ended(file)

    assert names(found) == ["study_started", "end"]
    assert json.loads(found[0]["data"]) == json.loads(STARTED)
    assert found[0]["id"] == str(len(STARTED))


def test_a_study_that_printed_nothing_just_ends(tmp_path):
    assert names(ended(tmp_path / "absent")) == ["end"]


def test_whoever_comes_back_goes_on_behind_the_last_event_they_had(file):
    with file.open("ab") as out:
        out.write(TRIAL)

    assert names(ended(file, len(STARTED))) == ["trial_finished", "end"]
    assert names(ended(file, -len(TRIAL))) == ["trial_finished", "end"]
    assert names(ended(file, 10**12)) == ["end"]


def test_events_come_as_they_are_written_by_search_after_search(file):
    over = False

    async def read() -> list[dict[str, str]]:
        nonlocal over
        text = ""
        with Feeds().follow(file, lambda: over) as feed:
            async with aclosing(stream_events(feed, 0)) as texts:
                async for piece in texts:
                    text += piece
                    if "study_started" in piece:
                        with file.open("ab") as out:
                            out.write(TRIAL[:20])
                            out.flush()
                            await asyncio.sleep(0.02)
                            out.write(TRIAL[20:])
                        over = True
        return parsed(text)

    assert names(asyncio.run(read())) == ["study_started", "trial_finished", "end"]


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
            return names(parsed(text))

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

    async def read() -> int:
        with Feeds().follow(file, lambda: True) as feed:
            async with aclosing(stream_events(feed, 0)) as texts:
                await anext(texts)
                await anext(texts)
                with file.open("ab") as out:
                    out.write(TRIAL * 100)
                return len(await all_of(texts))

    assert asyncio.run(read()) == 100 + 1


@pytest.mark.parametrize(
    "line",
    [
        b"a library says hello\x1b[31m",
        b"\xff\xfe",
        b"[1, 2]",
        b'{"event": 3}',
        b'{"event": "end"}',
        b'{"event": "two words"}',
        b'{"event": "trial", "score": NaN}',
        b"[" * 100_000,
        b"one\rtwo",
    ],
)
def test_what_is_no_event_comes_as_noise_that_is_json(line, file):
    file.write_bytes(STARTED + line + b"\n" + TRIAL)
    found = ended(file)

    assert names(found) == ["study_started", "noise", "trial_finished", "end"]
    assert json.loads(found[1]["data"])["event"] == "noise"
    assert found[1]["data"].isascii() and "\x1b" not in found[1]["data"]


def test_a_line_without_end_does_not_stop_what_comes_behind_it(file):
    file.write_bytes(STARTED + b"x" * (3 << 20) + b"\n" + TRIAL)
    found = ended(file)

    assert names(found)[0] == "study_started"
    assert set(names(found)[1:-2]) == {"noise"}
    assert names(found)[-2:] == ["trial_finished", "end"]
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
    async def read() -> str:
        text, feeds = "", Feeds()
        with feeds.follow(file, lambda: False) as feed:
            async for piece in stream_events(feed, 0):
                text += piece
                if "study_started" in piece:
                    feeds.close()
        return text

    assert names(parsed(asyncio.run(read()))) == ["study_started"]


def test_nobody_is_sent_away_because_the_queue_cannot_be_read(file):
    asked = 0

    def over() -> bool:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise StoreError("the disk is full")
        return True

    async def read() -> list[dict[str, str]]:
        with Feeds().follow(file, over) as feed:
            return await all_of(stream_events(feed, 0))

    assert names(asyncio.run(read())) == ["study_started", "end"]
    assert asked >= 3


def test_a_quiet_stream_shows_that_it_is_alive(file, monkeypatch):
    monkeypatch.setattr(events, "ALIVE_EVERY_S", 0.01)

    async def read() -> str:
        with Feeds().follow(file, lambda: False) as feed:
            async with aclosing(stream_events(feed, len(STARTED))) as texts:
                await anext(texts)
                return await anext(texts)

    assert asyncio.run(read()) == ": alive\n\n"
