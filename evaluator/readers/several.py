"""Reads several trace files, each once: from a cache, here, or in processes side by side."""

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

from evaluator.readers.cache import cached, read_and_keep
from evaluator.readers.files import ReadLimits
from evaluator.readers.formats import read_file
from evaluator.readers.processes import read_in_processes
from evaluator.traces.rank import RankTrace

OnFile: TypeAlias = Callable[[int, int, Path], None]
"""Told after each file: how many are read, of how many, and which one it was."""

# What is read in the time that a process takes to start.
_WORTH_A_PROCESS_BYTES = 64 << 20
_USUAL_RATIO = 13
_MOST_PROCESSES = 16


def read_files(
    files: Sequence[Path], limits: ReadLimits, *, use_cache: bool, on_file: OnFile | None = None
) -> list[tuple[RankTrace, ...]]:
    """The traces of each file, in the same order; a file that lies alone may name no rank.

    Raises TraceError when one is refused, or a process that reads one is killed.
    """
    only_rank = 0 if len(files) == 1 else None
    read: dict[Path, tuple[RankTrace, ...]] = {}

    def done(file: Path, traces: tuple[RankTrace, ...]) -> None:
        read[file] = traces
        if on_file:
            on_file(len(read), len(files), file)

    for file in files if use_cache else ():
        traces = cached(file, limits, only_rank)
        if traces is not None:
            done(file, traces)
    rest = sorted((file for file in files if file not in read), key=_text_bytes)
    count = _process_count(rest)
    if count > 1:
        with closing(read_in_processes(rest, limits, use_cache=use_cache, count=count)) as reading:
            for file, traces in reading:
                done(file, traces)
        rest = []
    for file in rest:
        if use_cache:
            traces, _ = read_and_keep(file, limits, only_rank)
        else:
            traces = read_file(file, limits, only_rank)
        done(file, traces)
    return [read[file] for file in files]


def _process_count(files: Sequence[Path]) -> int:
    """How many processes pay, files by rising size; 1 where all but the last are read at once."""
    if sum(_text_bytes(file) for file in files[:-1]) < _WORTH_A_PROCESS_BYTES:
        return 1
    return min(len(files), len(os.sched_getaffinity(0)), _MOST_PROCESSES)


def _text_bytes(file: Path) -> int:
    """About how much there is to read; whether it can be read shows when it is."""
    try:
        return file.stat().st_size * (_USUAL_RATIO if file.suffix in {".gz", ".zst"} else 1)
    except OSError:
        return 0
