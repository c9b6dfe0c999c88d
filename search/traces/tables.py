"""Trace data as rows of named cells: the one shape behind JSON, data frames and text.

Times are in seconds, sizes in bytes, shares from 0 to 1; None is what a trace does not hold.
Each table has its columns in a mapping from their names to their descriptions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Final, TypeAlias

import numpy as np

from evaluator.metrics.registry import measure_all, metric, metric_names
from evaluator.traces.analysis.breakdown import StepParts, StepSplit
from evaluator.traces.analysis.collectives import Matches, NoMatch, bandwidths, extremes
from evaluator.traces.analysis.kernels import IdleCauses, KernelTable, stream_queues
from evaluator.traces.analysis.operators import AttributionRow, Phase
from evaluator.traces.model import CollectiveKind, StepKind
from search.traces.open import OpenTraces

Row: TypeAlias = dict[str, object]
Columns: TypeAlias = Mapping[str, str]

PART_COLUMNS: Final[Columns] = {
    "window_s": "length of the step on the device, the sum of the next five",
    "compute_s": "something computed",
    "exposed_communication_s": "communication while nothing computed",
    "exposed_copy_s": "copies while nothing computed or communicated",
    "fill_s": "fills (memset) while nothing else ran",
    "idle_s": "nothing ran",
    "hidden_communication_s": "communication behind compute, within `compute_s`",
    "pipeline_bubble_s": "transfers alone kept the rank, within `exposed_communication_s`",
}
GROUP_COLUMNS: Final[Columns] = {
    "group_id": "number of the group; groups of one name and other ranks are others",
    "group": "its name",
    "group_size": "how many ranks it has, where the traces say",
    "group_ranks": "its ranks, where the traces say",
}
_KIND_COLUMNS: Final[Columns] = {
    "kind": "all_reduce, all_gather, reduce_scatter, all_to_all, send, ...",
    **{name: GROUP_COLUMNS[name] for name in ("group_id", "group", "group_size")},
}
_ATTRIBUTION_COLUMNS: Final[Columns] = {
    "count": "how many kernels, copies and fills, or operators of a host, on all ranks",
    "total_s": "durations added up; of operators of a host without those that they call",
    "share": "of the total of all rows",
    **{f"{each.name.lower()}_s": f"of `total_s`: {each.name.lower()}" for each in Phase},
}
COLUMNS: Final[Mapping[str, Columns]] = {
    "ranks": {
        "rank": "number of the rank",
        "device": "name of its accelerator",
        "source": "profiler that wrote the trace: kineto, xla or nsys",
        "backend": "library that communicates",
        "step_count": "profiled steps",
        "span_count": "spans of the trace",
        "collective_count": "collectives and transfers",
        "clock_offset_s": "what was added to its clock to align it with the others",
    },
    "steps": {
        "rank": "number of the rank",
        "step": "number of the step; missing where no step is marked",
        "kind": "plain, prefill or decode",
        **PART_COLUMNS,
    },
    "breakdown": {
        "rank": "number of the rank; missing in the last row, the mean over all ranks",
        **PART_COLUMNS,
    },
    "idle": {
        "rank": "number of the rank",
        "step": "number of the step; missing where no step is marked",
        "idle_s": "time without any work, the sum of the next four",
        "kernel_wait_s": "work was launched and had not started",
        "sync_s": "nothing was launched: the host waited for the device",
        "host_wait_s": "nothing was launched, for any other reason",
        "other_s": "before work whose launch is not in the trace",
    },
    "kernels": {
        "activity": "compute, communication, copy or fill",
        "name": "name of the kernel or operator",
        "count": "how often it ran, on all ranks",
        "total_s": "durations added up; of operators of a host without those that they call",
        "share": "of the total of all rows",
        "mean_s": "mean duration",
        "bytes": "bytes moved, where the trace has them",
        "bytes_per_s": "bytes over the duration of the spans that have them",
    },
    "operators": {
        "name": "name of the innermost operator that launched or did the work; missing: none known",
        **_ATTRIBUTION_COLUMNS,
        "flops": "floating-point operations of matrix products, by the shapes of their operands",
        "flops_per_s": "arithmetic reached, in the time of those that have shapes",
        "bytes": "bytes read and written at least, by the shapes of the operands",
        "bytes_per_s": "bandwidth of memory reached at least",
        "bound": "what limits it at best: compute or memory, by the roofline of the device",
        "roofline_share": "least time by the roofline over the time taken",
    },
    "modules": {
        "name": "classes of the modules around the work, the outermost first; missing: none",
        **_ATTRIBUTION_COLUMNS,
    },
    "ranges": {
        "name": "ranges that the program named, the outermost first; missing: none",
        **_ATTRIBUTION_COLUMNS,
    },
    "phases": {
        "name": "forward, backward, recomputation or optimizer; missing: none known",
        **{name: _ATTRIBUTION_COLUMNS[name] for name in ("count", "total_s", "share")},
    },
    "launches": {
        "rank": "number of the rank; missing in the last row, all ranks together",
        "launch_count": "launches whose work is in the trace",
        "graph_launch_count": "launches that started several spans of work",
        "launches_per_step": "launches within marked steps, per step",
        "call_median_s": "time of a call, at the median",
        "call_total_s": "time of all calls",
        "delay_median_s": "from the start of a call to that of its first work, at the median",
        "delay_p90_s": "the same, at the 90th percentile",
        "early_share": "share of launches whose work starts before the call, by their clocks",
        "kernel_count": "kernels that compute or communicate",
        "short_kernel_share": "share of kernels shorter than 10 us",
    },
    "queues": {
        "rank": "number of the rank",
        "stream": "stream of the device",
        "longest_count": "the most work that waited at one time: launched and not started",
        "mean_count": "what waited on average while anything did",
    },
    "collectives": {
        "instance": "number of the collective; the same on all its ranks",
        "step": "number of the step; missing outside of all",
        **_KIND_COLUMNS,
        "bytes": "S of nccl-tests: the whole buffer",
        "shown_count": "traced ranks that show it",
        "partial": "whether ranks of the group left no trace",
        "time_s": "least duration over its ranks: the last to come waits for no other",
        "longest_s": "greatest duration over its ranks",
        "wait_s": "what its ranks waited, added up",
        "last_rank": "rank with the least duration; missing where only one shows it",
        "algorithm_bytes_per_s": "S / time",
        "bus_bytes_per_s": "what each rank's link carried, as nccl-tests counts",
    },
    "calls": {
        "rank": "number of the rank",
        "step": "number of the step; missing outside of all",
        "instance": "row of `collectives()`; missing where it is matched to none",
        "unmatched": "why it is matched to none",
        **_KIND_COLUMNS,
        "bytes": "S of nccl-tests, by this rank",
        "start_ns": "start on the aligned clock, as the trace counts",
        "duration_s": "duration on this rank, waiting for others included",
    },
    "groups": GROUP_COLUMNS,
    "traffic": {
        **_KIND_COLUMNS,
        "rank_count": "traced ranks that take part",
        "calls_per_step": "of one of these ranks, at the mean",
        "bytes_per_step": "of one of these ranks, at the mean; missing where a call has no size",
        "untold_count": "calls of all steps without a known size",
    },
    "stragglers": {
        "rank": "number of the rank",
        "collective_count": "matched collectives that all ranks must attend",
        "last_share": "share of them to which it came last",
        "chance_share": "what that would be by chance",
        "caused_wait_s": "what others waited for it, per step",
        "waited_s": "what it waited, per step",
        "latest_start_share": "share of them that it started last, by aligned clocks",
        "mean_lateness_s": "start after the first rank's start, by aligned clocks",
        "compute_s": "compute per step",
    },
    "metrics": {
        "name": "name of the metric",
        "label": "name for people",
        "value": "missing where there is none",
        "unit": "unit of the value",
        "better": "higher or lower",
        "version": "version of its definition",
        "absent": "why it has no value",
    },
}
"""The columns of each table of a trace."""


def table_rows(found: OpenTraces, table: str) -> list[Row]:
    """Return the rows of a table of these traces, each with the columns `COLUMNS[table]`."""
    return ROWS[table](found)


def _ranks(found: OpenTraces) -> list[Row]:
    traces = found.traces
    offsets_ns = traces.alignment.offsets_ns if traces.alignment else (None,) * len(traces.ranks)
    return [
        {
            "rank": trace.rank,
            "device": trace.device.name or None if trace.device else None,
            "source": trace.source,
            "backend": trace.backend,
            "step_count": trace.steps.count,
            "span_count": trace.spans.count,
            "collective_count": trace.collectives.count,
            "clock_offset_s": None if offset_ns is None else offset_ns / 1e9,
        }
        for trace, offset_ns in zip(traces.ranks, offsets_ns, strict=True)
    ]


def _steps(found: OpenTraces) -> list[Row]:
    split = found.evidence.split
    if split is None:
        return []
    kinds = {
        (trace.rank, int(number)): StepKind(kind).name.lower()
        for trace in found.traces.ranks
        for number, kind in zip(trace.steps.number, trace.steps.kind, strict=True)
    }
    marked = bool(split.step_numbers)
    return [
        {
            "rank": parts.rank,
            "step": int(number) if marked else None,
            "kind": kinds[parts.rank, int(number)] if marked else None,
            **_seconds(parts, PART_COLUMNS, index),
        }
        for parts in split.parts
        for index, number in enumerate(parts.number)
    ]


def _seconds(parts: StepParts | IdleCauses, names: Iterable[str], index: int) -> Row:
    """Row `index` of columns that `parts` holds in nanoseconds, None for a missing column."""
    columns = {name: getattr(parts, f"{name.removesuffix('_s')}_ns") for name in names}
    return {
        name: None if column is None else int(column[index]) / 1e9
        for name, column in columns.items()
    }


def _breakdown(found: OpenTraces) -> list[Row]:
    split = found.evidence.split
    if split is None:
        return []
    means: list[tuple[int | None, StepSplit]] = [*split.by_rank, (None, split.mean)]
    return [
        {"rank": rank, **{name: getattr(mean, name) for name in PART_COLUMNS}}
        for rank, mean in means
    ]


def kernel_rows(table: KernelTable) -> list[Row]:
    """Return a row per name and activity, the longest total first: `COLUMNS["kernels"]`."""
    return [
        {
            **{name: getattr(row, name) for name in COLUMNS["kernels"]},
            "activity": row.activity.name.lower(),
            "bytes": row.bytes or None,
        }
        for row in table.rows
    ]


def _attribution(found: OpenTraces, table: str) -> list[Row]:
    rows: Sequence[AttributionRow] = getattr(found.attribution, table, ())
    return [{name: _attribution_cell(row, name) for name in COLUMNS[table]} for row in rows]


def _attribution_cell(row: AttributionRow, column: str) -> object:
    phase = column.removesuffix("_s").upper()
    if phase in Phase.__members__:
        return row.phase_s[Phase[phase]]
    value = getattr(row, column)
    return None if column in {"flops", "bytes"} and not value else value


def _launches(found: OpenTraces) -> list[Row]:
    launches = found.evidence.launches
    return [asdict(each) for each in (*launches.by_rank, launches.job)] if launches else []


def _queues(found: OpenTraces) -> list[Row]:
    return [
        {
            "rank": trace.rank,
            "stream": queue.lane.name or queue.lane.thread,
            "longest_count": queue.longest_count,
            "mean_count": queue.mean_count,
        }
        for trace in found.traces.ranks
        for queue in stream_queues(trace)
    ]


def _idle(found: OpenTraces) -> list[Row]:
    names = [name for name in COLUMNS["idle"] if name.endswith("_s")]
    marked = bool(found.traces.common_steps.size)
    return [
        {
            "rank": each.rank,
            "step": int(number) if marked else None,
            **_seconds(each, names, index),
        }
        for each in found.evidence.idle or ()
        for index, number in enumerate(each.number)
    ]


def _groups(found: OpenTraces) -> list[Row]:
    sizes = found.matches.calls.groups.size
    return [
        {
            "group_id": group_id,
            "group": group.name,
            "group_size": _known(sizes[group_id], 0),
            "group_ranks": None if group.ranks is None else list(group.ranks),
        }
        for group_id, group in enumerate(found.matches.groups)
    ]


def _collectives(found: OpenTraces) -> list[Row]:
    traces, matches = found.traces, found.matches
    start_ns, end_ns = matches.times_ns(traces)
    matched = matches.instance >= 0
    instance, duration_ns = matches.instance[matched], (end_ns - start_ns)[matched]
    least_ns, longest_ns = extremes(instance, duration_ns, matches.count)
    shown, complete = matches.shown_count, matches.complete
    waits_ns = np.zeros(matches.count, np.int64)
    np.add.at(waits_ns, instance, duration_ns - least_ns[instance])
    last = np.zeros(matches.count, np.int64)
    shortest = np.flatnonzero(duration_ns == least_ns[instance])[::-1]
    last[instance[shortest]] = matches.calls.rank[matched][shortest]  # of equals the first rank
    rates = bandwidths(traces, matches)
    speeds = (rates.algorithm_bytes_per_s.tolist(), rates.bus_bytes_per_s.tolist())
    algorithm, bus = (dict(zip(rates.instance.tolist(), each, strict=True)) for each in speeds)
    return [
        {
            "instance": row,
            "step": _known(matches.step[row], -1),
            **_kind(matches, matches.kind[row], int(matches.group_id[row])),
            "bytes": _known(matches.bytes[row], 0),
            "shown_count": int(shown[row]),
            "partial": not complete[row],
            "time_s": int(least_ns[row]) / 1e9,
            "longest_s": int(longest_ns[row]) / 1e9,
            "wait_s": int(waits_ns[row]) / 1e9,
            "last_rank": matches.rank_numbers[last[row]] if shown[row] > 1 else None,
            "algorithm_bytes_per_s": algorithm.get(row),
            "bus_bytes_per_s": bus.get(row),
        }
        for row in range(matches.count)
    ]


def _calls(found: OpenTraces) -> list[Row]:
    traces, matches = found.traces, found.matches
    calls = matches.calls
    rows: list[Row] = []
    for place in range(calls.count):
        trace = traces.ranks[calls.rank[place]]
        lack, own = NoMatch(int(matches.lack[place])), int(calls.row[place])
        span = trace.collectives.span[own]
        start_ns, end_ns = int(trace.spans.start_ns[span]), int(trace.spans.end_ns[span])
        rows.append(
            {
                "rank": trace.rank,
                "step": _known(calls.step[place], -1),
                "instance": _known(matches.instance[place], -1),
                "unmatched": None if lack is NoMatch.NOTHING else lack.words,
                **_kind(matches, calls.kind[place], int(calls.group_id[place])),
                "bytes": _known(calls.bytes[place], 0),
                "start_ns": start_ns,
                "duration_s": (end_ns - start_ns) / 1e9,
            }
        )
    return rows


def _traffic(found: OpenTraces) -> list[Row]:
    """The groups with the most bytes first."""
    volume, matches = found.evidence.volume, found.matches
    groups = volume.groups if volume else ()
    return [
        {
            **_kind(matches, each.kind, matches.groups.index(each.group)),
            "rank_count": each.rank_count,
            "calls_per_step": each.per_rank.call_count,
            "bytes_per_step": each.per_rank.bytes,
            "untold_count": each.per_rank.untold_count,
        }
        for each in sorted(groups, key=lambda each: -(each.per_rank.bytes or 0))
    ]


def _stragglers(found: OpenTraces) -> list[Row]:
    split, waits = found.evidence.split, found.waits
    compute_s = {rank: mean.compute_s for rank, mean in split.by_rank} if split else {}
    return [
        {**asdict(each), "compute_s": compute_s.get(each.rank)}
        for each in (waits.ranks if waits else ())
    ]


def _metrics(found: OpenTraces) -> list[Row]:
    measures = measure_all(found.evidence)
    values = {value.name: value.value for value in measures.values}
    return [
        {
            **{column: getattr(metric(name), column, None) for column in COLUMNS["metrics"]},
            "value": values.get(name),
            "absent": measures.absent.get(name),
        }
        for name in metric_names()
    ]


def _kind(matches: Matches, kind: int, group_id: int) -> Row:
    return {
        "kind": CollectiveKind(int(kind)).name.lower(),
        "group_id": group_id,
        "group": matches.groups[group_id].name,
        "group_size": _known(matches.calls.groups.size[group_id], 0),
    }


def _known(value: np.integer, unknown: int) -> int | None:
    return None if value == unknown else int(value)


ROWS: Final[Mapping[str, Callable[[OpenTraces], list[Row]]]] = {
    "ranks": _ranks,
    "steps": _steps,
    "breakdown": _breakdown,
    "idle": _idle,
    "kernels": lambda found: kernel_rows(found.kernels.job),
    "operators": lambda found: _attribution(found, "operators"),
    "modules": lambda found: _attribution(found, "modules"),
    "ranges": lambda found: _attribution(found, "ranges"),
    "phases": lambda found: _attribution(found, "phases"),
    "launches": _launches,
    "queues": _queues,
    "collectives": _collectives,
    "calls": _calls,
    "groups": _groups,
    "traffic": _traffic,
    "stragglers": _stragglers,
    "metrics": _metrics,
}
