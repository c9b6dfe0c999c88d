"""Why a launch took as long as it did, put together from what the analyses of its traces say."""

from evaluator.analysis.breakdown import JobSplit
from evaluator.analysis.exposure import Exposure, exposures
from evaluator.analysis.stragglers import imbalance, stragglers
from evaluator.metrics.base import Evidence
from records.diagnosis import CollectiveTime, Diagnosis

COLLECTIVES_KEPT = 6


def diagnose(evidence: Evidence) -> Diagnosis | None:
    """Explain a launch; None where no step was profiled on every traced rank."""
    traces, split, matches, traffic = (
        evidence.traces,
        evidence.split,
        evidence.matches,
        evidence.volume,
    )
    if traces is None or split is None or matches is None or traffic is None:
        return None
    uneven, waits = imbalance(split), stragglers(traces, matches)
    straggler = waits.straggler if waits is not None else None
    ranks_per_node = evidence.environment.ranks_per_node if evidence.environment else None
    return Diagnosis(
        compute_s=split.mean.compute_s,
        exposed_communication_s=split.mean.exposed_communication_s,
        hidden_communication_s=split.mean.hidden_communication_s,
        copy_s=split.mean.other_s,
        idle_s=split.mean.idle_s,
        pipeline_bubble_s=split.mean.pipeline_bubble_s,
        host_wait_s=_host_wait_s(evidence, split),
        collectives=tuple(
            _collective(found, ranks_per_node)
            for found in exposures(traces, matches, traffic)[:COLLECTIVES_KEPT]
        ),
        slowest_rank=uneven.busiest if uneven else None,
        slowest_over_mean=uneven.max_over_mean if uneven else None,
        straggler=straggler,
        straggler_share=waits.exposed_share if waits and straggler is not None else None,
        peak_memory_bytes=max(evidence.peak_memory_bytes, default=0) or None,
        memory_bytes=_limit_bytes(evidence),
    )


def _limit_bytes(evidence: Evidence) -> int | None:
    """What the peak may be; a host limits the pages that are mapped, the peak counts those used."""
    environment = evidence.environment
    if environment is None or environment.device == "cpu":
        return None
    return environment.memory_bytes


def _host_wait_s(evidence: Evidence, split: JobSplit) -> float | None:
    if evidence.idle is None:
        return None
    waited_ns: int = sum(sum(rank.host_wait_ns.tolist()) for rank in evidence.idle)
    return waited_ns / (len(evidence.idle) * len(split.step_numbers) * 10**9)


def _collective(found: Exposure, ranks_per_node: int | None) -> CollectiveTime:
    listed = [group.ranks for group in found.groups if group.ranks]
    crossing = None
    if ranks_per_node is not None and len(listed) == len(found.groups):
        crossing = any(
            ranks[0] // ranks_per_node != ranks[-1] // ranks_per_node for ranks in listed
        )
    return CollectiveTime(
        kind=found.kind.name.lower(),
        group_size=found.groups[0].size,
        ranks=min(listed, default=None),
        group_count=len(found.groups),
        crosses_nodes=crossing,
        call_count=found.call_count,
        bytes=found.bytes,
        exposed_s=found.exposed_s,
        hidden_s=found.hidden_s,
    )
