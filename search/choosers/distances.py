"""How far apart configurations are, knob by knob."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from policies.knob import Knob
from policies.space import Space
from records.trial import Config

Floats: TypeAlias = NDArray[np.float64]


class Distances:
    """Distances between the configurations of one space, shaped (rows, columns, knobs).

    Numbers are as many steps apart as there are choices between them and one, so that degrees that
    double are evenly spaced. Texts and switches are one apart, and so is a knob that has no effect
    from one that has.
    """

    def __init__(self, space: Space) -> None:
        self._knobs = space.knobs
        self._tables = [_table(knob) for knob in space.knobs]

    def between(self, rows: Sequence[Config], columns: Sequence[Config]) -> Floats:
        """Distance of every row to every column in every knob."""
        apart = np.empty((len(rows), len(columns), len(self._knobs)))
        for i, (knob, table) in enumerate(zip(self._knobs, self._tables, strict=True)):
            apart[:, :, i] = table[np.ix_(_places(knob, rows), _places(knob, columns))]
        return apart


def _places(knob: Knob, configs: Sequence[Config]) -> list[int]:
    """Where each configuration's value comes among the choices; after all where it has none."""
    places = {choice: place for place, choice in enumerate(knob.choices)}
    nowhere = len(knob.choices)
    return [
        places[config[knob.name]] if knob.name in config.values else nowhere for config in configs
    ]


def _table(knob: Knob) -> Floats:
    count = len(knob.choices)
    table = np.ones((count + 1, count + 1))
    if isinstance(knob.choices[0], str | bool):
        np.fill_diagonal(table, 0)
        return table
    steps = np.arange(count)
    table[:count, :count] = np.abs(steps[:, None] - steps[None, :])
    table[count, count] = 0
    return table
