"""Result files as nvbench writes them, for tests of what reads them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from pydantic import JsonValue

Json = dict[str, JsonValue]

QUARTILES = ("min", "q1", "median", "q3")


def device(number: int = 0, name: str = "Test GPU") -> Json:
    """An accelerator as a file describes it."""
    return {"id": number, "name": name, "sm_version": 900}


def number(tag: str, value: float | None) -> Json:
    """A measured number; numbers are texts in these files, and infinity is null."""
    return {
        "tag": tag,
        "name": tag.rsplit("/", 1)[-1],
        "data": [
            {"name": "value", "type": "float64", "value": None if value is None else repr(value)}
        ],
    }


def times(
    *quartiles: float,
    noise: float | None = None,
    clock_hz: float | None = 1.5e9,
    prefix: str = "nv/cold/time/gpu/",
) -> list[JsonValue]:
    """Summaries of a state by its least time and its quartiles, in seconds."""
    found: list[JsonValue] = [
        number(prefix + name, value) for name, value in zip(QUARTILES, quartiles, strict=True)
    ]
    if noise is None:
        noise = (quartiles[3] - quartiles[1]) / quartiles[2]
    found.append(number(prefix + "iqr/relative", noise))
    if clock_hz is not None:
        found.append(number("nv/cold/sm_clock_rate/mean", clock_hz))
    return found


def state(
    summaries: Sequence[JsonValue] | None,
    axes: Mapping[str, str] | None = None,
    *,
    device: int = 0,
    skipped: bool = False,
) -> Json:
    """One run of a benchmark; axis values are texts, or exponents of two such as `2^8`."""
    values: list[JsonValue] = [_axis_value(name, text) for name, text in (axes or {}).items()]
    words = [f"Device={device}", *(f"{name}={text}" for name, text in (axes or {}).items())]
    return {
        "name": " ".join(words),
        "device": device,
        "axis_values": values or None,
        "summaries": None if summaries is None else list(summaries),
        "is_skipped": skipped,
    }


def benchmark(name: str, states: Sequence[Json], devices: Sequence[int] = (0,)) -> Json:
    """A benchmark with the axes that its states have."""
    axes: dict[str, JsonValue] = {}
    for each in states:
        for word in str(each["name"]).split(" ")[1:]:
            axis, text = word.split("=", 1)
            flags = "pow2" if text.startswith("2^") else ""
            axes[axis] = {"name": axis, "type": "string", "flags": flags, "values": []}
    return {
        "name": name,
        "devices": list(devices),
        "axes": list(axes.values()) or None,
        "states": list(states),
    }


def write_result(
    path: Path, benchmarks: Sequence[Json], devices: Sequence[Json] | None = None
) -> Path:
    """Write a result file."""
    document: Json = {
        "meta": {"version": {"json": {"string": "1.0.0"}}},
        "devices": list(devices or [device()]),
        "benchmarks": list(benchmarks),
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def samples(path: Path, number: int, values: Sequence[float], *, clocks: bool = False) -> Json:
    """Write raw samples beside the result file `path`; gives the summary that names their file."""
    kind, tag = ("-freqs-bin", "freqs-bin") if clocks else ("-bin", "bin")
    name = f"{path.name}{kind}/{number}.bin"
    file = path.parent / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(np.asarray(values, dtype="<f4").tobytes())
    return sample_reference(name, len(values), tag=tag)


def sample_reference(name: str, count: int, *, tag: str = "bin") -> Json:
    """The summary that says that a file holds so many samples."""
    what = "sample_freqs" if tag == "freqs-bin" else "sample_times"
    return {
        "tag": f"nv/json/{tag}:nv/cold/{what}",
        "data": [
            {"name": "filename", "type": "string", "value": name},
            {"name": "size", "type": "int64", "value": str(count)},
        ],
    }


def _axis_value(name: str, text: str) -> Json:
    if text.startswith("2^"):
        return {"name": name, "type": "int64", "value": str(2 ** int(text[2:]))}
    return {"name": name, "type": "string", "value": text}
