"""How profiled step time divides between compute, communication, copies and idling.

Each share is a ratio of sums over all traced ranks and the steps that all of them profiled, not a
mean of ratios (see `evaluator.analysis.breakdown` for why, and for the parts). Times are unions of
intervals clipped to the step's window on the device, so nothing is counted twice: two collectives
at once are one time of communication. Where no rank marks steps, all of a rank's work is one
window. Origin: Table 3 of CCL-Bench for the names, the temporal breakdown of Holistic Trace
Analysis (Meta) and the GPU timeline of TraceLens (AMD) for the definitions.
"""

from collections.abc import Callable
from typing import Final

from evaluator.analysis.breakdown import StepSplit
from evaluator.metrics.base import Absent, Better, Evidence, Formula, Source

TRACES: Final[frozenset[Source]] = frozenset({"kineto", "xla", "nsys"})
UNTRACED: Final = Absent("nothing was profiled")
UNPROFILED: Final = Absent("no step was profiled on every traced rank")


def _ratio(
    part: Callable[[StepSplit], float],
    whole: Callable[[StepSplit], float] = lambda step: step.window_s,
    missing: str = "profiled steps take no time",
) -> Callable[[Evidence], float | Absent]:
    def formula(evidence: Evidence) -> float | Absent:
        if evidence.traces is None:
            return UNTRACED
        if evidence.split is None:
            return UNPROFILED
        whole_s = whole(evidence.split.mean)
        return part(evidence.split.mean) / whole_s if whole_s else Absent(missing)

    return formula


def fraction(
    name: str,
    label: str,
    better: Better,
    description: str,
    formula: Callable[[Evidence], float | Absent],
    *,
    sources: frozenset[Source] = TRACES,
    differs: str = "",
) -> Formula:
    """A metric from traces whose values are from 0 to 1."""
    return Formula(
        name=name,
        label=label,
        unit="fraction",
        better=better,
        sources=sources,
        description=description,
        formula=formula,
        differs=differs,
    )


def _exposed_s(evidence: Evidence) -> float | Absent:
    if evidence.traces is None:
        return UNTRACED
    if evidence.split is None:
        return UNPROFILED
    if not evidence.split.step_numbers:
        return Absent("no step is marked, so no time is one per step")
    return evidence.split.mean.exposed_communication_s


def _bubble(evidence: Evidence) -> float | Absent:
    if evidence.split is not None and evidence.split.mean.pipeline_bubble_s is None:
        return Absent("no rank is known to send to another or receive from one")
    return _share_of_bubble(evidence)


def _copies(evidence: Evidence) -> float | Absent:
    if evidence.traces is not None and not any(rank.on_device for rank in evidence.traces.ranks):
        return Absent("the work ran on the host, which copies nothing to a device")
    return _share_of_copies(evidence)


_share_of_bubble: Final = _ratio(lambda step: step.pipeline_bubble_s or 0.0)
_share_of_copies: Final = _ratio(lambda step: step.exposed_copy_s)

communication_fraction = fraction(
    "communication_fraction",
    "Communication share",
    "lower",
    "Time with at least one collective under way, over step time: |comm| / |window|.",
    _ratio(lambda step: step.communication_s),
    differs="The published metric divides summed kernel durations: kernels that overlap count "
    "twice, those at the border of a step count whole, and its names take ATen's broadcast kernels "
    "for communication and miss all-to-all. Its denominator is kernel time, ours is step time.",
)

exposed_communication_fraction = fraction(
    "exposed_communication_fraction",
    "Exposed communication share",
    "lower",
    "Time in communication while nothing computes, over step time: |comm - compute| / |window|.",
    _ratio(lambda step: step.exposed_communication_s),
)

total_communication_time = Formula(
    name="total_communication_time",
    label="Exposed communication",
    unit="s",
    better="lower",
    sources=TRACES,
    description="Time in communication while nothing computes, |comm - compute|, per step; mean "
    "over steps and ranks.",
    formula=_exposed_s,
    differs="The paper subtracts what compute hides, its code does not; from Nsight Systems it "
    "sums all devices over the whole trace instead of one step.",
)

compute_comm_overlap = fraction(
    "compute_comm_overlap",
    "Overlap",
    "higher",
    "Share of communication hidden behind compute, |comm and compute| / |comm|; "
    "no answer without communication.",
    _ratio(
        lambda step: step.hidden_communication_s,
        lambda step: step.communication_s,
        "nothing communicates in the profiled steps",
    ),
    differs="The published metric clips kernels to the steps of the host, which the device lags "
    "behind, and takes the mean over ranks that communicate; ours clips to the steps of the "
    "device and sums over all ranks before it divides.",
)

compute_fraction = fraction(
    "compute_fraction",
    "Compute share",
    "higher",
    "Time in which something computes, over step time: |compute| / |window|.",
    _ratio(lambda step: step.compute_s),
)

idle_fraction = fraction(
    "idle_fraction",
    "Idle share",
    "lower",
    "Time with neither compute, communication, copies nor fills, over step time: "
    "1 - |compute or comm or copies or fills| / |window|.",
    _ratio(lambda step: step.idle_s),
)

pipeline_bubble_fraction = fraction(
    "pipeline_bubble_fraction",
    "Pipeline bubble",
    "lower",
    "Time in which a rank only waits for a neighbour or receives from it, over step time: "
    "|transfers - compute - collectives| / |window|, transfers being sends and receives; a part of "
    "exposed communication. Rings of context parallelism transfer too, and count.",
    _bubble,
)

memory_transfer_overhead = fraction(
    "memory_transfer_overhead",
    "Exposed copies",
    "lower",
    "Time in copies while neither compute nor communication runs, over step time: "
    "|copies - compute - comm| / |window|; fills are no copies.",
    _copies,
    differs="From Kineto the published metric never counts real copies (category gpu_memcpy) but "
    "does count kernels whose name says copy; its denominator is the span of kernels.",
)
