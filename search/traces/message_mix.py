"""Turn the collectives of a recorded job into a message mix that a study can exchange."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from evaluator.traces.analysis.collectives import Calls
from evaluator.traces.model import TRANSFERS, CollectiveKind
from records.errors import StudyError, shown
from records.workload import Message
from search.traces.open import OpenTraces
from search.views.format import format_decimal_bytes

_SINGLE: Final = (
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
)
"""Kinds that a study exchanges from one buffer to one buffer."""
_WHOLE: Final = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.BROADCAST,
    CollectiveKind.REDUCE,
    CollectiveKind.BARRIER,
)
"""Kinds whose message is the whole buffer of the trace; of others it is a rank's part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """The messages of a step as one rank makes them, and what of its step is not among them."""

    name: str
    rank: int
    rank_count: int
    step_count: int
    messages: tuple[Message, ...]
    left_out: tuple[str, ...]

    def toml(self) -> str:
        """The mix as a study file."""
        lines = [
            f"# The collectives of a step in {shown(self.name)}, of rank {self.rank} of "
            f"{self.rank_count}, over {self.step_count} step{'s' if self.step_count > 1 else ''}.",
            "# Number formats and reductions are unknown: sums of float32 are assumed.",
            *(f"# Left out of each step: {words}." for words in self.left_out),
            *("[launch]", 'recipe = "collectives"'),
        ]
        for message in self.messages:
            lines += ["", "[[message]]", f'collective = "{message.collective}"']
            if message.size_bytes:
                lines.append(f"size_bytes = {message.size_bytes}")
            lines.append(f"count = {message.count}")
        return "\n".join(lines) + "\n"


def mix_of(found: OpenTraces) -> Mix:
    """The mix of a traced job, in the order in which its first rank begins.

    Raises StudyError where no step is marked, or none of its collectives is among all ranks.
    """
    traces, matches = found.traces, found.matches
    steps = traces.common_steps
    if not steps.size:
        raise StudyError(
            f"{found.name}: no step is marked in all traces, so it is not known how often a step "
            "communicates; mark steps with the profiler's step()"
        )
    calls = matches.calls
    first = calls.select((calls.rank == 0) & np.isin(calls.step, steps))
    rank_count = traces.world_size
    if rank_count is None:  # that of the largest group
        rank_count = int(max(len(traces.ranks), *first.groups.size, 1))
    counted = _counted(first, rank_count)
    step_count = int(steps.size)
    messages = tuple(_messages(counted, step_count))
    left_out = tuple(_left_out(counted, step_count))
    if not messages:
        there = f"there are {'; '.join(left_out[:3])}" if left_out else "there are none at all"
        raise StudyError(
            f"{found.name}: nothing to exchange, because rank {traces.ranks[0].rank} takes part in "
            f"no collective of all {rank_count} ranks whose size is known: in each step {there}"
        )
    return Mix(
        name=found.name,
        rank=traces.ranks[0].rank,
        rank_count=rank_count,
        step_count=step_count,
        messages=messages,
        left_out=left_out,
    )


@dataclass(frozen=True, slots=True)
class _Kind:
    """Calls that are alike; `reason` says why they cannot be messages, if they cannot."""

    kind: CollectiveKind
    size_bytes: int
    reason: str = ""


def _counted(calls: Calls, rank_count: int) -> Counter[_Kind]:
    """How often each kind of call is made, by first occurrence."""
    return Counter(
        _kind(CollectiveKind(kind), whole_bytes, group_size, rank_count)
        for kind, whole_bytes, group_size in zip(
            calls.kind.tolist(),
            calls.bytes.tolist(),
            calls.groups.size[calls.group_id].tolist(),
            strict=True,
        )
    )


def _kind(kind: CollectiveKind, whole_bytes: int, group_size: int, rank_count: int) -> _Kind:
    if kind in TRANSFERS:
        return _Kind(kind, 0, "between two ranks")
    if kind not in (*_SINGLE, *_WHOLE, CollectiveKind.GATHER, CollectiveKind.SCATTER):
        return _Kind(kind, 0, "of an unknown kind")
    if group_size != rank_count:
        of = f"of {group_size} of {rank_count} ranks" if group_size else "of unknown ranks"
        return _Kind(kind, whole_bytes, of)
    if kind is CollectiveKind.BARRIER:
        return _Kind(kind, 0)
    if not whole_bytes:
        return _Kind(kind, 0, "of unknown size")
    return _Kind(kind, whole_bytes if kind in _WHOLE else max(1, whole_bytes // rank_count))


def _messages(counted: Counter[_Kind], step_count: int) -> Iterator[Message]:
    for alike, count in counted.items():
        per_step = round(count / step_count)
        if per_step and not alike.reason:
            name = alike.kind.name.lower() + ("_single" if alike.kind in _SINGLE else "")
            yield Message(
                collective=name,  # type: ignore[arg-type]  # one of the names
                size_bytes=alike.size_bytes,
                count=per_step,
            )


def _left_out(counted: Counter[_Kind], step_count: int) -> Iterator[str]:
    for alike, count in counted.items():
        reason = alike.reason
        if not reason and not round(count / step_count):
            reason = "rarer than every other step"
        if reason:
            what = alike.kind.name.lower()
            of_size = f" of {format_decimal_bytes(alike.size_bytes)}" if alike.size_bytes else ""
            yield f"{count / step_count:.4g} {what}{of_size} {reason}"
