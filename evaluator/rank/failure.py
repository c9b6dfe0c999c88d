"""What a rank says when it fails: where, what, and whether memory was the reason."""

import traceback
from collections.abc import Iterator
from pathlib import Path

import torch

from evaluator.rank.files import write_json
from evaluator.rank.progress import Phase

_MEMORY_TEXTS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "std::bad_alloc",
)
# Under a limit on the data segment a thread's stack is the first thing that does not fit.
_LIMITED_MEMORY_TEXTS = ("resource temporarily unavailable", "can't start new thread")


def write_failure(
    folder: Path, error: Exception, *, rank: int, phase: Phase, memory_limited: bool
) -> None:
    """Leave `rank{r}.error.json` for whoever has to tell why the trial failed."""
    shortage = _memory_shortage(error, memory_limited=memory_limited)
    told = shortage or error
    document = {
        "rank": rank,
        "phase": phase,
        "type": type(told).__qualname__,
        "message": str(told),
        "out_of_memory": shortage is not None,
        "traceback": "".join(traceback.format_exception(error)),
    }
    write_json(folder / f"rank{rank}.error.json", document)


def is_out_of_memory(error: BaseException, *, memory_limited: bool) -> bool:
    """Whether the error, or one that it was raised from, is a failed allocation."""
    return _memory_shortage(error, memory_limited=memory_limited) is not None


def _memory_shortage(error: BaseException, *, memory_limited: bool) -> BaseException | None:
    """Find the failed allocation; a pipeline schedule wraps what a stage raised."""
    texts = _MEMORY_TEXTS + (_LIMITED_MEMORY_TEXTS if memory_limited else ())
    for link in _chain(error):
        if isinstance(link, MemoryError | torch.OutOfMemoryError):
            return link
        if any(text in str(link).lower() for text in texts):
            return link
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        waiting += [link.__cause__, link.__context__]
