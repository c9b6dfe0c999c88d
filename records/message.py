"""One kind of message of a communication workload: a collective, its size, and how often."""

from dataclasses import dataclass
from typing import Literal

from records.errors import StudyError
from records.strict import STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A collective call on `size_bytes`, made `count` times in a step.

    What a size means is in `evaluator.workloads.collectives.operations`.
    """

    __pydantic_config__ = STRICT

    collective: Literal[
        "all_reduce",
        "all_gather",
        "all_gather_single",
        "reduce_scatter",
        "reduce_scatter_single",
        "all_to_all",
        "all_to_all_single",
        "broadcast",
        "reduce",
        "scatter",
        "gather",
        "send_recv",
        "barrier",
    ]
    size_bytes: int = 0
    count: int = 1
    dtype: Literal["float32", "float16", "bfloat16", "float64", "int32", "int64"] = "float32"
    reduce_op: Literal["sum", "min", "max", "avg", "product"] = "sum"

    def __post_init__(self) -> None:
        if self.size_bytes < (0 if self.collective == "barrier" else 1):
            raise StudyError(f"[[message]] size_bytes is {self.size_bytes}; give at least 1")
        if self.count < 1:
            raise StudyError(f"[[message]] count is {self.count}; it must be at least 1")
        if self.reduce_op == "avg" and self.dtype.startswith("int"):
            raise StudyError("[[message]] reduce_op avg has no meaning with whole numbers")
