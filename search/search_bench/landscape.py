"""A landscape: a search space with what each configuration of it costs, as a file holds it.

Knows nothing of strategies.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from records.codec import first_problem, from_document, to_json
from records.errors import StudyError
from records.files import read_text
from records.strict import STRICT
from records.study import Command, Environment, Launch, Objective, SearchSpace, Value
from records.trial import FailureKind
from records.workload import Workload

VERSION = 1
MOST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """How every launch of a configuration ends that cannot be measured."""

    __pydantic_config__ = STRICT

    kind: FailureKind
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One configuration: a sample of the objective for each launch, or how its launches fail.

    `estimate` is the seconds that a step should take, by what takes them, as a cost model has it
    before anything is launched; None where none speaks.
    """

    __pydantic_config__ = STRICT

    config: Mapping[str, Value]
    samples: tuple[float, ...] = ()
    failure: Fault | None = None
    estimate: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if bool(self.samples) is (self.failure is not None):
            raise StudyError(f"{self.words} needs either samples or a failure")
        if any(sample <= 0 for sample in self.samples):
            raise StudyError(f"{self.words} has a sample of {min(self.samples)}, not above 0")
        if any(seconds < 0 for seconds in (self.estimate or {}).values()):
            raise StudyError(f"{self.words} has an estimate below 0")

    @property
    def words(self) -> str:
        """Which entry it is, for messages."""
        return f"entry {json.dumps(dict(self.config))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Landscape:
    """A space of which every configuration that may be launched has an entry.

    What has no entry is not feasible. Where `noise_sigma` is given, a launch draws from a
    log-normal distribution around the median of the samples, with this deviation of the logarithm;
    else it draws one of the samples. `launch` and `command` name the recipe whose names
    rules may use, and whose estimates these are.
    """

    __pydantic_config__ = STRICT

    version: Literal[1]
    name: str
    about: str
    objective: Objective
    unit: str
    workload: Workload
    environment: Environment
    launch: Launch | None = None
    command: Command | None = None
    space: SearchSpace
    seed: Mapping[str, Value]
    noise_sigma: float | None = None
    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        if self.objective.direction is None:
            raise StudyError("[objective] needs a direction: minimize or maximize")
        if self.noise_sigma is not None and not 0 <= self.noise_sigma < 1:
            raise StudyError(f"noise_sigma is {self.noise_sigma}; it must be from 0 to below 1")
        if not any(entry.samples for entry in self.entries):
            raise StudyError("no entry has samples; measure at least one configuration")


def read_landscape(path: Path) -> Landscape:
    """The landscape of a file; raises `StudyError`, in one line that names what is wrong."""
    try:
        document = json.loads(read_text(path, MOST_BYTES), parse_constant=_refuse)
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"{path}: cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise StudyError(f"{path}: not JSON: {error}") from error
    if isinstance(document, dict) and document.get("version") != VERSION:
        given = document.get("version")
        raise StudyError(f"{path}: version is {given!r}; this cclsearch reads {VERSION}")
    try:
        return from_document(Landscape, document)
    except ValidationError as error:
        raise StudyError(f"{path}: {first_problem(error)}") from error
    except StudyError as error:
        raise StudyError(f"{path}: {error}") from error


def write_landscape(landscape: Landscape, path: Path) -> None:
    """Write the file that `read_landscape` reads, one entry a line."""
    head = json.loads(to_json(replace(landscape, entries=landscape.entries[:1])))
    del head["entries"]
    words = json.dumps(_said(head), indent=1, ensure_ascii=False).removesuffix("\n}")
    lines = (
        json.dumps(_said(json.loads(to_json(each))), ensure_ascii=False)
        for each in landscape.entries
    )
    entries = ",\n  ".join(lines)
    path.write_text(f'{words},\n "entries": [\n  {entries}\n ]\n}}\n', encoding="utf-8")


def _said(value: object) -> object:
    """The document without the keys that say nothing, so that a person can read it."""
    match value:
        case dict():
            said = {key: _said(each) for key, each in value.items()}
            return {key: each for key, each in said.items() if each not in (None, [], {}, "")}
        case list():
            return [_said(each) for each in value]
        case _:
            return value


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is no number")
