"""What traces tell as rows of named cells: the one shape behind JSON, data frames and text.

Times are seconds, sizes bytes, and shares of 0 to 1; what a trace does not tell is None. Each
table has its columns in a mapping from their names to what they hold.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Final, TypeAlias

from evaluator.analysis.breakdown import JobSplit, StepParts, StepSplit
from evaluator.analysis.idle import IdleCauses
from evaluator.analysis.kernels import KernelTable
from evaluator.analysis.launches import JobLaunches, stream_queues
from evaluator.traces.job import TraceSet
from evaluator.traces.steps import StepKind

Row: TypeAlias = dict[str, object]
Columns: TypeAlias = Mapping[str, str]

PART_COLUMNS: Final[Columns] = {
    "window_s": "length of the step on the device, the sum of the next five",
    "compute_s": "something computed",
    "exposed_communication_s": "communication while nothing computed",
    "exposed_copy_s": "copies beside neither compute nor communication",
    "fill_s": "fills (memset) beside nothing else",
    "idle_s": "nothing ran",
    "hidden_communication_s": "communication behind compute, within `compute_s`",
    "pipeline_bubble_s": "transfers alone kept the rank, within `exposed_communication_s`",
}
RANK_COLUMNS: Final[Columns] = {
    "rank": "number of the rank",
    "device": "name of its accelerator",
    "source": "profiler that wrote the trace: kineto, xla or nsys",
    "backend": "library that communicates",
    "step_count": "profiled steps",
    "span_count": "spans of the trace",
    "collective_count": "collectives and transfers",
    "clock_offset_s": "what was added to its clock to align it with the others",
}
STEP_COLUMNS: Final[Columns] = {
    "rank": "number of the rank",
    "step": "number of the step; missing where no step is marked",
    "kind": "plain, prefill or decode",
    **PART_COLUMNS,
}
BREAKDOWN_COLUMNS: Final[Columns] = {
    "rank": "number of the rank; missing in the last row, the mean over all ranks",
    **PART_COLUMNS,
}


def rank_rows(traces: TraceSet) -> list[Row]:
    """One row per rank: `RANK_COLUMNS`."""
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


def step_rows(traces: TraceSet, split: JobSplit | None) -> list[Row]:
    """One row per rank and step that all ranks profiled: `STEP_COLUMNS`."""
    if split is None:
        return []
    kinds = {
        (trace.rank, int(number)): StepKind(kind).name.lower()
        for trace in traces.ranks
        for number, kind in zip(trace.steps.number, trace.steps.kind, strict=True)
    }
    marked = bool(split.step_numbers)
    return [
        {
            "rank": parts.rank,
            "step": number if marked else None,
            "kind": kinds[parts.rank, number] if marked else None,
            **seconds,
        }
        for parts in split.parts
        for number, seconds in _steps(parts)
    ]


def _steps(parts: StepParts) -> Iterator[tuple[int, Row]]:
    columns = {
        "window_s": parts.window_ns,
        "compute_s": parts.compute_ns,
        "exposed_communication_s": parts.exposed_communication_ns,
        "exposed_copy_s": parts.exposed_copy_ns,
        "fill_s": parts.fill_ns,
        "idle_s": parts.idle_ns,
        "hidden_communication_s": parts.hidden_communication_ns,
        "pipeline_bubble_s": parts.pipeline_bubble_ns,
    }
    for index, number in enumerate(parts.number):
        yield (
            int(number),
            {
                name: None if column is None else int(column[index]) / 1e9
                for name, column in columns.items()
            },
        )


def breakdown_rows(split: JobSplit | None) -> list[Row]:
    """One row per rank, and one for their mean: `BREAKDOWN_COLUMNS`."""
    if split is None:
        return []
    means: list[tuple[int | None, StepSplit]] = [*split.by_rank, (None, split.mean)]
    return [
        {"rank": rank, **{name: getattr(mean, name) for name in PART_COLUMNS}}
        for rank, mean in means
    ]


KERNEL_COLUMNS: Final[Columns] = {
    "activity": "compute, communication, copy or fill",
    "name": "name of the kernel or operator",
    "count": "how often it ran, on all ranks",
    "total_s": "durations added up; of operators of a host without those that they call",
    "share": "of the total of all rows",
    "mean_s": "mean duration",
    "bytes": "bytes moved, where the trace tells",
    "bytes_per_s": "bytes over the duration of the spans that tell theirs",
}
LAUNCH_COLUMNS: Final[Columns] = {
    "rank": "number of the rank; missing in the last row, all ranks together",
    "launch_count": "launches whose work is on record",
    "graph_launch_count": "launches that started several spans of work",
    "launches_per_step": "launches within marked steps, per step",
    "call_median_s": "time of a call, at the median",
    "call_total_s": "time of all calls",
    "delay_median_s": "from the start of a call to that of its first work, at the median",
    "delay_p90_s": "the same, at the 90th percentile",
    "early_share": "share of launches whose work starts before the call, by their clocks",
    "kernel_count": "kernels that compute or communicate",
    "short_kernel_share": "share of kernels shorter than 10 us",
}
QUEUE_COLUMNS: Final[Columns] = {
    "rank": "number of the rank",
    "stream": "stream of the device",
    "longest_count": "the most work that waited at once: launched and not started",
    "mean_count": "what waited on average while anything did",
}
IDLE_COLUMNS: Final[Columns] = {
    "rank": "number of the rank",
    "step": "number of the step; missing where no step is marked",
    "idle_s": "time without any work, the sum of the next four",
    "kernel_wait_s": "work was launched and had not started",
    "sync_s": "nothing was launched: the host waited for the device",
    "host_wait_s": "nothing was launched, for any other reason",
    "other_s": "before work whose launch is not told",
}


def kernel_rows(table: KernelTable) -> list[Row]:
    """One row per name and activity, the longest total first: `KERNEL_COLUMNS`."""
    return [
        {
            "activity": row.activity.name.lower(),
            "name": row.name,
            "count": row.count,
            "total_s": row.total_s,
            "share": row.share,
            "mean_s": row.mean_s,
            "bytes": row.bytes or None,
            "bytes_per_s": row.bytes_per_s,
        }
        for row in table.rows
    ]


def launch_rows(launches: JobLaunches | None) -> list[Row]:
    """One row per rank and one for all, none where no launch is told: `LAUNCH_COLUMNS`."""
    if launches is None:
        return []
    return [asdict(each) for each in (*launches.by_rank, launches.job)]


def queue_rows(traces: TraceSet) -> list[Row]:
    """One row per rank and stream on which work waited: `QUEUE_COLUMNS`."""
    return [
        {
            "rank": trace.rank,
            "stream": queue.lane.name or queue.lane.thread,
            "longest_count": queue.longest_count,
            "mean_count": queue.mean_count,
        }
        for trace in traces.ranks
        for queue in stream_queues(trace)
    ]


def idle_rows(causes: Sequence[IdleCauses] | None, *, marked: bool) -> list[Row]:
    """One row per rank and step, none where no launch is told: `IDLE_COLUMNS`."""
    tables = [
        (
            each,
            {
                "idle_s": each.idle_ns,
                "kernel_wait_s": each.kernel_wait_ns,
                "sync_s": each.sync_ns,
                "host_wait_s": each.host_wait_ns,
                "other_s": each.other_ns,
            },
        )
        for each in causes or ()
    ]
    return [
        {
            "rank": each.rank,
            "step": int(number) if marked else None,
            **{name: int(column[index]) / 1e9 for name, column in columns.items()},
        }
        for each, columns in tables
        for index, number in enumerate(each.number)
    ]
