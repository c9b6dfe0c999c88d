"""What a rank says when it fails: where it was, the exception, and those that it came from.

It does not judge: whose doing a failure was is read from these words later.
"""

import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from evaluator.rank.files import error_name, write_json
from evaluator.rank.progress import Phase

MESSAGE_CHARS = 10_000
TRACEBACK_CHARS = 100_000


def write_failure(
    folder: Path, error: Exception, *, rank: int, phase: Phase, memory_limited: bool
) -> None:
    """Leave `rank{r}.error.json`: where the rank was, what it raised, and when (`failed_ns`)."""
    thrown, *causes = (_words(link) for link in _chain(error))
    document = {
        "rank": rank,
        "phase": phase,
        "failed_ns": time.time_ns(),
        **thrown,
        "causes": causes,
        "memory_limited": memory_limited,
        "traceback": "".join(traceback.format_exception(error))[:TRACEBACK_CHARS],
    }
    write_json(folder / error_name(rank), document)


def _words(error: BaseException) -> dict[str, str]:
    kind = type(error)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return {"type": f"{module}{kind.__qualname__}", "message": str(error)[:MESSAGE_CHARS]}


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from or while, and so on; a pipeline wraps a stage's error."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        waiting += [link.__context__, link.__cause__]
        if isinstance(link, BaseExceptionGroup):
            waiting += reversed(link.exceptions)
