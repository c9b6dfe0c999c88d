"""What messages are put together, cut and converted into before they are sent: plain arithmetic.

It knows no tensors and no library: a carrier says which messages it has, and how it is called.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from evaluator.workloads.collectives.exchange_job import Compression, Setup
from evaluator.workloads.collectives.operations import Collective, DType, Operation

_SENT_AS = {Compression.FP16: DType.FLOAT16, Compression.BF16: DType.BFLOAT16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrier:
    """One message, or neighbouring ones of one kind, as the library gets them.

    Messages `first` up to, but not including, `end` of a step. The library is called for each of
    the `parts`, one after the other; their elements together are those of the messages. Where
    `is_copied` it gets other tensors than those of the messages.
    """

    first: int
    end: int
    parts: tuple[Operation, ...]
    is_copied: bool


def carriers(messages: Sequence[Operation], setup: Setup) -> tuple[Carrier, ...]:
    """How the messages of a step, in their order, are carried with this setup."""
    return tuple(_carrier(messages, run, setup) for run in _runs(messages, setup.fusion_bytes))


def sent_as(message: Operation, compression: Compression) -> Operation:
    """The call in the format in which it sends: only large floating-point numbers are made smaller.

    Only all-reduces are compressed.
    """
    dtype = _SENT_AS.get(compression, message.dtype)
    shrinks = not message.dtype.is_integer and dtype.element_bytes < message.dtype.element_bytes
    if message.collective is not Collective.ALL_REDUCE or not shrinks:
        return message
    return _of(message, message.element_count, dtype)


def _runs(messages: Sequence[Operation], fusion_bytes: int) -> Iterator[range]:
    """Neighbours that go together: equal all-reduces but for their size, in `fusion_bytes`."""
    first, run_bytes = 0, 0
    for place, message in enumerate(messages):
        joins = (
            place > first
            and message.collective is Collective.ALL_REDUCE
            and replace(message, size_bytes=0) == replace(messages[first], size_bytes=0)
            and run_bytes + message.message_bytes <= fusion_bytes
        )
        if not joins:
            if place > first:
                yield range(first, place)
            first, run_bytes = place, 0
        run_bytes += message.message_bytes
    if messages:
        yield range(first, len(messages))


def _carrier(messages: Sequence[Operation], run: range, setup: Setup) -> Carrier:
    message = messages[run.start]
    if message.collective is not Collective.ALL_REDUCE:
        return Carrier(first=run.start, end=run.stop, parts=(message,), is_copied=False)
    sent = sent_as(message, setup.compression)
    counts = _cut(sum(messages[place].element_count for place in run), setup.chunk_count)
    return Carrier(
        first=run.start,
        end=run.stop,
        parts=tuple(_of(sent, count, sent.dtype) for count in counts),
        is_copied=len(run) > 1 or sent != message,
    )


def _of(message: Operation, element_count: int, dtype: DType) -> Operation:
    """The same call for so many elements of this format."""
    return replace(message, size_bytes=element_count * dtype.element_bytes, dtype=dtype)


def _cut(element_count: int, chunk_count: int) -> tuple[int, ...]:
    """Elements of each part: as equal as whole numbers allow, and none without any."""
    part_count = min(chunk_count, element_count)
    least, longer_count = divmod(element_count, part_count)
    return tuple(least + (part < longer_count) for part in range(part_count))
