"""Fuzzed inputs.

One random parameter of a configuration: how its value is drawn, or taken from another's.

One random tensor: its plan, which is plain values and the same in every process.

Nothing is allocated here; `materialise` makes the tensor of a plan.

Random samples of a specification: parameters and tensors that meet its constraints.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType
from typing import Literal, TypeAlias, TypeVar

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


ITEM_BYTES: Mapping[str, int] = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlan:
    """A tensor before it exists: every `steps`-th element of an allocation of `dtype` on `device`.

    `order` is the dimensions from the outermost in memory to the innermost; `seed` is of the
    elements.
    """

    shape: tuple[int, ...]
    steps: tuple[int, ...]
    order: tuple[int, ...]
    dtype: str
    device: str
    seed: int

    @property
    def numel(self) -> int:
        """Elements of the tensor, without those skipped."""
        return math.prod(self.shape)

    @property
    def allocation_shape(self) -> tuple[int, ...]:
        """Shape that the steps go through."""
        return tuple(size * step for size, step in zip(self.shape, self.steps, strict=True))

    @property
    def allocation_bytes(self) -> int:
        """Memory that the tensor needs."""
        return math.prod(self.allocation_shape) * ITEM_BYTES[self.dtype]

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie in memory in order without gaps, as torch would say."""
        if self.numel == 0:
            return True
        expected, strides = 1, self._strides()
        for size, stride in zip(reversed(self.shape), reversed(strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    def _strides(self) -> list[int]:
        strides, room = [0] * len(self.shape), 1
        for dim in reversed(self.order):
            strides[dim] = room * self.steps[dim]
            room *= self.allocation_shape[dim]
        return strides


@dataclass(frozen=True, slots=True, kw_only=True)
class FuzzedTensor:
    """How one tensor is drawn; sizes and steps are numbers or names of parameters.

    `dim_parameter` names the parameter that says how many of the sizes count; where it is more
    than there are, further sizes are 1. A sample whose tensor is out of the limits is rejected.
    Dimensions are shuffled in memory with probability `1 - probability_contiguous`.
    """

    name: str
    size: tuple[int | str, ...]
    steps: tuple[int | str, ...] | None = None
    probability_contiguous: float = 0.5
    min_elements: int = 0
    max_elements: int | None = None
    max_allocation_bytes: int | None = None
    dim_parameter: str | None = None
    dtype: str = "float32"
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.steps is not None and len(self.steps) != len(self.size):
            raise self._error(
                f"has {len(self.steps)} steps for {len(self.size)} sizes; give one for each"
            )
        if not 0 <= self.probability_contiguous <= 1:
            raise self._error(
                f"probability_contiguous is {self.probability_contiguous}; give 0 to 1"
            )
        if self.dtype not in ITEM_BYTES:
            raise self._error(
                f"dtype {self.dtype!r} is unknown; give one of {', '.join(ITEM_BYTES)}"
            )

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Parameters that this tensor is made from."""
        entries = (*self.size, *(self.steps or ()), self.dim_parameter)
        return tuple(entry for entry in entries if isinstance(entry, str))

    def plan(
        self, parameters: Mapping[str, Value], generator: np.random.Generator
    ) -> TensorPlan | None:
        """Draw memory order and elements for these parameters; None if it is out of the limits."""
        dims = len(self.size)
        if self.dim_parameter is not None:
            dims = self._whole(self.dim_parameter, parameters, least=0)
        padding = (1,) * dims
        shape = (*(self._whole(size, parameters, least=0) for size in self.size), *padding)[:dims]
        given = (self._whole(step, parameters, least=1) for step in self.steps or ())
        steps = (*given, *padding)[:dims]
        plan = TensorPlan(
            shape=shape,
            steps=steps,
            order=self._order(dims, generator),
            dtype=self.dtype,
            device=self.device,
            seed=int(generator.integers(2**63)),
        )
        return plan if self._allows(plan) else None

    def _order(self, dims: int, generator: np.random.Generator) -> tuple[int, ...]:
        straight = tuple(range(dims))
        order = straight
        if dims > 1 and generator.random() >= self.probability_contiguous:
            while order == straight:
                order = tuple(generator.permutation(dims).tolist())
        return order

    def _allows(self, plan: TensorPlan) -> bool:
        return (
            self.min_elements <= plan.numel
            and (self.max_elements is None or plan.numel <= self.max_elements)
            and (
                self.max_allocation_bytes is None
                or plan.allocation_bytes <= self.max_allocation_bytes
            )
        )

    def _whole(self, entry: int | str, parameters: Mapping[str, Value], *, least: int) -> int:
        value = parameters[entry] if isinstance(entry, str) else entry
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self._error(f"{entry!r} is {value!r}; give a whole number of at least {least}")
        return value

    def _error(self, message: str) -> FuzzerError:
        return FuzzerError(f"tensor {self.name!r}: {message}")


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
