"""Which collective is called on how many bytes of what, as values."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch


class Collective(StrEnum):
    """What the ranks do together; the order is that of a sweep over all of them."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    ALL_GATHER_SINGLE = "all_gather_single"
    REDUCE_SCATTER = "reduce_scatter"
    REDUCE_SCATTER_SINGLE = "reduce_scatter_single"
    ALL_TO_ALL = "all_to_all"
    ALL_TO_ALL_SINGLE = "all_to_all_single"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    SCATTER = "scatter"
    GATHER = "gather"
    SEND_RECV = "send_recv"
    """A ping-pong between ranks 0 and 1, 2 and 3, and so on."""
    BARRIER = "barrier"


class ReduceOp(StrEnum):
    """How elements of all ranks become one; the order is that of a sweep over all of them."""

    SUM = "sum"
    MIN = "min"
    MAX = "max"
    AVG = "avg"
    PRODUCT = "product"


class DType(StrEnum):
    """The number format of the elements."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT64 = "float64"
    INT32 = "int32"
    INT64 = "int64"

    @property
    def torch(self) -> "torch.dtype":
        """The same as torch calls it."""
        # Imported here: a search knows operations too, and would load torch for seconds.
        import torch

        kind: torch.dtype = getattr(torch, self.value)
        return kind

    @property
    def element_bytes(self) -> int:
        """Size of one element."""
        return int(self.value[-2:]) // 8

    @property
    def is_integer(self) -> bool:
        """Whether it has whole numbers only, which have no average."""
        return self.value.startswith("int")


REDUCING: Final = (
    Collective.ALL_REDUCE,
    Collective.REDUCE,
    Collective.REDUCE_SCATTER,
    Collective.REDUCE_SCATTER_SINGLE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One collective call as every rank makes it.

    `size_bytes` is what the API calls a message: the tensor of an all-reduce, broadcast or reduce;
    of the others what one rank sends to, or receives from, each rank. A barrier has none, and
    `reduce_op` counts for reductions only.
    """

    collective: Collective
    size_bytes: int = field(metadata={"least": 0})
    dtype: DType = DType.FLOAT32
    reduce_op: ReduceOp = ReduceOp.SUM

    @property
    def element_count(self) -> int:
        """Elements of the message, at least one."""
        return max(1, self.size_bytes // self.dtype.element_bytes)

    @property
    def message_bytes(self) -> int:
        """Bytes of these elements: none in a barrier."""
        if self.collective is Collective.BARRIER:
            return 0
        return self.element_count * self.dtype.element_bytes

    @property
    def reduces(self) -> bool:
        """Whether the reduction operation matters."""
        return self.collective in REDUCING

    def __str__(self) -> str:
        words = [self.collective.value]
        if self.reduces:
            words.append(self.reduce_op.value)
        if self.collective is not Collective.BARRIER:
            words += [self.dtype.value, f"{self.message_bytes} B"]
        return " ".join(words)
