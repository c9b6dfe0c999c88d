"""Reads a result file of nvbench of unknown origin."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from evaluator.readers.files import ReadLimits, read_bytes
from evaluator.timing.interval.summary import Summary
from evaluator.timing.nvbench.document import AxisValue, Benchmark, Device, Document, State
from evaluator.timing.nvbench.errors import NvbenchError
from evaluator.timing.nvbench.layout import (
    Datum,
    ResultFile,
    RunBenchmark,
    RunState,
    StateAxis,
    TaggedSummary,
    Value,
)
from evaluator.timing.nvbench.samples import SampleFile
from evaluator.traces.errors import TraceError
from records.codec import from_json
from records.errors import CodecError, shown

_LIMITS: Final = ReadLimits(file_bytes=256 << 20, decompressed_bytes=256 << 20)
_KNOWN_LAYOUT: Final = "1."
_TIME: Final = "nv/cold/time/gpu/"
_CLOCK: Final = "nv/cold/sm_clock_rate/mean"
_SAMPLE_TIMES: Final = "nv/json/bin:nv/cold/sample_times"
_SAMPLE_CLOCKS: Final = "nv/json/freqs-bin:nv/cold/sample_freqs"
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_REMEDY: Final = "write it again with nvbench --json FILE"


def read_document(path: Path) -> Document:
    """The result file as values; its raw samples stay in their files.

    Raises NvbenchError naming the file and the place where it is wrong.
    """
    try:
        text = bytes(read_bytes(path, _LIMITS)).decode()
        parsed = from_json(ResultFile, text)
    except TraceError as error:
        raise NvbenchError(f"{error}; give a file that nvbench --json wrote") from error
    except (CodecError, UnicodeDecodeError) as error:
        raise NvbenchError(f"{path}: {error}; {_REMEDY}") from error
    return Document(
        path=path,
        devices=tuple(
            _device(path, place, each) for place, each in enumerate(parsed.devices or ())
        ),
        benchmarks=tuple(_benchmark(path, each) for each in parsed.benchmarks or ()),
        warnings=_layout_warnings(path, parsed),
    )


def _layout_warnings(path: Path, parsed: ResultFile) -> tuple[str, ...]:
    versions = parsed.meta.version if parsed.meta else None
    version = versions.json.string if versions and versions.json else None
    if version is not None and version.startswith(_KNOWN_LAYOUT):
        return ()
    found = "has no version" if version is None else f"is version {shown(version)}"
    return (f"{path}: its layout {found} and was read as 1.0.0",)


def _device(path: Path, place: int, properties: Mapping[str, JsonValue]) -> Device:
    number, name = properties.get("id"), properties.get("name")
    if not isinstance(number, int) or isinstance(number, bool) or not isinstance(name, str):
        raise NvbenchError(f"{path}: devices.{place} has no number `id` and name; {_REMEDY}")
    return Device(
        id=number,
        name=name,
        properties={key: json.dumps(properties[key], sort_keys=True) for key in sorted(properties)},
    )


def _benchmark(path: Path, benchmark: RunBenchmark) -> Benchmark:
    axes = benchmark.axes or ()
    exponents = frozenset(axis.name for axis in axes if axis.flags == "pow2")
    return Benchmark(
        name=benchmark.name,
        device_ids=benchmark.devices or (),
        axis_names=tuple(axis.name for axis in axes),
        states=tuple(
            _state(path, benchmark.name, each, exponents) for each in benchmark.states or ()
        ),
    )


def _state(path: Path, benchmark: str, state: RunState, exponents: frozenset[str]) -> State:
    measured = _Measured(
        path=path,
        where=f"benchmark {shown(benchmark)}, state {shown(state.name)}",
        by_tag={each.tag: each for each in reversed(state.summaries or ())},
    )
    return State(
        name=state.name.removeprefix(f"Device={state.device}").strip(),
        device=state.device,
        axes=tuple(_axis_value(each, each.name in exponents) for each in state.axis_values or ()),
        summary=measured.summary(skipped=state.is_skipped),
        times=measured.file(_SAMPLE_TIMES),
        clocks=measured.file(_SAMPLE_CLOCKS),
    )


def _axis_value(axis: StateAxis, is_exponent: bool) -> AxisValue:
    text = str(axis.value)
    return AxisValue(
        name=axis.name, type=axis.type, value=text, shown=_axis_words(axis.type, text, is_exponent)
    )


def _axis_words(kind: str, text: str, is_exponent: bool) -> str:
    if kind == "int64" and is_exponent and _INTEGER.fullmatch(text):
        value = int(text)
        if value > 0 and value & (value - 1) == 0:
            return f"2^{value.bit_length() - 1}"
    if kind == "float64":
        try:
            return f"{float(text):.5g}"
        except ValueError:
            return text
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """What was measured of one state, by tag."""

    path: Path
    where: str
    by_tag: Mapping[str, TaggedSummary]

    def summary(self, *, skipped: bool) -> Summary:
        """Statistics of the times of the accelerator."""
        return Summary(
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

    def file(self, tag: str) -> SampleFile | None:
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
        return SampleFile(document=self.path, name=named.value, count=int(count))

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
            raise NvbenchError(f"{self.path}: {self.where}: {tag} has no value; {_REMEDY}")
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

    def _wrong(
        self, tag: str, datum: Datum, wanted: str, seen: Value | None = None
    ) -> NvbenchError:
        value = datum.value if seen is None else seen
        return NvbenchError(
            f"{self.path}: {self.where}: {datum.name} of {tag} is {shown(value)}, "
            f"not {wanted}; {_REMEDY}"
        )
