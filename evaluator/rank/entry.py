"""The entry that a job file names, and the job as that entry's module takes it."""

import importlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Protocol

from evaluator.rank.job import DeviceKind, Job, Measure
from evaluator.rank.job_file import JobError, parse
from evaluator.rank.steps import Work


class AnyJob(Protocol):
    """What every job tells a rank, apart from its number; the rest is between recipe and entry."""

    @property
    def entry(self) -> str:
        """What makes the work, as `package.module:function`.

        The module's `JOB`, if it has one, is the class of the jobs that the function takes; without
        it they are of the class `Job`.
        """
        ...

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        ...

    @property
    def device(self) -> DeviceKind:
        """Where they compute."""
        ...

    @property
    def init_method(self) -> str:
        """Where they meet, as torch.distributed takes it; `file://` alone leaves it to the rank."""
        ...

    @property
    def measure(self) -> Measure:
        """How many steps are asked for."""
        ...

    @property
    def threads_per_rank(self) -> int:
        """How many threads, and cores, each rank has for its computing."""
        ...

    @property
    def memory_budget_bytes(self) -> int | None:
        """What a rank may take; None for no limit."""
        ...


def read_job(path: Path) -> AnyJob:
    """Read a job file as its entry's module takes it, which is imported.

    Raises `JobError` with the file's name and the part that is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
        return parse(_kind(text), text)
    except (OSError, JobError) as error:
        raise JobError(f"{path.name}: {error}") from error


def load_entry(entry: str) -> Callable[..., Work]:
    """Give the function of a context that an entry names; raises `JobError` if there is none."""
    _, function = _split(entry)
    try:
        loaded: Callable[..., Work] = getattr(_module(entry), function)
    except AttributeError as error:
        raise JobError(f"entry: {entry} cannot be loaded: {error}") from error
    return loaded


def _kind(text: str) -> type[AnyJob]:
    """The class of the job; where the text names no entry that of most, which then says so."""
    document: object = None
    with suppress(json.JSONDecodeError, RecursionError):
        document = json.loads(text)
    match document:
        case {"entry": str(entry)}:
            kind: type[AnyJob] = getattr(_module(entry), "JOB", Job)
            return kind
    return Job


def _module(entry: str) -> ModuleType:
    module, _ = _split(entry)
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise JobError(f"entry: {entry} cannot be loaded: {error}") from error


def _split(entry: str) -> tuple[str, str]:
    module, _, function = entry.partition(":")
    if not (module and function):
        raise JobError(f"entry: expected 'package.module:function', got {entry!r}")
    return module, function
