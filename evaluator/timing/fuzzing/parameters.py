"""One random parameter of a configuration: how its value is drawn, or taken from another's."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Literal, TypeAlias

import numpy as np

from records.errors import CclsearchError, shown

Value: TypeAlias = bool | int | float | str | None
TOLERANCE = 1e-9
MOST_INTEGER = 2**62


class FuzzerError(CclsearchError, ValueError):
    """A specification that nothing can be drawn from."""


@dataclass(frozen=True, slots=True)
class ParameterAlias:
    """In place of a value: whatever value the parameter of this name has."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FuzzedParameter:
    """How one parameter is drawn.

    `uniform` and `loguniform` draw from `minval` to `maxval`, whole numbers with both bounds
    included if both are, else real ones; under `loguniform` a whole number stands for all up to the
    next. A mapping gives each value, or alias, its probability. A `strict` parameter is drawn once
    a sample: what is rejected is drawn anew around it, so that constraints on the others do not
    change its distribution.
    """

    name: str
    minval: float | None = None
    maxval: float | None = None
    distribution: Literal["uniform", "loguniform"] | Mapping[Value | ParameterAlias, float]
    strict: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.distribution, Mapping):
            object.__setattr__(self, "distribution", dict(self.distribution))
            self._check_probabilities(self.distribution)
        else:
            self._check_bounds()

    @property
    def alias_names(self) -> tuple[str, ...]:
        """Parameters whose value this one may take."""
        if not isinstance(self.distribution, Mapping):
            return ()
        return tuple(key.name for key in self.distribution if isinstance(key, ParameterAlias))

    def draw(self, generator: np.random.Generator) -> Value | ParameterAlias:
        """Draw a value, or the alias that stands for one."""
        if isinstance(self.distribution, Mapping):
            values = list(self.distribution)
            chances = np.fromiter(self.distribution.values(), dtype=np.float64)
            return values[int(generator.choice(len(values), p=chances / chances.sum()))]
        low, high = self._bounds()
        whole = isinstance(low, int) and isinstance(high, int)
        if self.distribution == "uniform":
            if whole:
                return int(generator.integers(int(low), int(high), endpoint=True))
            return float(generator.uniform(low, high))
        # One more, or the largest whole number would almost never be drawn.
        top = high + 1 if whole else high
        value = math.exp(generator.uniform(math.log(low), math.log(top)))
        value = min(max(value, low), high)
        return math.floor(value) if whole else float(value)

    def _bounds(self) -> tuple[float, float]:
        if self.minval is None or self.maxval is None:
            raise self._error(f"{self.distribution!r} needs bounds; give minval and maxval")
        return self.minval, self.maxval

    def _check_bounds(self) -> None:
        if self.distribution not in ("uniform", "loguniform"):
            raise self._error(
                f"distribution {shown(self.distribution)} is unknown; "
                "give 'uniform', 'loguniform' or a mapping of values to probabilities"
            )
        low, high = self._bounds()
        if not -MOST_INTEGER <= low <= high <= MOST_INTEGER:
            raise self._error(f"{low} to {high} is no range; give finite bounds in order")
        if self.distribution == "loguniform" and low <= 0:
            raise self._error(f"loguniform from {low} has no logarithm; give minval above zero")

    def _check_probabilities(self, chances: Mapping[Value | ParameterAlias, float]) -> None:
        if self.minval is not None or self.maxval is not None:
            raise self._error("has both bounds and probabilities; leave one of them out")
        unfit = {value: chance for value, chance in chances.items() if not 0 <= chance < math.inf}
        if unfit:
            raise self._error(f"{shown(unfit)} are no probabilities; give none below zero")
        total = math.fsum(chances.values())
        if not math.isclose(total, 1, rel_tol=TOLERANCE):
            raise self._error(f"probabilities sum to {total!r}; make them sum to 1")

    def _error(self, message: str) -> FuzzerError:
        return FuzzerError(f"parameter {self.name!r}: {message}")


def check_aliases(parameters: Sequence[FuzzedParameter]) -> None:
    """Raise `FuzzerError` where an alias names no parameter, or could lead back to itself."""
    targets = {parameter.name: parameter.alias_names for parameter in parameters}
    for name, aliases in targets.items():
        unknown = [alias for alias in aliases if alias not in targets]
        if unknown:
            raise FuzzerError(
                f"parameter {name!r}: its alias {unknown[0]!r} names no parameter; add or rename it"
            )
    try:
        TopologicalSorter(targets).prepare()
    except CycleError as error:
        path = " -> ".join(reversed(error.args[1]))
        raise FuzzerError(f"aliases go round: {path}; let one of them have a value") from error


def resolved(drawn: Mapping[str, Value | ParameterAlias]) -> dict[str, Value]:
    """Give every parameter its value, along chains of aliases that `check_aliases` found to end."""
    values: dict[str, Value] = {}
    for name, value in drawn.items():
        while isinstance(value, ParameterAlias):
            value = drawn[value.name]
        values[name] = value
    return values
