"""A launch on record in lines: how it was started, where, and how its ranks ended."""

import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby

from evaluator.failures.logs import signal_name
from records.launched import Launched, RankEnd
from records.machine import Machine
from search.words.machine import machine_line
from search.words.trial import number, one_line

LINE_CHARS = 2000


def launch_lines(launched: Launched, machine: Machine | None) -> Iterator[str]:
    """What a person needs to know of a launch, who may want to make it again."""
    return (one_line(line, LINE_CHARS) for line in _lines(launched, machine))


def _lines(launched: Launched, machine: Machine | None) -> Iterator[str]:
    yield f"command: {shlex.join(launched.argv)}"
    added = [f"{name}={shlex.quote(value)}" for name, value in launched.environment.items()]
    added += [f"{name}=./{folder}" for name, folder in launched.folders.items()]
    if added:
        yield f"environment: {' '.join(added)}"
    yield f"where: {'; '.join(_places(launched))}"
    if machine is not None:
        yield f"ran on: {machine_line(machine)}"
    elif launched.machine is not None:
        yield "ran on: a machine whose description is not here any more"
    ranks = f"; {', '.join(_ends(launched.ranks))}" if launched.ranks else ""
    yield f"ended: {launched.reason} after {number(launched.wall_s)} s{ranks}"
    for end in launched.ranks:
        if end.first_error is not None:
            yield f"first error of {_who((end,))}: {end.first_error}"


def _places(launched: Launched) -> Iterator[str]:
    yield f"{', '.join(launched.hosts) or 'a host that is not told'}, launcher {launched.launcher}"
    if launched.job_id is not None:
        yield f"job {launched.job_id}"
    if launched.cores:
        yield f"cores {', '.join(map(str, launched.cores))}"
    if launched.devices:
        yield f"devices {', '.join(launched.devices)}"


def _ends(ends: Sequence[RankEnd]) -> Iterator[str]:
    """How ranks ended, those together that ended alike and follow each other."""
    for (_, how), alike in groupby(ends, key=lambda end: (end.rank is None, _how(end))):
        yield f"{_who(tuple(alike))} {how}"


def _who(ends: Sequence[RankEnd]) -> str:
    first, last = ends[0].rank, ends[-1].rank
    if first is None:
        return "the command"
    return f"rank {first}" if first == last else f"ranks {first} to {last}"


def _how(end: RankEnd) -> str:
    if end.signal is not None:
        return f"by {signal_name(end.signal)}"
    return "in a way that is not told" if end.status is None else f"with status {end.status}"
