"""One random tensor: its plan, which is plain values and the same in every process.

Nothing is allocated here; `materialise` makes the tensor of a plan.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from evaluator.timing.fuzzing.parameters import FuzzerError, Value

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
