"""One part of the proof: where it runs, what it finds, and how it is held to its time.

A part runs in a process of its own, so that one that fails, or never ends, takes no other with it.
"""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Literal

from evaluator.launchers.connection import kill_orphans
from records.study import Environment

MOST_OUTPUT_CHARS = 300


class CommandFailed(Exception):
    """A command of cclsearch ended with another status than those that it may end with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The machine, and the folder that everything is written under."""

    out: Path
    machine: Environment

    @property
    def has_gpu(self) -> bool:
        """Whether the ranks have GPUs; without any, all is done small on the CPU."""
        return self.machine.device == "cuda"

    @property
    def store(self) -> Path:
        """Where the study is recorded."""
        return self.out / "store"

    def report(self, name: str) -> Path:
        """The JSON file of a part."""
        return self.out / f"{name}.json"

    def folder(self, name: str) -> Path:
        """Make a folder for the files of a part."""
        path = self.out / name
        path.mkdir(parents=True, exist_ok=True)
        return path


@dataclass(slots=True, kw_only=True)
class Findings:
    """What a part found, in words for the page and as `data` for programs.

    `doubts` are numbers that look wrong and failures that were not understood: a person has to read
    them. `lacks` is what could not be done here.
    """

    lead: str = ""
    facts: list[tuple[str, str]] = field(default_factory=list)
    tables: list["Grid"] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    lacks: list[str] = field(default_factory=list)
    data: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table of texts."""

    about: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A step of the proof, and the seconds that it may take."""

    name: str
    heading: str
    limit_s: float
    run: Callable[[Place], Findings]


Status = Literal["done", "failed", "out of time", "not begun"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a part ended, and what it cost; it has findings only where it is done."""

    name: str
    heading: str
    status: Status
    message: str
    took_s: float
    cpu_s: float
    findings: Findings


def run_part(part: Part, place: Place, limit_s: float) -> Ended:
    """Run a part, at most so long, and write what it found to its JSON file."""
    started_s, cpu_before_s = perf_counter(), sum(os.times()[2:4])
    status, message = _run(part, place, min(part.limit_s, limit_s))
    ended = Ended(
        name=part.name,
        heading=part.heading,
        status=status,
        message=message,
        took_s=perf_counter() - started_s,
        cpu_s=sum(os.times()[2:4]) - cpu_before_s,
        findings=_read(place.report(part.name)) if status == "done" else Findings(),
    )
    text = json.dumps(asdict(ended), indent=1)
    place.report(part.name).write_text(text, encoding="utf-8")
    return ended


def _run(part: Part, place: Place, limit_s: float) -> tuple[Status, str]:
    """Run a part in a process of its own; how it ended, and why it has no findings."""
    if limit_s <= 0:
        return "not begun", "no time was left"
    process = multiprocessing.get_context("fork").Process(target=_work, args=(part, place))
    process.start()
    process.join(limit_s)
    if process.is_alive() and process.pid is not None:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
        kill_orphans()
        return "out of time", f"ended after {limit_s:.0f} s"
    if process.exitcode:
        kill_orphans()
        log = (place.out / f"{part.name}.log").read_text(encoding="utf-8", errors="replace")
        errors = [line for line in log.splitlines() if line.startswith("error: ")]
        last = errors[-1] if errors else " ".join(log.split())[-MOST_OUTPUT_CHARS:]
        return "failed", last or f"status {process.exitcode}"
    return "done", ""


def _work(part: Part, place: Place) -> None:
    os.setsid()
    log = os.open(place.out / f"{part.name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        text = json.dumps(asdict(part.run(place)), default=str)
        place.report(part.name).write_text(text, encoding="utf-8")
    except Exception:  # noqa: BLE001 - whatever a part dies of is its result
        os.write(2, traceback.format_exc().encode())
        os._exit(1)


def _read(report: Path) -> Findings:
    document = json.loads(report.read_text(encoding="utf-8"))
    tables = [Grid(**table) for table in document.pop("tables")]
    return Findings(**document, tables=tables)


def cclsearch(*words: object, statuses: Sequence[int] = (0,), limit_s: float = 300) -> str:
    """Run a command of cclsearch as a user does, and return what it printed.

    Raises `CommandFailed` for a status that is not among those expected.
    """
    command = [sys.executable, "-P", "-m", "search", *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=limit_s)
    if done.returncode not in statuses:
        raise CommandFailed(
            f"cclsearch {' '.join(map(str, words))}: status {done.returncode}: "
            f"{done.stdout[-MOST_OUTPUT_CHARS:]}"
        )
    return done.stdout
