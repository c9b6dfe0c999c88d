"""Whom ranks wait for, and how unequally they compute.

A rank that comes last to a collective is in it for the shortest time; what the others take longer
they wait for it. Only waiting inside collectives is seen, and only by ranks that left a trace.
"""

from typing import Final

from evaluator.analysis.matching import Matches
from evaluator.analysis.stragglers import imbalance, stragglers
from evaluator.metrics.base import Absent, Evidence, Formula, Source
from evaluator.traces.collectives import SYNCHRONISING

_TRACES: Final[frozenset[Source]] = frozenset({"kineto", "xla", "nsys"})


def _straggler(evidence: Evidence) -> float | Absent:
    if evidence.traces is None or evidence.matches is None:
        return Absent("nothing was profiled")
    if len(evidence.traces.ranks) < 2:
        return Absent("one rank was traced, and who waits for whom takes two")
    found = stragglers(evidence.traces, evidence.matches)
    if found is None:
        return Absent(_why_none(evidence.matches))
    if found.partial_count == found.collective_count:
        return Absent(
            "no collective is in the traces of all ranks of its group, so that ranks may wait for "
            "one that left no trace"
        )
    return found.exposed_share


def _why_none(matches: Matches) -> str:
    if not matches.calls.doing(*SYNCHRONISING).any():
        return "no collective ran that all ranks of a group must attend"
    alone = "none is in the traces of two ranks, in steps that all of them show"
    words = matches.unmatched_words(*SYNCHRONISING) or alone
    return f"no collective could be matched over two ranks ({words})"


def _load_imbalance_ratio(evidence: Evidence) -> float | Absent:
    if evidence.traces is None:
        return Absent("nothing was profiled")
    if len(evidence.traces.ranks) < 2:
        return Absent("one rank was traced, and a comparison takes two")
    if evidence.split is None:
        return Absent("no step was profiled on every traced rank")
    found = imbalance(evidence.split)
    return Absent("a rank computes nothing") if found is None else found.max_over_min


straggler = Formula(
    name="straggler",
    label="Waiting for the straggler",
    unit="fraction",
    better="lower",
    sources=_TRACES,
    description=(
        "Share of their step time that the other ranks spend waiting inside collectives, with "
        "nothing to compute, for the rank they wait for most: the part of a collective beyond its "
        "least duration over ranks, where that is the straggler's. Which rank it is: cclsearch "
        "trace stragglers."
    ),
    formula=_straggler,
    differs=(
        "Theirs is (max - min) / max over ranks of summed communication time, in which a rank "
        "that makes others wait has the least; it names no rank."
    ),
)

load_imbalance_ratio = Formula(
    name="load_imbalance_ratio",
    label="Compute imbalance",
    unit="ratio",
    better="lower",
    sources=_TRACES,
    description=(
        "Most compute time of a rank over the least, over the steps that all traced ranks show: "
        "max |compute| / min |compute|. 1 is balanced; stages of a pipeline differ by design."
    ),
    formula=_load_imbalance_ratio,
    differs=(
        "Theirs counts communication as work, in which all wait for the slowest, so that it is "
        "near 1 whatever ranks compute; and it looks at the whole trace."
    ),
)
