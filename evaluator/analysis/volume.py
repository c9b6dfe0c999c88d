"""How many bytes ranks hand to collectives and transfers in a step, by kind and group."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluator.analysis.calls import Calls
from evaluator.analysis.matching import Matches
from evaluator.traces.collectives import CollectiveKind, Group
from evaluator.traces.job import TraceSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What is communicated in a step, at the mean over steps.

    `bytes` adds up S of nccl-tests, each rank's own buffers; it is None where `untold_count` calls
    (in all steps) do not tell their size. A barrier has none to tell.
    """

    call_count: float
    bytes: float | None
    untold_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTraffic:
    """One kind of collective in one group: of one of its traced ranks at the mean, and of all."""

    kind: CollectiveKind
    group: Group
    rank_count: int
    """Traced ranks that take part."""
    per_rank: Traffic
    traced_ranks: Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """Communication of the steps that all traced ranks profiled.

    Receives are in `groups` only: in sums, a message counts where it is sent.
    """

    step_count: int
    groups: tuple[GroupTraffic, ...]
    by_rank: tuple[tuple[int, Traffic], ...]
    traced_ranks: Traffic


def volume(traces: TraceSet, matches: Matches) -> Volume | None:
    """Communication per step, matched or not; None where ranks have no marked step in common."""
    steps = traces.common_steps
    if not steps.size:
        return None
    calls = matches.calls
    calls = calls.kept(np.isin(calls.step, steps))
    counted = ~calls.doing(CollectiveKind.RECV)
    return Volume(
        step_count=int(steps.size),
        groups=_groups(calls, steps.size),
        by_rank=tuple(
            (trace.rank, _traffic(calls, counted & (calls.rank == place), steps.size))
            for place, trace in enumerate(traces.ranks)
        ),
        traced_ranks=_traffic(calls, counted, steps.size),
    )


def _groups(calls: Calls, step_count: int) -> tuple[GroupTraffic, ...]:
    code = calls.kind.astype(np.int64) * len(calls.groups.groups) + calls.group_id
    order = np.argsort(code, kind="stable")
    opens = np.flatnonzero(np.diff(code[order])) + 1
    parts = np.split(order, opens) if order.size else []
    return tuple(_group(calls.kept(part), step_count) for part in parts)


def _group(calls: Calls, step_count: int) -> GroupTraffic:
    """Of calls of one kind and group."""
    rank_count = int(np.unique(calls.rank).size)
    everything = np.ones(calls.count, np.bool_)
    return GroupTraffic(
        kind=CollectiveKind(int(calls.kind[0])),
        group=calls.groups.groups[calls.group_id[0]],
        rank_count=rank_count,
        per_rank=_traffic(calls, everything, step_count * rank_count),
        traced_ranks=_traffic(calls, everything, step_count),
    )


def _traffic(calls: Calls, chosen: NDArray[np.bool_], divisor: int) -> Traffic:
    untold = chosen & (calls.bytes == 0) & ~calls.doing(CollectiveKind.BARRIER)
    untold_count = int(untold.sum())
    total = float(calls.bytes[chosen].sum(dtype=np.float64))
    return Traffic(
        call_count=int(chosen.sum()) / divisor,
        bytes=None if untold_count else total / divisor,
        untold_count=untold_count,
    )
