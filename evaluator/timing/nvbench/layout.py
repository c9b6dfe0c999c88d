"""The JSON that nvbench writes, field by field; what a comparison does not need is left out.

Numbers that nvbench measured are texts there, so that they lose no digits. Lists without entries
may be null.
"""

from dataclasses import dataclass
from typing import TypeAlias

from pydantic import ConfigDict, JsonValue

EXACT = ConfigDict(strict=True)
"""A boolean is no number, a number no text."""

Value: TypeAlias = str | int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class Datum:
    """One named value of a summary."""

    __pydantic_config__ = EXACT

    name: str
    type: str
    value: Value | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedSummary:
    """What was measured of a state under one tag."""

    __pydantic_config__ = EXACT

    tag: str
    data: tuple[Datum, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateAxis:
    """Where a state stands on one axis."""

    __pydantic_config__ = EXACT

    name: str
    type: str
    value: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """One run of a benchmark at fixed axis values."""

    __pydantic_config__ = EXACT

    name: str
    device: int | None = None
    axis_values: tuple[StateAxis, ...] | None = None
    summaries: tuple[TaggedSummary, ...] | None = None
    is_skipped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis of a benchmark; `flags` is `pow2` where values are given by their exponent."""

    __pydantic_config__ = EXACT

    name: str
    flags: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBenchmark:
    """A benchmark with all its states on all its devices."""

    __pydantic_config__ = EXACT

    name: str
    devices: tuple[int, ...] | None = None
    axes: tuple[Axis, ...] | None = None
    states: tuple[RunState, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A version as text."""

    __pydantic_config__ = EXACT

    string: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """Of what wrote the file; `json` is that of the layout."""

    __pydantic_config__ = EXACT

    json: Version | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """What the file says of itself."""

    __pydantic_config__ = EXACT

    version: Versions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFile:
    """The whole file; a device has `id`, `name` and many properties."""

    __pydantic_config__ = EXACT

    devices: tuple[dict[str, JsonValue], ...] | None
    benchmarks: tuple[RunBenchmark, ...] | None
    meta: Meta | None = None
