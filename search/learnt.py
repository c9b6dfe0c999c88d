"""Constraints learnt from failures, by the history alone: told to the model, and kept to."""

from collections.abc import Sequence
from dataclasses import dataclass

from policies.space import Space
from records.rule import Rule
from records.study import Constraint
from records.trial import Config, FailureKind, History


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """A predicate that every trial broke which failed in one way, and no measured trial did.

    `ordinals` are those failures.
    """

    constraint: Constraint
    kind: FailureKind
    ordinals: tuple[int, ...]

    def breaks(self, config: Config) -> str | None:
        """How a configuration breaks it, with its numbers filled in; None where it does not."""
        rule = Rule.of(self.constraint)
        if not rule.expression.names <= config.values.keys():
            return None
        return rule.broken(config.values)


def learnt(space: Space, history: History, revoked: Sequence[str]) -> tuple[Learnt, ...]:  # noqa: ARG001 - nothing is learnt yet
    """What the failures so far say about configurations that were not tried."""
    return ()
