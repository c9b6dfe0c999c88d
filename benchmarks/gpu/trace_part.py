"""Traces of the study's trials: parts that add up, kernels, launches, and what others say of them.

On GPUs the device's work is also added up from the JSON itself, by a sweep that shares no code with
the readers, and by HolisticTraceAnalysis where this Python has it.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fresh_process import ProcessFailed
from part import Findings, Grid, Place, cclsearch
from trace_peers import answers, cut_to_us, hta, kept_by_hta, kernels, ours, swept

from evaluator.traces.readers.read import read_folder
from records.store.store import Store
from records.trial import Measured, Trial
from search.traces.open import OpenTraces, trial_traces
from search.traces.tables import table_rows
from search.views.format import format_duration, format_percent

MOST_TRIALS = {True: 3, False: 1}
MOST_KERNELS = 8
KERNEL_CHARS = 70
ADDS_UP_S = 1e-9
SWEPT_US = 0.0005
EXPLAINED_US = 5.0
TOTAL = ("compute_s", "exposed_communication_s", "exposed_copy_s", "fill_s", "idle_s")


def analyze(place: Place) -> Findings:
    """Open the traces of the fastest trial, the first one and the slowest."""
    found = Findings(
        lead="Traces of trials, as cclsearch trace breakdown, kernels and metrics read them.",
        data=[],
    )
    with closing(Store(place.store)) as records:
        row = records.find("")
        trials = chosen(records.history(row.id).trials, MOST_TRIALS[place.has_gpu])
        for number, trial in enumerate(trials):
            name, folder = f"trial {trial.ordinal}", place.folder("traces")
            facts = add_trace(found, name, trial_traces(row, trial, records), place)
            if place.has_gpu:
                path = _trace_file(place, folder / f"trial-{trial.ordinal}", trial, row.id)
                facts["device"] = add_device_work(found, name, path, asks_hta=not number)
            found.data.append({"trial": trial.ordinal, **facts})
    if not trials:
        found.lacks.append("no trial was measured, so there is no trace")
    if not place.has_gpu:
        found.lacks.append("CUDA kernels and their launches: the trace has operators of the host")
    elif find_spec("hta") is None:
        found.lacks.append("a comparison with HolisticTraceAnalysis, which is not installed")
    return found


def chosen(trials: Sequence[Trial], most: int) -> Sequence[Trial]:
    """The fastest, the first and the slowest of those measured, each once."""
    measured = [trial for trial in trials if isinstance(trial.outcome, Measured)]
    by_time = sorted(measured, key=_step_s)
    wanted = [*by_time[:1], *measured[:1], *by_time[-1:]]
    return list({trial.ordinal: trial for trial in wanted}.values())[:most]


def _step_s(trial: Trial) -> float:
    outcome = trial.outcome
    return (outcome.metric("step_time") if isinstance(outcome, Measured) else None) or 0.0


def add_trace(found: Findings, name: str, traces: OpenTraces, place: Place) -> dict[str, Any]:
    """Show what the profiled step of a trial did, and doubt what does not add up."""
    names = ("breakdown", "kernels", "launches")
    tables: Mapping[str, Any] = {table: table_rows(traces, table) for table in names}
    metrics = {row["name"]: row["value"] for row in table_rows(traces, "metrics")}
    facts = {**tables, "metrics": metrics}
    mean = tables["breakdown"][-1] if tables["breakdown"] else None
    if mean is None:
        found.doubts.append(f"{name}: no step is marked in its trace")
    else:
        parts = {part: mean[part] for part in ("window_s", *TOTAL)}
        off_s = abs(parts["window_s"] - sum(parts[part] for part in TOTAL))
        facts["parts_off_s"] = off_s
        if off_s > ADDS_UP_S:
            found.doubts.append(f"{name}: the parts of a step miss its length by {off_s:.3g} s")
        shares = ", ".join(
            f"{part.removesuffix('_s').replace('_', ' ')} "
            f"{format_percent(parts[part] / parts['window_s'])}"
            for part in TOTAL
            if parts[part]
        )
        where = "on the device" if place.has_gpu else "on the host"
        words = f"{format_duration(parts['window_s'])} {where}: {shares}"
        found.facts.append((f"{name}, profiled step", words))
    launched = tables["launches"][-1] if tables["launches"] else None
    if launched is not None:
        found.facts.append((f"{name}, launches", _launch_words(launched)))
    elif place.has_gpu:
        found.doubts.append(f"{name}: its trace shows no launch of a kernel")
    found.tables.append(_kernel_table(name, tables["kernels"]))
    return facts


def _launch_words(launched: Mapping[str, Any]) -> str:
    count, delay_s = launched["launches_per_step"], launched["delay_median_s"]
    early = launched["early_share"]
    return (
        f"{count or 0:.0f} per step, {format_duration(delay_s)} from a call to its work at the "
        f"median, {format_percent(early)} start before their call"
    )


def _kernel_table(name: str, rows: Sequence[Mapping[str, Any]]) -> Grid:
    shown = [
        (
            *(row["activity"], row["name"][:KERNEL_CHARS], str(row["count"])),
            *(f"{row['total_s'] * 1e3:.4g}", format_percent(row["share"])),
        )
        for row in rows[:MOST_KERNELS]
    ]
    headings = ("activity", "kernel or operator", "calls", "total, ms", "share")
    return Grid(about=f"Longest work of {name}", headings=headings, rows=shown)


def _trace_file(place: Place, folder: Path, trial: Trial, study_id: str) -> Path:
    """The trace of a trial's first rank, as its profiler wrote it."""
    files = ("trial", "files", study_id, trial.ordinal, "--to", folder, "--store", place.store)
    cclsearch(*files)
    return next(iter(sorted(folder.glob("rank0_trace.json*"))))


