"""Live progress: what a search printed as events, followed while it is written."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

LOOK_EVERY_S = 0.5
ALIVE_EVERY_S = 15.0
PIECE_BYTES = 1 << 16
MOST_LINE_BYTES = 1 << 20


async def followed(path: Path, offset: int, is_over: Callable[[], bool]) -> AsyncIterator[str]:
    """Server-sent events out of a file of JSON lines, from a byte offset on.

    The id of an event is the offset behind it, so that whoever comes back goes on there. A reader
    who is slow holds nothing but its own place in the file. Ends with an event `end` once nothing
    more will come.
    """
    silent_s = 0.0
    yield f"retry: {int(LOOK_EVERY_S * 2000)}\n\n"
    while True:
        over = is_over()  # asked before reading: what came before it was over is read yet
        lines, offset = await asyncio.to_thread(_lines, path, offset)
        for end, line in lines:
            yield f"id: {end}\nevent: {_name(line)}\ndata: {line}\n\n"
        if lines:
            silent_s = 0.0
            continue
        if over:
            yield f"id: {offset}\nevent: end\ndata: {{}}\n\n"
            return
        silent_s += LOOK_EVERY_S
        if silent_s >= ALIVE_EVERY_S:
            silent_s = 0.0
            yield ": alive\n\n"
        await asyncio.sleep(LOOK_EVERY_S)


def _lines(path: Path, offset: int) -> tuple[list[tuple[int, str]], int]:
    """Whole lines from an offset on, each with the offset behind it."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(min(max(offset, 0), size))
            start = file.tell()
            piece = file.read(PIECE_BYTES)
            if b"\n" not in piece and len(piece) == PIECE_BYTES:
                piece += file.readline(MOST_LINE_BYTES)
    except OSError:
        return [], offset
    found: list[tuple[int, str]] = []
    for line in piece.split(b"\n")[:-1]:
        start += len(line) + 1
        text = line.decode("utf-8", "replace").replace("\r", " ")
        if text.strip():
            found.append((start, text))
    return found, start


def _name(line: str) -> str:
    """The name of an event; a line that holds none is noise, as a library may print it."""
    try:
        event = json.loads(line)
    except ValueError:
        return "noise"
    name = event.get("event") if isinstance(event, dict) else None
    return name if isinstance(name, str) and name.isidentifier() else "noise"
