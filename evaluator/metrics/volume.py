"""How much ranks communicate in a step."""

from typing import Final

from evaluator.metrics.base import Absent, Evidence, Formula, Source

_TRACES: Final[frozenset[Source]] = frozenset({"kineto", "xla", "nsys"})
_NO_STEP: Final = Absent("no marked step was profiled on every traced rank")


def _communication_volume(evidence: Evidence) -> float | Absent:
    found = evidence.volume
    if found is None:
        return _NO_STEP
    total = found.traced_ranks
    if total.bytes is None:
        return Absent(
            f"{total.untold_count} of {round(total.call_count * found.step_count)} collectives do "
            "not tell their size"
        )
    return total.bytes / len(found.by_rank)


def _collective_count(evidence: Evidence) -> float | Absent:
    found = evidence.volume
    return _NO_STEP if found is None else found.traced_ranks.call_count / len(found.by_rank)


communication_volume = Formula(
    name="communication_volume",
    label="Communication volume",
    unit="bytes",
    better="lower",
    sources=_TRACES,
    description=(
        "Bytes of the buffers that a rank hands to collectives and sends in a step, mean over "
        "traced ranks; S as in nccl-tests, of an all-gather the gathered buffer."
    ),
    formula=_communication_volume,
    differs="Their collective_vol_total_gb adds up all steps of the first rank, in 2^30 bytes.",
)

collective_count = Formula(
    name="collective_count",
    label="Collectives",
    unit="collectives",
    better="lower",
    sources=_TRACES,
    description="Collectives and sends of a rank in a step, mean over traced ranks.",
    formula=_collective_count,
)
