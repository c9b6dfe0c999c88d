"""What the step would gain from another machine: U = (T - T') / T of a replay of the trace.

T is the step of the unchanged replay, which must agree with the measured one within 1 % on every
step and rank, and T' that of a replay with one thing changed. cclsearch trace whatif shows how
certain a value is, and what the change can save at most.
"""

from evaluator.metrics.base import KERNEL_TRACES, UNTRACED, Absent, Evidence, metric_of
from evaluator.whatif.links import Tier
from evaluator.whatif.questions import Question, Unanswered, WhatIf


@metric_of("Utility of faster links", "fraction", "higher", KERNEL_TRACES)
def utility_communication(evidence: Evidence) -> float | Absent:
    """Share of the step that all links of twice the bandwidth would save, by a replay."""
    return _utility(evidence, Question(bandwidth={"communication": 2.0}))


@metric_of("Utility of scale-up bandwidth", "fraction", "higher", KERNEL_TRACES)
def utility_scale_up_bandwidth(evidence: Evidence) -> float | Absent:
    """Share of the step that twice the bandwidth within nodes would save, by a replay.

    Theirs simulates the whole trace as one chain in which communication never overlaps with
    compute, with the bandwidths of a card, and compares that with nothing measured.
    """
    return _tier_utility(evidence, "scale_up", Tier.SCALE_UP)


@metric_of("Utility of scale-out bandwidth", "fraction", "higher", KERNEL_TRACES)
def utility_scale_out_bandwidth(evidence: Evidence) -> float | Absent:
    """Share of the step that twice the bandwidth between nodes would save, by a replay.

    Theirs leaves the second dimension of a network without an algorithm, so that it changes
    nothing.
    """
    return _tier_utility(evidence, "scale_out", Tier.SCALE_OUT)


@metric_of("Utility of a larger scale-up domain", "fraction", "higher", KERNEL_TRACES)
def utility_scale_up_domain(evidence: Evidence) -> float | Absent:
    """Share of the step that nodes of twice as many ranks would save, by a replay: groups that then
    fit a node take the latency and bandwidth of the links within it.
    """
    found = _replayed(evidence)
    if isinstance(found, Absent):
        return found
    if found.ranks_per_node is None:
        return _NO_NODES
    if Tier.SCALE_OUT not in found.links.fitted:
        return Absent("no matched collective crosses nodes")
    return _answer(found, Question(ranks_per_node=2 * found.ranks_per_node))


@metric_of("Utility of faster kernels", "fraction", "higher", KERNEL_TRACES)
def utility_compute(evidence: Evidence) -> float | Absent:
    """Share of the step that compute kernels of half the duration would save, by a replay."""
    return _utility(evidence, Question(kernels={"compute": 2.0}))


@metric_of("Utility of no straggler", "fraction", "higher", KERNEL_TRACES)
def utility_no_straggler(evidence: Evidence) -> float | Absent:
    """Share of the step that would be saved if each kernel took as long as on the median rank, by a
    replay. Ranks that run other kernels, as stages of a pipeline do, are not compared.
    """
    found = _replayed(evidence)
    if isinstance(found, Absent):
        return found
    if len(found.traces.ranks) < 2:
        return Absent("one rank was traced, and a comparison takes two")
    return _answer(found, Question(no_straggler=True))


_NO_NODES = Absent("how many ranks a node holds is unknown")


def _tier_utility(evidence: Evidence, name: str, tier: Tier) -> float | Absent:
    found = _replayed(evidence)
    if isinstance(found, Absent):
        return found
    if found.ranks_per_node is None:
        return _NO_NODES
    if tier not in found.links.fitted:
        where = "crosses nodes" if tier is Tier.SCALE_OUT else "stays within a node"
        return Absent(f"no matched collective {where}")
    return _answer(found, Question(bandwidth={name: 2.0}))


def _utility(evidence: Evidence, question: Question) -> float | Absent:
    found = _replayed(evidence)
    return found if isinstance(found, Absent) else _answer(found, question)


def _replayed(evidence: Evidence) -> WhatIf | Absent:
    found = evidence.whatif
    if found is None:
        return UNTRACED
    return Absent(f"no replay: {found.reason}") if isinstance(found, Unanswered) else found


def _answer(found: WhatIf, question: Question) -> float | Absent:
    answer = found.answer(question)
    return Absent(answer.reason) if isinstance(answer, Unanswered) else answer.utility
