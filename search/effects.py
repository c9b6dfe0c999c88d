"""Knobs that were varied alone and moved nothing: what a search need not try again."""

from collections import defaultdict
from dataclasses import dataclass

from policies.space import Space
from records.history import History
from records.study import Value
from records.trial import Trial

TIE_SHARE = 0.03  # launches of one configuration were seen to vary by 2.4 % (median of 27 groups)
LEAST_PAIRS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadKnob:
    """A knob whose change alone was no larger than what equal launches differ by, every time.

    `pair_count` is how many pairs of measured trials differ in it alone, `largest_share` the
    largest difference of a pair, of the better one; `values` are the choices compared.
    """

    name: str
    pair_count: int
    largest_share: float
    values: tuple[Value, ...]


def dead_knobs(space: Space, history: History) -> tuple[DeadKnob, ...]:
    """Knobs that made no difference in at least two pairs of measured trials, in their order.

    None where costs stand for several objectives, of which ties say nothing.
    """
    if history.weights:
        return ()
    found = (_dead(knob.name, history) for knob in space.knobs)
    return tuple(knob for knob in found if knob is not None)


def _dead(name: str, history: History) -> DeadKnob | None:
    pair_count, largest, values = 0, 0.0, list[Value]()
    for alike in _alike_but_for(name, history):
        costs = [history.cost(trial) for trial in alike]
        least = min(abs(cost) for cost in costs)
        apart = max(costs) - min(costs)
        if apart > TIE_SHARE * least:
            return None
        pair_count += len(alike) * (len(alike) - 1) // 2
        largest = max(largest, apart / least if least else 0.0)
        values += (trial.config.values[name] for trial in alike if trial.config is not None)
    if pair_count < LEAST_PAIRS:
        return None
    return DeadKnob(
        name=name,
        pair_count=pair_count,
        largest_share=largest,
        values=tuple(sorted(set(values), key=lambda value: (str(type(value)), value))),
    )


def _alike_but_for(name: str, history: History) -> list[list[Trial]]:
    """Measured trials in groups that differ in nothing but this knob, two or more in each."""
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
