"""Read a result file of nvbench, of unknown origin, as values to compare.

Its JSON is described field by field; what a comparison does not need is left out. Measured numbers
are texts there, so that they lose no digits, and lists without entries may be null. Raw samples are
in files next to it, which are read only when needed.
"""

import json
import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from pydantic import ConfigDict, JsonValue

from evaluator.timing.screening.estimate import Channel, Samples, TimeSummary, Unusable
from evaluator.traces.readers.files import ReadLimits, open_regular, read_bytes
from records.codec import from_json
from records.errors import CodecError, StudyError, TraceError, shown
from records.files import check_value_count

EXACT = ConfigDict(strict=True)
"""A boolean is not a number, nor a number a text."""

Value: TypeAlias = str | int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class Datum:
    """One named value of a summary."""

    name: str
    type: str
    value: Value | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedSummary:
    """What was measured of a state under one tag."""

    tag: str
    data: tuple[Datum, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateAxis:
    """Where a state stands on one axis."""

    name: str
    type: str
    value: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """One run of a benchmark at fixed axis values."""

    name: str
    device: int | None = None
    axis_values: tuple[StateAxis, ...] | None = None
    summaries: tuple[TaggedSummary, ...] | None = None
    is_skipped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisDefinition:
    """An axis of a benchmark; `flags` is `pow2` where values are given by their exponent."""

    name: str
    flags: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBenchmark:
    """A benchmark with all its states on all its devices."""

    name: str
    devices: tuple[int, ...] | None = None
    axes: tuple[AxisDefinition, ...] | None = None
    states: tuple[RunState, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """Versions of what wrote the file; `json` is that of the layout."""

    version: Mapping[str, Mapping[str, JsonValue]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFile:
    """The whole file; a device has `id`, `name` and many properties."""

    __pydantic_config__ = EXACT

    devices: tuple[dict[str, JsonValue], ...] | None
    benchmarks: tuple[RunBenchmark, ...] | None
    meta: Meta | None = None


SAMPLE_BYTES: Final = 4
FILE_BYTES: Final = 256 << 20
"""More than any benchmark writes for one state, and little enough to hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFile:
    """A file of `count` little-endian float32, `name` as the result file `document` has it."""

    document: Path
    channel: Channel
    name: str
    count: int

    @property
    def path(self) -> Path | None:
        """Where it is, or None where that is outside the folder of the result file."""
        folder = self.document.parent.resolve()
        places = [folder / self.name, *self._moved(folder)]
        try:
            inside = [path for place in places if (path := place.resolve()).is_relative_to(folder)]
            found = [path for path in inside if path.exists()]
        except (OSError, ValueError, RuntimeError):  # a name no file can have, or a loop of links
            return None
        return next(iter(found or inside), None)

    def read(self) -> Samples | Unusable:
        """The samples as float64, never more than `FILE_BYTES` of them."""
        path = self.path
        if path is None:
            return self._unread("names no file inside the folder")
        if not 0 <= self.count <= FILE_BYTES // SAMPLE_BYTES:
            return self._unread(f"cannot hold {self.count} samples")
        try:
            with open_regular(path) as file:
                size_bytes = os.fstat(file.fileno()).st_size
                if size_bytes == 0:
                    return self._unread("is empty", is_gone=True)
                if size_bytes != self.count * SAMPLE_BYTES:
                    wrong = f"holds {size_bytes} bytes, which are not {self.count} samples"
                    return self._unread(wrong)
                content = file.read(size_bytes)
        except FileNotFoundError:
            return self._unread("does not exist", is_gone=True)
        except (OSError, TraceError) as error:
            return self._unread(f"cannot be read: {error}")
        if len(content) != size_bytes:
            return self._unread("was cut while it was read")
        return np.frombuffer(content, dtype="<f4").astype(np.float64)

    def _moved(self, folder: Path) -> list[Path]:
        """Older nvbench wrote where the file was seen from the folder that it was started in."""
        parts = self.name.replace("\\", "/").split("/")
        own = {f"{self.document.name}{ending}" for ending in ("-bin", "-freqs-bin")}
        return [folder.joinpath(*parts[at:]) for at, part in enumerate(parts) if part in own]

    def _unread(self, why: str, *, is_gone: bool = False) -> Unusable:
        return Unusable(channel=self.channel, why=f"{shown(self.name)} {why}", is_gone=is_gone)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class AxisValue:
    """Where a state stands on one axis: as the file has it, and as people are shown it."""

    name: str
    type: str
    value: str
    shown: str = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class NvbenchState:
    """One run of a benchmark; `name` is without its device, `summary` without raw samples."""

    name: str
    device: int | None
    axes: tuple[AxisValue, ...]
    summary: TimeSummary
    times: SampleFile | None = None
    clocks: SampleFile | None = None

    @property
    def key(self) -> tuple[str, tuple[AxisValue, ...]]:
        """What another run of the same state has too."""
        return self.name, tuple(sorted(self.axes))

    def measured(self) -> tuple[TimeSummary, tuple[str, ...]]:
        """The summary with the raw samples, read now, and what is wrong with their files."""
        files = [file for file in (self.times, self.clocks) if file is not None]
        read = {file.channel: file.read() for file in files}
        samples = {name: found for name, found in read.items() if not isinstance(found, Unusable)}
        unusable = tuple(found for found in read.values() if isinstance(found, Unusable))
        summary = replace(
            self.summary,
            times_s=samples.get(Channel.TIMES),
            clocks_hz=samples.get(Channel.CLOCKS),
            unusable=unusable,
        )
        return summary, tuple(f"{files[0].document}: {each.why}" for each in unusable)


@dataclass(frozen=True, slots=True, kw_only=True)
class NvbenchBenchmark:
    """A benchmark with all its states, in the order of the file."""

    name: str
    device_ids: tuple[int, ...]
    axis_names: tuple[str, ...]
    states: tuple[NvbenchState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NvbenchDevice:
    """An accelerator; `properties` has all that the file says of it, each value as JSON."""

    id: int
    name: str
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NvbenchDocument:
    """A result file; `warnings` is what a reader of its comparison should know."""

    path: Path
    devices: tuple[NvbenchDevice, ...]
    benchmarks: tuple[NvbenchBenchmark, ...]
    warnings: tuple[str, ...] = ()


_LIMITS: Final = ReadLimits(file_bytes=256 << 20, decompressed_bytes=256 << 20)
_KNOWN_LAYOUT: Final = "1."
_TIME: Final = "nv/cold/time/gpu/"
_CLOCK: Final = "nv/cold/sm_clock_rate/mean"
_SAMPLE_TIMES: Final = "nv/json/bin:nv/cold/sample_times"
_SAMPLE_CLOCKS: Final = "nv/json/freqs-bin:nv/cold/sample_freqs"
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_REMEDY: Final = "write it again with nvbench --json FILE"


def read_document(path: Path) -> NvbenchDocument:
    """The result file as values; its raw samples stay in their files.

    Raises StudyError naming the file and the place where it is wrong.
    """
    try:
        content = read_bytes(path, _LIMITS)
        check_value_count(content)
        parsed = from_json(ResultFile, content.decode())
    except TraceError as error:
        raise StudyError(f"{error}; give a file that nvbench --json wrote") from error
    except (CodecError, ValueError) as error:
        raise StudyError(f"{path}: {error}; {_REMEDY}") from error
    return NvbenchDocument(
        path=path,
        devices=tuple(
            _device(path, place, each) for place, each in enumerate(parsed.devices or ())
        ),
        benchmarks=tuple(_benchmark(path, each) for each in parsed.benchmarks or ()),
        warnings=_layout_warnings(path, parsed),
    )


def _layout_warnings(path: Path, parsed: ResultFile) -> tuple[str, ...]:
    versions = (parsed.meta.version if parsed.meta else None) or {}
    version = versions.get("json", {}).get("string")
    if isinstance(version, str) and version.startswith(_KNOWN_LAYOUT):
        return ()
    found = "has no version" if version is None else f"is version {shown(version)}"
    return (f"{path}: its layout {found} and was read as 1.0.0",)


def _device(path: Path, place: int, properties: Mapping[str, JsonValue]) -> NvbenchDevice:
    number, name = properties.get("id"), properties.get("name")
    if not isinstance(number, int) or isinstance(number, bool) or not isinstance(name, str):
        raise StudyError(f"{path}: devices.{place} has no number `id` and name; {_REMEDY}")
    return NvbenchDevice(
        id=number,
        name=name,
        properties={key: json.dumps(properties[key], sort_keys=True) for key in sorted(properties)},
    )


def _benchmark(path: Path, benchmark: RunBenchmark) -> NvbenchBenchmark:
    axes = benchmark.axes or ()
    exponents = frozenset(axis.name for axis in axes if axis.flags == "pow2")
    return NvbenchBenchmark(
        name=benchmark.name,
        device_ids=benchmark.devices or (),
        axis_names=tuple(axis.name for axis in axes),
        states=tuple(
            _state(path, benchmark.name, each, exponents) for each in benchmark.states or ()
        ),
    )


def _state(path: Path, benchmark: str, state: RunState, exponents: frozenset[str]) -> NvbenchState:
    measured = _Measured(
        path=path,
        where=f"benchmark {shown(benchmark)}, state {shown(state.name)}",
        by_tag={each.tag: each for each in reversed(state.summaries or ())},
    )
    return NvbenchState(
        name=state.name.removeprefix(f"Device={state.device}").strip(),
        device=state.device,
        axes=tuple(_axis_value(each, each.name in exponents) for each in state.axis_values or ()),
        summary=measured.summary(skipped=state.is_skipped),
        times=measured.file(Channel.TIMES, _SAMPLE_TIMES),
        clocks=measured.file(Channel.CLOCKS, _SAMPLE_CLOCKS),
    )


def _axis_value(axis: StateAxis, is_exponent: bool) -> AxisValue:
    words = text = str(axis.value)
    if axis.type == "int64" and is_exponent and _INTEGER.fullmatch(text):
        value = int(text)
        if value > 0 and value.bit_count() == 1:
            words = f"2^{value.bit_length() - 1}"
    elif axis.type == "float64":
        with suppress(ValueError):
            words = f"{float(text):.5g}"
    return AxisValue(name=axis.name, type=axis.type, value=text, shown=words)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """What was measured of one state, by tag."""

    path: Path
    where: str
    by_tag: Mapping[str, TaggedSummary]

    def summary(self, *, skipped: bool) -> TimeSummary:
        """Statistics of the times of the accelerator."""
        return TimeSummary(
            minimum=self._number(_TIME + "min"),
            maximum=self._number(_TIME + "max"),
            mean=self._number(_TIME + "mean"),
            stdev=self._dispersion("stdev/absolute"),
            stdev_relative=self._dispersion("stdev/relative"),
            first_quartile=self._number(_TIME + "q1"),
            median=self._number(_TIME + "median"),
            third_quartile=self._number(_TIME + "q3"),
            iqr=self._dispersion("iqr/absolute", "ir/absolute"),
            iqr_relative=self._dispersion("iqr/relative", "ir/relative"),
            clock_hz=self._number(_CLOCK),
            skipped=skipped,
        )

    def file(self, channel: Channel, tag: str) -> SampleFile | None:
        """The file of raw samples; nvbench leaves its name out where it could not write it."""
        if tag not in self.by_tag:
            return None
        named, counted = self._datum(tag, "filename", "string"), self._datum(tag, "size", "int64")
        if named is None or counted is None:
            return None
        if not isinstance(named.value, str):
            raise self._wrong(tag, named, "a text")
        count = str(counted.value)
        if isinstance(counted.value, float) or not _INTEGER.fullmatch(count):
            raise self._wrong(tag, counted, "a whole number")
        return SampleFile(document=self.path, channel=channel, name=named.value, count=int(count))

    def _dispersion(self, *endings: str) -> float | None:
        """One of a time under the first of these tags; null is what JSON makes of infinity."""
        for ending in endings:
            if _TIME + ending in self.by_tag:
                value = self._number(_TIME + ending)
                return math.inf if value is None else value
        return None

    def _number(self, tag: str) -> float | None:
        if tag not in self.by_tag:
            return None
        datum = self._datum(tag, "value", "float64")
        if datum is None:
            raise StudyError(f"{self.path}: {self.where}: {tag} has no value; {_REMEDY}")
        if datum.value is None:
            return None
        try:
            return float(datum.value)
        except (ValueError, OverflowError) as error:
            raise self._wrong(tag, datum, "a number") from error

    def _datum(self, tag: str, name: str, kind: str) -> Datum | None:
        data = self.by_tag[tag].data or ()
        found = next((datum for datum in data if datum.name == name), None)
        if found is not None and found.type != kind:
            raise self._wrong(tag, found, f"of type {kind}", found.type)
        return found

    def _wrong(self, tag: str, datum: Datum, wanted: str, seen: Value | None = None) -> StudyError:
        value = datum.value if seen is None else seen
        return StudyError(
            f"{self.path}: {self.where}: {datum.name} of {tag} is {shown(value)}, "
            f"not {wanted}; {_REMEDY}"
        )
