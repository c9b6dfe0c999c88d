"""Describe a diagnosis: its numbers in a few lines, and a summary in two sentences.

The first sentence says where the step time goes, the second what to do about it. Both follow from
measured numbers by the rules below.
"""

from collections.abc import Iterator

from records.expression import format_bytes
from records.trial import CollectiveTime, Diagnosis, Measured, Outcome
from search.views.format import format_duration, format_number, format_whole_percent

SHOWN_SHARE, SHOWN_RATIO = 0.01, 1.01
"""The least differences of ranks that have a line."""
NOTABLE_SHARE = 0.10
"""A part of the step that is worth a change."""
UNEVEN = 1.10
"""Compute of the slowest rank over the mean from which it counts as longer."""
WAITED_SHARE = 0.05
"""Extra compute of that rank, as a share of the step, from which the others wait for it."""
SMALL_BYTES, MANY_CALLS = 1 << 20, 16
"""At least this many calls below this size cost by their number, not their bytes."""
FULL, ROOMY = 0.90, 0.60
"""Shares of a rank's memory at which nothing more fits, and up to which much more does."""


def diagnosis_of(outcome: Outcome) -> Diagnosis | None:
    """What the traces of a trial said; None where it failed or none were read."""
    return outcome.diagnosis if isinstance(outcome, Measured) else None


def diagnosis_words(diagnosis: Diagnosis) -> str:
    """The two sentences."""
    return f"{_first(diagnosis)} {_second(diagnosis)}"


def diagnosis_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """The numbers, per profiled step."""
    parts = [
        ("compute", diagnosis.compute_s),
        ("exposed communication", diagnosis.exposed_communication_s),
        ("copies", diagnosis.copy_s),
        ("idle", diagnosis.idle_s),
        ("hidden communication", diagnosis.hidden_communication_s),
        ("pipeline bubble", diagnosis.pipeline_bubble_s),
        ("idle while the host was late", diagnosis.host_wait_s),
    ]
    times = (f"{name} {_time(part_s, diagnosis)}" for name, part_s in parts if part_s is not None)
    yield f"a profiled step takes {format_duration(diagnosis.step_s)}: {', '.join(times)}"
    for one in diagnosis.collectives:
        size = f" with {format_bytes(round(one.bytes))} in all" if one.bytes else ""
        calls = f"{format_number(one.call_count)} call{'s' if one.call_count != 1 else ''}{size}"
        yield (
            f"{_name(one)}: {calls} per rank, exposed {_time(one.exposed_s, diagnosis)}, "
            f"hidden {_time(one.hidden_s, diagnosis)}"
        )
    if diagnosis.slowest_over_mean is not None and diagnosis.slowest_over_mean >= SHOWN_RATIO:
        yield (
            f"rank {diagnosis.slowest_rank} computes longest, "
            f"{diagnosis.slowest_over_mean:.2f} times the mean of the ranks"
        )
    if diagnosis.straggler_share is not None and diagnosis.straggler_share >= SHOWN_SHARE:
        yield (
            f"the others wait for rank {diagnosis.straggler} in "
            f"{format_whole_percent(diagnosis.straggler_share)} of their step"
        )
    if diagnosis.peak_memory_bytes is not None:
        yield f"memory peaks at {_memory(diagnosis)}"


def _first(diagnosis: Diagnosis) -> str:
    """Where the step goes."""
    if diagnosis.step_s <= 0:
        return "Nothing ran in the profiled steps."
    name, lost_s = _largest_loss(diagnosis)
    compute, lost = _share(diagnosis.compute_s, diagnosis), _share(lost_s, diagnosis)
    if lost_s < NOTABLE_SHARE * diagnosis.step_s:
        return f"{compute} of the step is compute, and no other part takes a tenth of it."
    detail = _detail(diagnosis) if name == "exposed communication" else ""
    if lost_s >= diagnosis.compute_s:
        return f"{lost} of the step is {name}{detail}, against {compute} compute."
    return f"{compute} of the step is compute, and the largest loss is {name} ({lost}){detail}."


def _second(diagnosis: Diagnosis) -> str:
    """What follows from it."""
    if diagnosis.step_s <= 0:
        return "Look at what its ranks wrote before drawing a conclusion."
    name, lost_s = _largest_loss(diagnosis)
    if lost_s < NOTABLE_SHARE * diagnosis.step_s:
        return _on_compute(diagnosis)
    match name:
        case "exposed communication":
            return _on_communication(diagnosis)
        case "idle time":
            return _on_idle(diagnosis)
        case _:
            return (
                "Look for tensors that are moved between host and device, such as offloaded ones, "
                "and keep them in place or overlap the copies with compute."
            )


def _largest_loss(diagnosis: Diagnosis) -> tuple[str, float]:
    losses = (
        ("exposed communication", diagnosis.exposed_communication_s),
        ("idle time", diagnosis.idle_s),
        ("copies", diagnosis.copy_s),
    )
    return max(losses, key=lambda loss: loss[1])


def _on_communication(diagnosis: Diagnosis) -> str:
    waiting = _on_waiting(diagnosis)
    if waiting is not None:
        return waiting
    top = _top(diagnosis)
    if top is None:
        return "The trace does not show which collective it is, so compare trials by this share."
    if top.crosses_nodes:
        return (
            f"The {top.kind} crosses nodes, so keep its ranks within one, or send less or less "
            "often between nodes."
        )
    if top.bytes and top.call_count >= MANY_CALLS and top.bytes < SMALL_BYTES * top.call_count:
        each = format_bytes(round(top.bytes / top.call_count))
        return (
            f"It is {format_number(top.call_count)} calls of {each} each, so fewer and larger ones "
            "(larger buckets or micro batches) would cost less."
        )
    return _on_overlap(diagnosis, top)


