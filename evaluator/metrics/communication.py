"""How profiled step time divides between compute, communication and idling.

Each metric is a ratio of sums over all traced ranks and the steps that all of them profiled.
Times are unions of intervals clipped to the step window, so nothing is counted twice: two
collectives at once are one time of communication. Definitions of the parts follow the temporal
breakdown of Holistic Trace Analysis (Meta) and the GPU timeline of TraceLens (AMD), with the step
window in place of the whole trace.
"""

from collections.abc import Callable

from evaluator.metrics.base import Better, Evidence, Formula
from evaluator.metrics.breakdown import StepSplit


def _ratio(
    part: Callable[[StepSplit], float], whole: Callable[[StepSplit], float]
) -> Callable[[Evidence], float | None]:
    def formula(evidence: Evidence) -> float | None:
        if evidence.split is None:
            return None
        whole_s = whole(evidence.split.mean)
        return part(evidence.split.mean) / whole_s if whole_s else None

    return formula


def _fraction(
    name: str, better: Better, description: str, formula: Callable[[Evidence], float | None]
) -> Formula:
    return Formula(
        name=name,
        unit="fraction",
        better=better,
        version=1,
        description=description,
        formula=formula,
    )


def _exposed_s(evidence: Evidence) -> float | None:
    return evidence.split.mean.exposed_communication_s if evidence.split else None


communication_fraction = _fraction(
    "communication_fraction",
    "lower",
    "Time with at least one collective under way, over step time: |comm| / |window|.",
    _ratio(lambda step: step.communication_s, lambda step: step.window_s),
)

exposed_communication_fraction = _fraction(
    "exposed_communication_fraction",
    "lower",
    "Time in communication while nothing computes, over step time: |comm - compute| / |window|.",
    _ratio(lambda step: step.exposed_communication_s, lambda step: step.window_s),
)

overlap_fraction = _fraction(
    "overlap_fraction",
    "higher",
    "Share of communication hidden behind compute, |comm and compute| / |comm|; "
    "no answer without communication.",
    _ratio(lambda step: step.hidden_communication_s, lambda step: step.communication_s),
)

compute_fraction = _fraction(
    "compute_fraction",
    "higher",
    "Time in which something computes, over step time: |compute| / |window|.",
    _ratio(lambda step: step.compute_s, lambda step: step.window_s),
)

idle_fraction = _fraction(
    "idle_fraction",
    "lower",
    "Time with neither compute, communication, copies nor fills, over step time.",
    _ratio(lambda step: step.idle_s, lambda step: step.window_s),
)

exposed_communication = Formula(
    name="exposed_communication",
    unit="s",
    better="lower",
    version=1,
    description="Time in communication while nothing computes, per step, mean over ranks.",
    formula=_exposed_s,
)
