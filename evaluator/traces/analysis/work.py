"""What ranks did in the profiled steps, whatever time it took: equal work has an equal digest."""

import json
from collections import Counter

import numpy as np

from evaluator.traces.analysis.breakdown import WORK
from evaluator.traces.analysis.collectives import Volume
from evaluator.traces.model import Activity, RankTrace, TraceSet
from records.study import digest


def work_digest(traces: TraceSet, traffic: Volume) -> str | None:
    """Identify kernels or operators by name and count, and collectives by kind, size and bytes.

    None where ranks have no step in common, or nothing computed in those steps.
    """
    by_rank = [_spans(trace, traces) for trace in traces.ranks]
    if not any(activity == Activity.COMPUTE for spans in by_rank for activity, _ in spans):
        return None
    collectives = Counter(
        (
            part.kind.name,
            part.group.size or 0,
            part.rank_count,
            part.traced_ranks.call_count,
            part.traced_ranks.bytes or 0,
        )
        for part in traffic.groups
    )
    document = [[sorted(spans.items()) for spans in by_rank], sorted(collectives.items())]
    return digest(json.dumps(document))


def _spans(trace: RankTrace, traces: TraceSet) -> Counter[tuple[int, str]]:
    """How often each kernel or operator of a rank starts in the steps that all ranks profiled."""
    spans, steps = trace.spans, trace.steps.among(traces.common_steps)
    inside = np.zeros(spans.start_ns.size, bool)
    for start_ns, end_ns in zip(steps.start_ns, steps.end_ns, strict=True):
        inside |= (spans.start_ns >= start_ns) & (spans.start_ns < end_ns)
    rows = np.flatnonzero(inside & spans.doing(*WORK))
    names = spans.names
    pairs = zip(spans.activity[rows].tolist(), spans.name_id[rows].tolist(), strict=True)
    return Counter((activity, names[name_id]) for activity, name_id in pairs)
