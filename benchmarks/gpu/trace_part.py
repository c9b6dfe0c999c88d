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
        for trial in trials:
            _add(found, place, trial, trial_traces(row, trial, records), row.id)
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


def _add(found: Findings, place: Place, trial: Trial, traces: OpenTraces, study_id: str) -> None:
    name = f"trial {trial.ordinal}"
    names = ("breakdown", "kernels", "launches")
    tables: Mapping[str, Any] = {table: table_rows(traces, table) for table in names}
    metrics = {row["name"]: row["value"] for row in table_rows(traces, "metrics")}
    facts = {"trial": trial.ordinal, **tables, "metrics": metrics}
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
        words = f"{format_duration(parts['window_s'])} on the device: {shares}; adds up"
        found.facts.append((f"{name}, profiled step", words))
    launched = tables["launches"][-1] if tables["launches"] else None
    if launched is not None:
        found.facts.append((f"{name}, launches", _launch_words(launched)))
    elif place.has_gpu:
        found.doubts.append(f"{name}: its trace shows no launch of a kernel")
    found.tables.append(_kernel_table(name, tables["kernels"]))
    if place.has_gpu:
        facts["device"] = _swept(found, place, trial, study_id)
    found.data.append(facts)


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


def _swept(found: Findings, place: Place, trial: Trial, study_id: str) -> Mapping[str, Any]:
    """Our numbers beside those of a sweep over the file, and of HTA where it is installed."""
    folder = place.folder("traces") / f"trial-{trial.ordinal}"
    files = ("trial", "files", study_id, trial.ordinal, "--to", folder, "--store", place.store)
    cclsearch(*files)
    path = next(iter(sorted(folder.glob("rank0_trace.json*"))))
    trace = read_folder(path, use_cache=False).ranks[0]
    events = json.loads(path.read_bytes(), parse_float=Decimal)["traceEvents"]
    every = kernels(events)
    whole, _ = ours(trace)
    exact = swept(every)
    numbers = {"ours_us": whole, "swept_us": exact}
    name = f"trial {trial.ordinal}"
    for row, value in whole.items():
        if abs(value - exact[row]) > SWEPT_US:
            found.doubts.append(f"{name}: {row} is {value} us, a sweep finds {exact[row]} us")
    rows = [(row, f"{value:.3f}", f"{exact[row]:.3f}", "") for row, value in whole.items()]
    if find_spec("hta") is not None:
        told = answers(Path(sys.executable), [path])
        theirs = numbers["hta_us"] = hta(told, 0)
        cut = swept(cut_to_us(kept_by_hta(every, events)))
        rows = [(*line[:3], f"{theirs[line[0]]:.0f}" if line[0] in theirs else "") for line in rows]
        found.doubts += _unexplained(name, theirs, cut, len(every))
    about = f"Device work of {name} over the whole trace, microseconds"
    headings = ("part", "cclsearch", "a sweep over the file", "HTA")
    found.tables.append(Grid(about=about, headings=headings, rows=rows))
    return numbers


def _unexplained(name, theirs, cut, kernel_count: int) -> Iterator[str]:
    """Differences to HTA beyond what it rounds away: up to a microsecond for each kernel."""
    for row, value in theirs.items():
        rest_us = value - cut[row]
        if abs(rest_us) > EXPLAINED_US + kernel_count:
            yield f"{name}: HTA's {row} differs by {rest_us:.0f} us, more than by rounding"
