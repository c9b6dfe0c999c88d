"""What is wrong with a history, as far as the record itself shows it: faults with their numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from records.history import History
from records.study import Study
from records.trial import Repeat
from search.auditing.audited import Audited, Said
from search.auditing.course import (
    best_is_last,
    cache_replays,
    dead_knob,
    failed_seed,
    infrastructure,
)
from search.auditing.question import broken_rules, dominant_term, other_score, unequal_work
from search.auditing.samples import best_of_noise, few_steps, one_sample, same_result, within_noise

CHECKS: Final[Mapping[str, Callable[[Audited], Said | None]]] = {
    "unequal_work": unequal_work,
    "best_of_noise": best_of_noise,
    "one_sample": one_sample,
    "within_noise": within_noise,
    "few_steps": few_steps,
    "same_result": same_result,
    "other_score": other_score,
    "dominant_term": dominant_term,
    "dead_knob": dead_knob,
    "infrastructure": infrastructure,
    "cache_replays": cache_replays,
    "broken_rules": broken_rules,
    "failed_seed": failed_seed,
    "best_is_last": best_is_last,
}
"""What is looked at, the gravest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is wrong: its name, a sentence or two with numbers, the trials it is about."""

    name: str
    words: str
    ordinals: tuple[int, ...]


def audit(study: Study, history: History, repeats: Sequence[Repeat]) -> tuple[Fault, ...]:
    """Every fault of a history, the gravest first; none where nothing is wrong."""
    seen = Audited.of(study, history, repeats)
    found = ((name, check(seen)) for name, check in CHECKS.items())
    return tuple(
        Fault(name=name, words=said[0], ordinals=said[1])
        for name, said in found
        if said is not None
    )
