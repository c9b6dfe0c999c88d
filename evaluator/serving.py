"""From the parts of an inference step to how long its requests waited for their tokens."""

from collections.abc import Sequence
from statistics import fmean
from typing import TypeAlias

from records.trial import Serving
from records.workload import Workload

Steps: TypeAlias = Sequence[tuple[int, ...]]
"""Timed steps of one rank, each its start and the end of each part in ns.

Parts are in turn the prefill and the decode of one round of requests.
"""


def uneven(ranks: Sequence[Steps]) -> bool:
    """Whether steps differ in how many parts they have, or a prefill has no decode.

    Steps of a single part are even: nothing is known of what happens in them.
    """
    part_counts = {len(step) - 1 for steps in ranks for step in steps}
    return len(part_counts) > 1 or any(count % 2 and count > 1 for count in part_counts)


def serving(ranks: Sequence[Steps], workload: Workload) -> Serving | None:
    """How the requests were answered; None in training and where no step has parts."""
    answer_length = workload.output_length
    in_parts = all(len(step) > 2 for steps in ranks for step in steps)
    if workload.phase != "inference" or answer_length is None or not in_parts:
        return None
    return Serving(
        first_token_times_s=tuple(tuple(map(_first_token_s, steps)) for steps in ranks),
        next_token_times_s=tuple(
            tuple(_decode_s(step) / (answer_length - 1) for step in steps) for steps in ranks
        )
        if answer_length > 1
        else None,
        output_tokens_per_step=workload.global_batch * answer_length,
    )


def _first_token_s(step: tuple[int, ...]) -> float:
    """Mean over the rounds, which answer equally many requests each."""
    return fmean(prefilled - step[0] for prefilled in step[1::2]) / 1e9


def _decode_s(step: tuple[int, ...]) -> float:
    rounds = zip(step[1::2], step[2::2], strict=True)
    return fmean(answered - prefilled for prefilled, answered in rounds) / 1e9
