"""Reads which points a benchmark is asked for: collectives, sizes, number format, reductions."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from evaluator.bench.faults import Faults, hint
from evaluator.bench.sizes import size_chain
from evaluator.workloads.collectives.operations import (
    REDUCING,
    Collective,
    DType,
    Operation,
    ReduceOp,
)
from records.errors import shown

ALL: Final = "all"
DTYPES: Final[Mapping[str, DType]] = {
    **{dtype.value: dtype for dtype in DType},
    "float": DType.FLOAT32,
    "fp32": DType.FLOAT32,
    "half": DType.FLOAT16,
    "fp16": DType.FLOAT16,
    "bf16": DType.BFLOAT16,
    "double": DType.FLOAT64,
    "fp64": DType.FLOAT64,
    "int": DType.INT32,
    "long": DType.INT64,
}
_COLLECTIVES: Final = {collective.value: collective for collective in Collective}
_REDUCE_OPS: Final = {op.value: op for op in ReduceOp}


def read_collectives(text: str, faults: Faults) -> tuple[Collective, ...]:
    """The one that is named, or all of them."""
    known = (*_COLLECTIVES, ALL)
    if text == ALL:
        return tuple(Collective)
    if text in _COLLECTIVES:
        return (_COLLECTIVES[text],)
    if text:
        faults.add("collective", f"there is no collective {shown(text)}; {hint(text, known)}")
    else:
        faults.add("collective", f"no collective is given; known are {', '.join(known)}")
    return ()


def read_sizes(
    least_text: str, most_text: str, factor_text: str, dtype: DType | None, faults: Faults
) -> tuple[int, ...]:
    """Every size of the sweep; `dtype` is None where it is at fault itself."""
    least = faults.size("min-size", least_text)
    most = faults.size("max-size", most_text)
    factor = faults.whole("size-scaling-factor", factor_text, least=2)
    for option, size in (("min-size", least), ("max-size", most)):
        if size is not None and dtype is not None and size % dtype.element_bytes:
            faults.add(
                "element-size",
                f"--{option} is {size}, but an element of {dtype} takes {dtype.element_bytes} "
                "bytes; give a multiple of that",
            )
    if least is None or most is None or factor is None:
        return ()
    if most < least:
        faults.add("max-size", f"--max-size is {most}, below --min-size {least}; give no less")
        return ()
    sizes = size_chain(least, most, factor)
    if sizes[-1] != most:
        faults.add(
            "size-chain",
            f"--max-size {most} is not --min-size {least} times a power of {factor}; "
            f"give {sizes[-1]} or {sizes[-1] * factor}",
        )
    return sizes


def read_reduce_ops(
    text: str | None,
    collectives: Sequence[Collective],
    dtype: DType | None,
    faults: Faults,
) -> tuple[ReduceOp, ...]:
    """The one that is named, in any case, or all of the number format; sums where none is."""
    if text is None:
        return (ReduceOp.SUM,)
    text = text.lower()
    reducing = ", ".join(REDUCING)
    if len(collectives) > 1:
        faults.add("reduce-op", f"--reduce-op is for one collective, not for all; name {reducing}")
    elif collectives and collectives[0] not in REDUCING:
        faults.add(
            "reduce-op",
            f"--reduce-op has no effect on {collectives[0]}; leave it out, or name {reducing}",
        )
    whole_numbers = dtype is not None and dtype.is_integer
    if text == ALL:
        return tuple(op for op in ReduceOp if op is not ReduceOp.AVG or not whole_numbers)
    reduce_op = _REDUCE_OPS.get(text)
    if reduce_op is None:
        whose = f" of {collectives[0]}" if len(collectives) == 1 else ""
        known = (*_REDUCE_OPS, ALL)
        faults.add("reduce-op", f"there is no reduction {shown(text)}{whose}; {hint(text, known)}")
        return ()
    if reduce_op is ReduceOp.AVG and whole_numbers:
        faults.add(
            "average",
            f"whole numbers such as {dtype} have no avg; give another --reduce-op, or a --dtype "
            "with fractions",
        )
    return (reduce_op,)


def operations(
    collectives: Sequence[Collective],
    reduce_ops: Sequence[ReduceOp],
    sizes: Sequence[int],
    dtype: DType,
) -> Iterator[Operation]:
    """Every point in the order of measurement."""
    for collective in collectives:
        if collective is Collective.BARRIER:
            yield Operation(collective=collective, size_bytes=0, dtype=dtype)
            continue
        for reduce_op in reduce_ops if collective in REDUCING else (ReduceOp.SUM,):
            for size in sizes:
                yield Operation(
                    collective=collective, size_bytes=size, dtype=dtype, reduce_op=reduce_op
                )
