"""Reads the trace of one rank that the PyTorch profiler wrote: Kineto JSON of every era."""

import re
from pathlib import Path

from evaluator.readers.chrome.stream import open_chrome
from evaluator.readers.files import STANDARD_LIMITS, ReadLimits
from evaluator.readers.kineto.columns import Columns
from evaluator.readers.kineto.events import Event, Header, header_of
from evaluator.readers.kineto.rank import RankReading
from evaluator.traces.errors import TraceError
from evaluator.traces.rank import RankTrace

_RANK_IN_NAME = re.compile(r"(?:rank|kineto_trace)[-_]?(\d{1,7})(?!\d)")
_LARGEST_WORLD = 10_000_000


def read_rank(
    path: Path, limits: ReadLimits = STANDARD_LIMITS, only_rank: int | None = None
) -> RankTrace:
    """The work, collectives and steps of one rank.

    Device work counts where the trace holds any, and the host's launches and waits with it; else
    the host's own work: ATen operators compute, `gloo:` spans communicate. The trace of a job on
    devices that holds none of their work has no work, as a caveat says. How steps are found is told
    in `steps`, collectives in `collectives`. The rank is taken from the trace, else
    from `rank<r>` in the file's name, else it is `only_rank`: the one rank of a job of one.

    Single damaged events are mended or left out, as caveats say. Raises TraceError when more of the
    file is damaged, or it passes a limit or names no rank.
    """
    file = open_chrome(path, limits, Event, mends=True)
    columns = Columns(path)
    events = columns.read(file)
    header = header_of(path, file.header)
    rank, world_size = _place(path, header, only_rank)
    caveats = list(columns.caveats(file))
    return RankReading(header, columns, events).trace(rank, world_size, caveats)


def _place(path: Path, header: Header, only_rank: int | None) -> tuple[int, int | None]:
    """Rank and world size."""
    rank, world_size = header.distributed.rank, header.distributed.world_size
    if rank is None:
        named = _RANK_IN_NAME.search(path.name)
        rank = int(named[1]) if named else only_rank
    if rank is None:
        raise TraceError(
            path, "names no rank, neither inside nor in its name; call it rank<number>.json"
        )
    if not 0 <= rank < (_LARGEST_WORLD if world_size is None else world_size) <= _LARGEST_WORLD:
        raise TraceError(path, f"is of rank {rank} in a world of {world_size}")
    return rank, world_size
