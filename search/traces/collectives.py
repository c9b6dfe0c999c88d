"""What traces tell of communication as rows of named cells, like `search.traces.tables`."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

import numpy as np

from evaluator.analysis.bandwidth import Bandwidths
from evaluator.analysis.breakdown import JobSplit
from evaluator.analysis.matching import Lack, Matches
from evaluator.analysis.stragglers import Stragglers
from evaluator.analysis.volume import Volume
from evaluator.traces.collectives import CollectiveKind
from evaluator.traces.job import TraceSet
from search.traces.tables import Columns, Row

GROUP_COLUMNS: Final[Columns] = {
    "group_id": "number of the group; groups of one name and other ranks are others",
    "group": "its name",
    "group_size": "how many ranks it has, where the traces tell",
    "group_ranks": "its ranks, where the traces tell",
}
_KIND_COLUMNS: Final[Columns] = {
    "kind": "all_reduce, all_gather, reduce_scatter, all_to_all, send, ...",
    **{name: GROUP_COLUMNS[name] for name in ("group_id", "group", "group_size")},
}
COLLECTIVE_COLUMNS: Final[Columns] = {
    "instance": "number of the collective; the same on all its ranks",
    "step": "number of the step; missing outside of all",
    **_KIND_COLUMNS,
    "bytes": "S of nccl-tests: the whole buffer",
    "shown_count": "traced ranks that show it",
    "partial": "whether ranks of the group left no trace",
    "time_s": "least duration over its ranks: the last to come waits for nobody",
    "longest_s": "greatest duration over its ranks",
    "wait_s": "what its ranks waited, added up",
    "last_rank": "rank with the least duration; missing where only one shows it",
    "algorithm_bytes_per_s": "S / time",
    "bus_bytes_per_s": "what each rank's link carried, as nccl-tests counts",
}
CALL_COLUMNS: Final[Columns] = {
    "rank": "number of the rank",
    "step": "number of the step; missing outside of all",
    "instance": "row of `collectives()`; missing where it is matched to none",
    "unmatched": "why it is matched to none",
    **_KIND_COLUMNS,
    "bytes": "S of nccl-tests as this rank tells it",
    "start_ns": "start on the aligned clock, as the trace counts",
    "duration_s": "duration on this rank, waiting for others included",
}
TRAFFIC_COLUMNS: Final[Columns] = {
    **_KIND_COLUMNS,
    "rank_count": "traced ranks that take part",
    "calls_per_step": "of one of these ranks, at the mean",
    "bytes_per_step": "of one of these ranks, at the mean; missing where a call does not tell",
    "untold_count": "calls of all steps that do not tell their size",
}
WAIT_COLUMNS: Final[Columns] = {
    "rank": "number of the rank",
    "collective_count": "matched collectives that all ranks must attend",
    "last_share": "share of them to which it came last",
    "chance_share": "what that would be by chance",
    "caused_wait_s": "what others waited for it, per step",
    "waited_s": "what it waited, per step",
    "latest_start_share": "share of them that it started last, by aligned clocks",
    "mean_lateness_s": "start after the first rank's start, by aligned clocks",
    "compute_s": "compute per step",
}


def group_rows(matches: Matches) -> list[Row]:
    """One row per group of ranks that communicate: `GROUP_COLUMNS`."""
    sizes = matches.calls.groups.size
    return [
        {
            "group_id": group_id,
            "group": group.name,
            "group_size": _told(sizes[group_id], 0),
            "group_ranks": None if group.ranks is None else list(group.ranks),
        }
        for group_id, group in enumerate(matches.groups)
    ]


def collective_rows(traces: TraceSet, matches: Matches, bandwidths: Bandwidths) -> list[Row]:
    """One row per matched collective or transfer: `COLLECTIVE_COLUMNS`."""
    start_ns, end_ns = matches.times_ns(traces)
    present, duration_ns = matches.present, end_ns - start_ns
    least_ns = np.where(present, duration_ns, np.iinfo(np.int64).max).min(axis=1, initial=2**62)
    waits_ns = np.where(present, duration_ns - least_ns[:, None], 0).sum(axis=1)
    longest_ns = np.where(present, duration_ns, 0).max(axis=1, initial=0)
    shown, complete = np.count_nonzero(present, axis=1), matches.complete
    last = np.where(present, duration_ns, np.iinfo(np.int64).max).argmin(axis=1)
    timed = {int(instance): place for place, instance in enumerate(bandwidths.instance)}
    return [
        {
            "instance": row,
            "step": _told(matches.step[row], -1),
            **_kind(matches, matches.kind[row], int(matches.group_id[row])),
            "bytes": _told(matches.bytes[row], 0),
            "shown_count": int(shown[row]),
            "partial": not complete[row],
            "time_s": int(least_ns[row]) / 1e9,
            "longest_s": int(longest_ns[row]) / 1e9,
            "wait_s": int(waits_ns[row]) / 1e9,
            "last_rank": matches.rank_numbers[last[row]] if shown[row] > 1 else None,
            **_speeds(bandwidths, timed.get(row)),
        }
        for row in range(matches.count)
    ]


def call_rows(traces: TraceSet, matches: Matches) -> list[Row]:
    """One row per rank and collective of it, matched or not: `CALL_COLUMNS`."""
    calls = matches.calls
    rows: list[Row] = []
    for place in range(calls.count):
        trace = traces.ranks[calls.rank[place]]
        own = int(calls.row[place])
        span = trace.collectives.span[own]
        start_ns, end_ns = int(trace.spans.start_ns[span]), int(trace.spans.end_ns[span])
        rows.append(
            {
                "rank": trace.rank,
                "step": _told(calls.step[place], -1),
                "instance": _told(matches.instance[place], -1),
                "unmatched": _why(matches.lack[place]),
                **_kind(matches, calls.kind[place], int(calls.group_id[place])),
                "bytes": _told(calls.bytes[place], 0),
                "start_ns": start_ns,
                "duration_s": (end_ns - start_ns) / 1e9,
            }
        )
    return rows


def traffic_rows(volume: Volume | None, matches: Matches) -> list[Row]:
    """One row per kind and group, the most bytes first: `TRAFFIC_COLUMNS`."""
    rows: list[Row] = [
        {
            **_kind(matches, each.kind, matches.groups.index(each.group)),
            "rank_count": each.rank_count,
            "calls_per_step": each.per_rank.call_count,
            "bytes_per_step": each.per_rank.bytes,
            "untold_count": each.per_rank.untold_count,
        }
        for each in sorted(
            volume.groups if volume else (), key=lambda each: -(each.per_rank.bytes or 0)
        )
    ]
    return rows


def wait_rows(waits: Stragglers | None, split: JobSplit | None) -> list[Row]:
    """One row per rank, none where nothing is matched on two ranks: `WAIT_COLUMNS`."""
    compute_s = {rank: mean.compute_s for rank, mean in split.by_rank} if split else {}
    return [
        {**asdict(each), "compute_s": compute_s.get(each.rank)}
        for each in (waits.ranks if waits else ())
    ]


def _kind(matches: Matches, kind: int, group_id: int) -> Row:
    return {
        "kind": CollectiveKind(int(kind)).name.lower(),
        "group_id": group_id,
        "group": matches.groups[group_id].name,
        "group_size": _told(matches.calls.groups.size[group_id], 0),
    }


def _why(lack: int) -> str | None:
    """Why a call is matched to none, in words that follow `a call`."""
    return None if lack == Lack.NOTHING else Lack(int(lack)).words


def _speeds(bandwidths: Bandwidths, place: int | None) -> Mapping[str, float | None]:
    if place is None:
        return {"algorithm_bytes_per_s": None, "bus_bytes_per_s": None}
    return {
        "algorithm_bytes_per_s": float(bandwidths.algorithm_bytes_per_s[place]),
        "bus_bytes_per_s": float(bandwidths.bus_bytes_per_s[place]),
    }


def _told(value: np.integer, untold: int) -> int | None:
    return None if value == untold else int(value)
