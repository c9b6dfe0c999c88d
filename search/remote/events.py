"""What a search does now: server-sent events, followed across lost connections."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import httpx2
from pydantic import JsonValue

from search.remote.connection import MOST_PAUSE_S, PAUSE_S, Connection
from search.remote.errors import ServiceAway

END = "end"
MOST_LINE_BYTES = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that a search did; names and facts are those of `cclsearch run --json`.

    `id` is where to go on after it.
    """

    id: str
    name: str
    facts: Mapping[str, JsonValue]


def followed(connection: Connection, path: str, after: str | None = None) -> Iterator[Event]:
    """Every event from the first, or after an id, until the study ends.

    A connection that breaks is made again, and goes on after the last event that came. Raises
    `ServiceAway` where that fails for as long as the connection's patience.
    """
    lost_s: float | None = None
    pause_s = PAUSE_S
    while True:
        headers = {} if after is None else {"last-event-id": after}
        try:
            with connection.reading(path, headers) as answer:
                lost_s = None
                for event in events_in(lines_in(answer.iter_bytes())):
                    pause_s = PAUSE_S
                    if event.name == END:
                        return
                    after = event.id or after
                    yield event
        except (httpx2.TransportError, ServiceAway) as error:
            now_s = time.monotonic()
            lost_s = now_s if lost_s is None else lost_s
            if now_s - lost_s >= connection.patience_s:
                raise connection.away(error) from error
        connection.sleep(pause_s)
        pause_s = min(MOST_PAUSE_S, pause_s * 2)


def lines_in(pieces: Iterable[bytes]) -> Iterator[str]:
    """Whole lines out of pieces; raises `ServiceAway` for one that does not end."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace").removesuffix("\r")
        if len(rest) > MOST_LINE_BYTES:
            raise ServiceAway("a line of events does not end; this is no service of cclsearch")


def events_in(lines: Iterable[str]) -> Iterator[Event]:
    """Events out of the lines of a stream; one that is cut off at the end is none."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        if "data" in fields:
            yield Event(
                id=fields.get("id", ""),
                name=fields.get("event", "message"),
                facts=_facts(fields["data"]),
            )
        fields = {}


def _facts(data: str) -> dict[str, JsonValue]:
    """The facts of an event; of what is no JSON object, as a library may print it, its text."""
    try:
        facts = json.loads(data)
    except (ValueError, RecursionError):
        facts = None
    return facts if isinstance(facts, dict) else {"text": data}