def _on_waiting(diagnosis: Diagnosis) -> str | None:
    """What to do about ranks that wait for another; None where that is not what costs."""
    over = diagnosis.slowest_over_mean or 1.0
    excess_s = (over - 1) * diagnosis.compute_s
    if over >= UNEVEN and excess_s >= WAITED_SHARE * diagnosis.step_s:
        return (
            f"Rank {diagnosis.slowest_rank} computes {format_whole_percent(over - 1)} longer than "
            "the mean, so the others wait for it: balance the work, or see what slows it, before "
            "making communication faster."
        )
    if _is_bubble(diagnosis):
        return (
            "Stages wait for each other, so use more and smaller micro batches, interleave the "
            "schedule or take fewer stages."
        )
    if diagnosis.straggler_share is not None and diagnosis.straggler_share >= NOTABLE_SHARE:
        return (
            f"The others wait for rank {diagnosis.straggler} in "
            f"{format_whole_percent(diagnosis.straggler_share)} of their step although it computes "
            "about as long, so look at what else delays it."
        )
    return None


def _on_overlap(diagnosis: Diagnosis, top: CollectiveTime) -> str:
    if diagnosis.compute_s > top.exposed_s > top.hidden_s:
        hidden = format_whole_percent(top.hidden_s / top.total_s)
        return (
            f"Only {hidden} of the {top.kind} overlaps with compute, so start it earlier or in "
            "smaller parts, or share over fewer ranks to send less."
        )
    return (
        f"There is too little compute to hide the {top.kind}, so send less: share over fewer "
        "ranks, reduce less often or give each rank more work."
    )


def _on_idle(diagnosis: Diagnosis) -> str:
    if diagnosis.host_wait_s is not None and diagnosis.host_wait_s >= diagnosis.idle_s / 2:
        return (
            "The host hands work over too slowly, so give the device fewer and larger pieces "
            "(larger micro batches, fused or compiled kernels) or the host more cores."
        )
    return (
        "The traces do not blame the host alone, so see what runs around the gaps and whether "
        "stages or ranks wait for each other."
    )


def _on_compute(diagnosis: Diagnosis) -> str:
    peak, limit = diagnosis.peak_memory_bytes, diagnosis.memory_bytes
    if peak is None or limit is None:
        return "Only less or faster compute helps now: less recomputation or larger micro batches."
    words = f"Memory peaks at {_memory(diagnosis)}"
    if peak >= FULL * limit:
        return f"{words}, so compute that costs memory to avoid has to stay."
    if peak <= ROOMY * limit:
        return f"{words}, so there is room for larger micro batches or less recomputation."
    return f"{words}, which leaves a little for larger micro batches or less recomputation."


def _detail(diagnosis: Diagnosis) -> str:
    """What most of the exposed communication is."""
    bubble_s, top = diagnosis.pipeline_bubble_s, _top(diagnosis)
    if bubble_s is not None and _is_bubble(diagnosis):
        return f", mostly waiting for and receiving from neighbours ({_share(bubble_s, diagnosis)})"
    if top is None:
        return ""
    mostly = "mostly" if top.exposed_s >= diagnosis.exposed_communication_s / 2 else "most in"
    return f", {mostly} {_short_name(top)} ({_share(top.exposed_s, diagnosis)})"


def _is_bubble(diagnosis: Diagnosis) -> bool:
    bubble_s = diagnosis.pipeline_bubble_s
    return bubble_s is not None and bubble_s >= diagnosis.exposed_communication_s / 2


def _top(diagnosis: Diagnosis) -> CollectiveTime | None:
    return diagnosis.collectives[0] if diagnosis.collectives else None


def _short_name(one: CollectiveTime) -> str:
    return one.kind if one.group_size is None else f"{one.kind} over {one.group_size} ranks"


def _name(one: CollectiveTime) -> str:
    """Kind and groups: `all_reduce over 2 ranks (ranks 0 4 and 3 more groups, across nodes)`."""
    details: list[str] = []
    if one.ranks is not None:
        others = one.group_count - 1
        more = f" and {others} more group{'s' if others > 1 else ''}" if others else ""
        details.append(_rank_words(one.ranks) + more)
    if one.crosses_nodes is not None:
        details.append("across nodes" if one.crosses_nodes else "within nodes")
    return _short_name(one) + (f" ({', '.join(details)})" if details else "")


def _rank_words(ranks: tuple[int, ...]) -> str:
    """`ranks 0 to 3`, `ranks 0, 2, 4 ... 14`."""
    if len(ranks) > 2 and ranks == tuple(range(ranks[0], ranks[0] + len(ranks))):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    shown = [*map(str, ranks)] if len(ranks) <= 4 else [*map(str, ranks[:3]), f"... {ranks[-1]}"]
    return f"ranks {' '.join(shown)}"


def _time(part_s: float, diagnosis: Diagnosis) -> str:
    return f"{format_duration(part_s)} ({_share(part_s, diagnosis)})" if part_s else "0 s"


def _share(part_s: float, diagnosis: Diagnosis) -> str:
    return format_whole_percent(part_s / diagnosis.step_s if diagnosis.step_s > 0 else 0.0)


def _memory(diagnosis: Diagnosis) -> str:
    peak = format_bytes(diagnosis.peak_memory_bytes or 0)
    limit = diagnosis.memory_bytes
    return peak if limit is None else f"{peak} of {format_bytes(limit)}"
