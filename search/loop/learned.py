"""Constraints learned from failures, and dead knobs, from the history alone.

A predicate over at most two knobs is learned once enough trials failed in one way where it holds
and none was measured there. A measured trial that contradicts it removes it, and so can the user.
A dead knob was varied alone and changed nothing, so the search need not vary it again.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cache
from itertools import combinations, compress
from typing import TYPE_CHECKING, TypeAlias

from policies.space import Knob, Space
from records.expression import Rule
from records.study import Constraint, Value
from records.trial import Config, Failed, FailureKind, History, Measured, Trial

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LEAST_FAILURES = 3
CHANCE = 0.01
"""Largest probability that all fail by chance, given how often launches fail elsewhere."""
LEARNED_KINDS = frozenset({FailureKind.OUT_OF_MEMORY, FailureKind.CRASH, FailureKind.HANG})
CAUSE_CHARS = 80
PREFIX = "learned: "
Mask: TypeAlias = "NDArray[np.bool_]"
"""Which configurations of a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedConstraint:
    """A constraint that all trials with one failure violate, and no measured trial.

    `ordinals` are those failures.
    """

    constraint: Constraint
    kind: FailureKind
    ordinals: tuple[int, ...]

    def breaks(self, config: Config) -> str | None:
        """Return how a configuration violates it, with numbers; None where it does not."""
        rule = _rule(self.constraint)
        if not rule.expression.names <= config.values.keys():
            return None
        return rule.broken(config.values)


_rule = cache(Rule.of)


def learned_constraints(
    space: Space, history: History, revoked: Sequence[str]
) -> tuple[LearnedConstraint, ...]:
    """Return the constraints learned from the failures so far, without revoked ones."""
    failed = [trial for trial in history if _is_evidence(trial)]
    measured = {trial.config for trial in history.measured}
    if len(failed) < LEAST_FAILURES or not measured:
        return ()
    finder = _Finder(space, measured, {trial.config for trial in failed}, revoked)
    causes = _by_cause(failed).items()
    return tuple(found for (kind, _), trials in causes for found in finder.all(kind, trials))


@dataclass(frozen=True, slots=True, eq=False)
class _Predicate:
    """A condition on one knob or two, and where it holds."""

    literals: tuple[str, ...]
    holds: Mask

    @property
    def text(self) -> str:
        return " and ".join(self.literals)


class _Finder:
    """Finds predicates over a space that no measured configuration satisfies."""

    def __init__(
        self,
        space: Space,
        measured: Set[Config | None],
        failed: Set[Config | None],
        revoked: Sequence[str],
    ) -> None:
        launched = (config for config in measured | failed if config is not None)
        self._configs = [*dict.fromkeys((*space.candidates, *launched))]
        self._measured, self._failed = self._mask(measured), self._mask(failed)
        revoked_texts = {name.removeprefix(PREFIX) for name in revoked}
        single = list(_literals(space, self._configs))
        pairs = (
            _Predicate(one.literals + other.literals, one.holds & other.holds)
            for one, other in combinations(single, 2)
        )
        self._open = [
            each
            for each in (*single, *pairs)
            if not (each.holds & self._measured).any() and each.text not in revoked_texts
        ]

    def all(self, kind: FailureKind, trials: Sequence[Trial]) -> Iterator[LearnedConstraint]:
        """Yield the constraints from failures with one cause, widest cover first."""
        left = list(trials)
        while (best := self._best(left)) is not None:
            covered_configs = set(compress(self._configs, best.holds))
            yield _learned(best, kind, [t for t in left if t.config in covered_configs])
            left = [trial for trial in left if trial.config not in covered_configs]

    def _best(self, trials: Sequence[Trial]) -> _Predicate | None:
        """Return the predicate with the most failures, fewest literals and narrowest range."""
        broken = self._mask({trial.config for trial in trials})
        fitting = [
            (-cover, len(each.literals), int(each.holds.sum()), place)
            for place, each in enumerate(self._open)
            if self._is_significant(each, cover := int((each.holds & broken).sum()))
        ]
        return self._open[min(fitting)[-1]] if fitting else None

    def _is_significant(self, predicate: _Predicate, cover: int) -> bool:
        """Whether this many failures are unlikely by chance."""
        if cover < LEAST_FAILURES:
            return False
        elsewhere = int((self._failed & ~predicate.holds).sum())
        share = (elsewhere + 1) / (elsewhere + int(self._measured.sum()) + 2)
        return bool(share**cover <= CHANCE)

    def _mask(self, configs: Set[Config | None]) -> Mask:
        return _to_mask([config in configs for config in self._configs])


def _to_mask(holds: Sequence[bool]) -> Mask:
    import numpy as np  # slow to load, and commands that read a study do without

    return np.array(holds, dtype=bool)


def _learned(
    predicate: _Predicate, kind: FailureKind, trials: Sequence[Trial]
) -> LearnedConstraint:
    ordinals = tuple(trial.ordinal for trial in trials)
    listed = ", ".join(f"#{ordinal}" for ordinal in ordinals)
    return LearnedConstraint(
        constraint=Constraint(
            name=f"{PREFIX}{predicate.text}",
            expression=f"not ({predicate.text})",
            reason=f"ended in {kind} in trials {listed} and was measured in none",
        ),
        kind=kind,
        ordinals=ordinals,
    )


