"""From the parts of a communication step to how long one call of each kind of message takes."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from evaluator.serving import Steps
from records.message import Message


def unmatched(ranks: Sequence[Steps], messages: Sequence[Message]) -> bool:
    """Whether steps differ in how many parts they have, or have others than one for each message.

    Steps of a single part match: nothing is known of what happens in them.
    """
    part_counts = {len(step) - 1 for steps in ranks for step in steps}
    return len(part_counts) > 1 or not part_counts <= {1, len(messages)}


def message_times_s(ranks: Sequence[Steps], messages: Sequence[Message]) -> tuple[float, ...]:
    """Seconds of each message over its calls, median over the steps of the slowest rank.

    Empty where steps of several messages are timed as a whole. Each of the timed steps is its
    start and the ends of its parts, in ns; part p are all calls of message p.
    """
    if any(len(step) != len(messages) + 1 for steps in ranks for step in steps):
        return ()
    # (ranks, steps, parts)
    parts_ns = [[[end - start for start, end in pairwise(s)] for s in steps] for steps in ranks]
    return tuple(
        median(max(step[part] for step in slowest) for slowest in zip(*parts_ns, strict=True))
        / (1e9 * message.count)
        for part, message in enumerate(messages)
    )
