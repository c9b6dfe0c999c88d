"""Random samples of a specification: parameters and tensors that meet its constraints."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias, TypeVar

import numpy as np

from evaluator.timing.fuzzing.parameters import (
    FuzzedParameter,
    FuzzerError,
    ParameterAlias,
    Value,
    check_aliases,
    resolved,
)
from evaluator.timing.fuzzing.tensors import FuzzedTensor, TensorPlan

MOST_ATTEMPTS = 1000
Entry = TypeVar("Entry", FuzzedParameter, FuzzedTensor)
Constraint: TypeAlias = Callable[[Mapping[str, Value]], bool]
"""Takes one mapping of all parameters' names to their values; false rejects the sample.

It must depend on nothing else, or processes would disagree.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One drawn configuration, and how many were drawn until it met all constraints."""

    parameters: Mapping[str, Value]
    tensors: Mapping[str, TensorPlan]
    attempt_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fuzzer:
    """Draws samples from parameters, tensors, constraints and a seed.

    Parameters and tensors may be given in lists of lists, one level deep. Every sample has a
    generator of its own, numpy's default seeded by the seed and the sample's index: ranks and
    processes with the same specification and numpy agree without talking to each other.
    """

    parameters: Sequence[FuzzedParameter | Sequence[FuzzedParameter]]
    tensors: Sequence[FuzzedTensor | Sequence[FuzzedTensor]] = ()
    constraints: Sequence[Constraint] = ()
    seed: int = 0
    _parameters: tuple[FuzzedParameter, ...] = field(init=False, repr=False)
    _tensors: tuple[FuzzedTensor, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_parameters", _flat(self.parameters))
        object.__setattr__(self, "_tensors", _flat(self.tensors))
        object.__setattr__(self, "constraints", tuple(self.constraints))
        if self.seed < 0:
            raise FuzzerError(f"seed is {self.seed}; give zero or more")
        self._check_names()
        check_aliases(self._parameters)

    def take(self, count: int) -> tuple[Sample, ...]:
        """Give the first samples, which are the same on every call, however many are taken.

        Raises `FuzzerError` where the constraints reject 1000 attempts at one sample.
        """
        samples: list[Sample] = []
        for index in range(count):
            sample = self._sample(index)
            if sample is None:
                drawn = sum(taken.attempt_count for taken in samples) + MOST_ATTEMPTS
                raise FuzzerError(
                    f"sample {index}: {MOST_ATTEMPTS} attempts in a row were rejected, "
                    f"a rejection rate of {1 - index / drawn:.2%} over all samples so far; "
                    "loosen the constraints and limits, or narrow the parameters to what they allow"
                )
            samples.append(sample)
        return tuple(samples)

    def _sample(self, index: int) -> Sample | None:
        generator = np.random.default_rng([self.seed, index])
        strict = _drawn((p for p in self._parameters if p.strict), generator)
        for attempt in range(1, MOST_ATTEMPTS + 1):
            free = _drawn((p for p in self._parameters if not p.strict), generator)
            drawn = strict | free
            values = resolved({p.name: drawn[p.name] for p in self._parameters})
            tensors = self._plans(values, generator)
            if tensors is not None:
                return Sample(parameters=values, tensors=tensors, attempt_count=attempt)
        return None

    def _plans(
        self, values: Mapping[str, Value], generator: np.random.Generator
    ) -> dict[str, TensorPlan] | None:
        """Plan the tensors of parameters that meet the constraints; None if anything does not."""
        view = MappingProxyType(values)
        if not all(constraint(view) for constraint in self.constraints):
            return None
        plans: dict[str, TensorPlan] = {}
        for tensor in self._tensors:
            plan = tensor.plan(values, generator)
            if plan is None:
                return None
            plans[tensor.name] = plan
        return plans

    def _check_names(self) -> None:
        known = {parameter.name for parameter in self._parameters}
        names = [*(p.name for p in self._parameters), *(t.name for t in self._tensors)]
        twice = [name for name, times in Counter(names).items() if times > 1]
        if twice:
            raise FuzzerError(f"name {twice[0]!r} is given twice; rename a parameter or tensor")
        for tensor in self._tensors:
            unknown = [name for name in tensor.parameter_names if name not in known]
            if unknown:
                raise FuzzerError(
                    f"tensor {tensor.name!r}: no parameter is named {unknown[0]!r}; add it"
                )


def rejection_rate(samples: Sequence[Sample]) -> float | None:
    """Share of what was drawn that the constraints rejected; None without samples."""
    drawn = sum(sample.attempt_count for sample in samples)
    return 1 - len(samples) / drawn if drawn else None


def _flat(entries: Sequence[Entry | Sequence[Entry]]) -> tuple[Entry, ...]:
    flat: list[Entry] = []
    for entry in entries:
        flat.extend(entry if isinstance(entry, Sequence) else [entry])
    return tuple(flat)


def _drawn(
    parameters: Iterable[FuzzedParameter], generator: np.random.Generator
) -> dict[str, Value | ParameterAlias]:
    return {parameter.name: parameter.draw(generator) for parameter in parameters}