def _is_evidence(trial: Trial) -> bool:
    outcome = trial.outcome
    return (
        trial.config is not None and isinstance(outcome, Failed) and outcome.kind in LEARNED_KINDS
    )


def _by_cause(trials: Sequence[Trial]) -> dict[tuple[FailureKind, str], list[Trial]]:
    """Group failures by kind and cause, ignoring numbers; out of memory is one cause."""
    groups: dict[tuple[FailureKind, str], list[Trial]] = defaultdict(list)
    for trial in trials:
        if isinstance(trial.outcome, Failed):
            kind = trial.outcome.kind
            cause = re.sub(r"\d+", "#", trial.outcome.message)[:CAUSE_CHARS]
            groups[kind, "" if kind is FailureKind.OUT_OF_MEMORY else cause].append(trial)
    return groups


def _literals(space: Space, configs: Sequence[Config]) -> Iterator[_Predicate]:
    """Yield conditions on one knob that hold for some of the configurations, not all."""
    for knob in space.knobs:
        values = [config.values.get(knob.name) for config in configs]
        for literal, matches in _conditions(knob):
            holds = _to_mask([value in matches for value in values])
            if holds.any() and not holds.all():
                yield _Predicate((literal,), holds)


def _conditions(knob: Knob) -> Iterator[tuple[str, frozenset[object]]]:
    """Yield conditions on a knob, narrow ones first, with the choices that satisfy them."""
    for choice in knob.choices:
        yield f"{knob.name} == {choice!r}", frozenset({choice})
    if isinstance(knob.choices[0], str | bool):
        return
    for place in range(1, len(knob.choices) - 1):
        bound = knob.choices[place]
        yield f"{knob.name} >= {bound!r}", frozenset(knob.choices[place:])
        yield f"{knob.name} <= {bound!r}", frozenset(knob.choices[: place + 1])


TIE_SHARE = 0.03  # launches of one configuration varied by 2.4 % (median of 27 groups)
LEAST_PAIRS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadKnob:
    """A knob that, varied alone, never changed the objective by more than noise.

    `pair_count` is how many pairs of measured trials differ in it alone, `largest_share` the
    largest difference of a pair, of the better one; `values` are the choices compared.
    """

    name: str
    pair_count: int
    largest_share: float
    values: tuple[Value, ...]


def dead_knobs(space: Space, history: History) -> tuple[DeadKnob, ...]:
    """Return the knobs that made no difference in two or more pairs of measured trials.

    None with several objectives, whose weighted costs change each turn.
    """
    if history.weights:
        return ()
    found = (_dead(knob.name, history) for knob in space.knobs)
    return tuple(knob for knob in found if knob is not None)


def _dead(name: str, history: History) -> DeadKnob | None:
    pair_count, largest, values = 0, 0.0, list[Value]()
    for group in differing_only_in(name, history):
        costs = [history.cost(trial) for trial in group]
        least = min(abs(cost) for cost in costs)
        difference = max(costs) - min(costs)
        if difference > TIE_SHARE * least:
            return None
        pair_count += len(group) * (len(group) - 1) // 2
        largest = max(largest, difference / least if least else 0.0)
        values += (trial.config.values[name] for trial in group if trial.config is not None)
    if pair_count < LEAST_PAIRS:
        return None
    return DeadKnob(
        name=name,
        pair_count=pair_count,
        largest_share=largest,
        values=tuple(sorted(set(values), key=lambda value: (str(type(value)), value))),
    )


def differing_only_in(name: str, history: History) -> list[list[Trial]]:
    """Group measured trials that differ only in this knob, two or more in each group."""
    groups: dict[frozenset[tuple[str, type, Value]], dict[Value, Trial]] = defaultdict(dict)
    for trial in history.measured:
        if trial.config is None or name not in trial.config.values:
            continue
        others = frozenset(
            (knob, type(value), value)
            for knob, value in trial.config.values.items()
            if knob != name
        )
        groups[others].setdefault(trial.config.values[name], trial)
    return [list(group.values()) for group in groups.values() if len(group) > 1]


LOSS_TOLERANCE = 1e-5
"""Largest relative difference of losses of equal work, which the order of sums may cause."""


def same_work(one: Trial, other: Trial) -> bool:
    """Whether the traces and losses of two trials show that both did the same."""
    if not isinstance(one.outcome, Measured) or not isinstance(other.outcome, Measured):
        return False
    mine, theirs = one.outcome, other.outcome
    if mine.contexts or mine.diagnosis is None or theirs.diagnosis is None:
        return False
    losses = mine.measurement.losses, theirs.measurement.losses
    return (
        mine.diagnosis.work_digest is not None
        and mine.diagnosis.work_digest == theirs.diagnosis.work_digest
        and len(losses[0]) == len(losses[1])
        and all(
            math.isclose(loss, same, rel_tol=LOSS_TOLERANCE)
            for loss, same in zip(*losses, strict=True)
        )
    )