def add_device_work(found: Findings, name: str, path: Path, *, asks_hta: bool) -> Mapping[str, Any]:
    """Show our numbers beside those of a sweep over the file, and of HTA where it is installed."""
    trace = read_folder(path, use_cache=False).ranks[0]
    events = json.loads(path.read_bytes(), parse_float=Decimal)["traceEvents"]
    every = kernels(events)
    whole, _ = ours(trace)
    exact = swept(every)
    numbers: dict[str, Mapping[str, float]] = {"ours_us": whole, "swept_us": exact}
    for row, value in whole.items():
        if abs(value - exact[row]) > SWEPT_US:
            found.doubts.append(f"{name}: {row} is {value} us, a sweep finds {exact[row]} us")
    theirs = _asked_hta(found, path) if asks_hta and find_spec("hta") is not None else {}
    if theirs:
        numbers["hta_us"] = theirs
        cut = swept(cut_to_us(kept_by_hta(every, events)))
        found.doubts += _unexplained(name, theirs, cut, len(every))
    rows = [
        (
            *(row, f"{value:.3f}", f"{exact[row]:.3f}"),
            f"{theirs[row]:.0f}" if row in theirs else "",
        )
        for row, value in whole.items()
    ]
    about = f"Device work of {name} over the whole trace, microseconds"
    headings = ("part", "cclsearch", "a sweep over the file", "HTA")
    found.tables.append(Grid(about=about, headings=headings, rows=rows))
    return numbers


def _asked_hta(found: Findings, path: Path) -> Mapping[str, float]:
    """HTA's numbers; where it fails, the page says at what."""
    try:
        told = answers(Path(sys.executable), [path])
    except (ProcessFailed, ValueError, IndexError) as error:
        found.lacks.append(f"a comparison with HolisticTraceAnalysis, which failed: {error}")
        return {}
    failed = [f"{name} ({reason})" for name, reason in told.items() if isinstance(reason, str)]
    if failed:
        found.lacks.append(f"what HolisticTraceAnalysis fails at: {', '.join(failed)}")
    return hta(told, 0)


def _unexplained(name, theirs, cut, kernel_count: int) -> Iterator[str]:
    """Differences to HTA beyond what it rounds away: up to a microsecond for each kernel."""
    for row, value in theirs.items():
        rest_us = value - cut[row]
        if abs(rest_us) > EXPLAINED_US + kernel_count:
            yield f"{name}: HTA's {row} differs by {rest_us:.0f} us, more than by rounding"
