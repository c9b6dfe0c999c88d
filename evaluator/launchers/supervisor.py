"""The process above all processes of a job: starts them, watches them, leaves none of them behind.

Speaks JSON lines with the launcher: requests in, events out. It knows the standard library only, so
that it is small, starts at once and has a single thread. Whatever a job starts is below it and
comes to it when its own parent ends; when its input closes it ends what runs, and then itself.
Ranks of a warm start are forked by a process that it keeps; a cold start is the job's own command.
"""

import json
import os
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypedDict

from evaluator.launchers.launch import Launch, run_launch
from evaluator.launchers.warm import WarmProcess
from evaluator.rank.confinement import adopt_orphans

REQUESTS = 0
EVENTS = 1
START_LIMIT_S = 120.0
START_POLL_S = 0.05


class Request(TypedDict):
    """Modules to have imported, none for a cold start, and the job to run, if any."""

    modules: list[str]
    launch: Launch | None


class Refusal(Exception):
    """No job of this kind can be started here; says why."""


def supervise() -> None:
    """Run jobs as they are asked for until standard input closes."""
    adopt_orphans()
    warm: WarmProcess | None = None
    for request in _requests():
        if request["modules"]:
            warm = _warmed(warm, request["modules"])
        launch = request["launch"]
        if launch is None:
            continue
        forker = warm if request["modules"] else None
        try:
            if forker is not None:
                _await_ready(forker)
        except Refusal as refusal:
            warm = None
            _say({"event": "refused", "message": str(refusal)})
            continue
        _say({"event": "started"})
        spared = None if warm is None else warm.pid
        _say({"event": "ended", **run_launch(launch, forker, owner=REQUESTS, spared=spared)})
    if warm is not None:
        warm.end()


def _warmed(warm: WarmProcess | None, modules: Sequence[str]) -> WarmProcess:
    """The process that has these modules, and perhaps more, imported or is about to."""
    if warm is not None and warm.lives and set(modules) <= set(warm.modules):
        return warm
    if warm is not None:
        warm.end()
    return WarmProcess(modules)


def _await_ready(warm: WarmProcess) -> None:
    """Wait until torch is imported; raises `Refusal` when that ended the process."""
    deadline_s = time.monotonic() + START_LIMIT_S
    while not warm.ready:
        if warm.answer(START_POLL_S) is not None:
            warm.ready = True
        elif not warm.lives:
            raise Refusal(warm.end())
        elif time.monotonic() > deadline_s:
            warm.end()
            raise Refusal(f"importing torch took over {START_LIMIT_S:g} s")
        elif _is_abandoned():
            warm.end()
            raise Refusal("nobody waits any more")


def _is_abandoned() -> bool:
    """Whether the input closed; nobody sends while a job is about to start."""
    return bool(select.select([REQUESTS], [], [], 0)[0])


def _requests() -> Iterator[Request]:
    """Requests as they arrive, one a line, until the input closes."""
    pending = b""
    while data := os.read(REQUESTS, 1 << 16):
        *lines, pending = (pending + data).split(b"\n")
        yield from (json.loads(line) for line in lines)


def _say(event: Mapping[str, object]) -> None:
    with suppress(BrokenPipeError):  # nobody listens any more; the closed input ends the loop
        os.write(EVENTS, json.dumps(event).encode() + b"\n")


if __name__ == "__main__":
    supervise()
