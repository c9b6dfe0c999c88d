"""The traces in the folder of one trial: found, proved to be this trial's own, and complete."""

import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evaluator.readers.job import read_traces
from evaluator.traces.errors import TraceError
from evaluator.traces.job import TraceSet
from evaluator.traces.rank import RankTrace

CLOCK_SKEW_NS = 1_000_000_000
"""How far the clocks of two nodes may be apart."""

_SINCE_EPOCH_NS = 10**18
"""Later than this, in 2001, a time is on the clock of the world; earlier, on one of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFolder:
    """A folder that was empty at the launch, `launched_ns` after the Unix epoch."""

    path: Path
    launched_ns: int

    def traces(self, patterns: Sequence[str], rank_count: int, *, besides: str) -> TraceSet | str:
        """The traces of all ranks, or what is missing; raises `TraceError` for one it refuses.

        A file of the name `besides` is no trace.
        """
        paths = self._found(patterns, besides)
        if not paths:
            wanted = " or ".join(patterns)
            return (
                f"the script ended with status 0 but left no trace: no {wanted} in TRACE_DIR; "
                f"write a trace of each rank there, or {besides} with the step times and set "
                "[measure] profiled_steps = 0; see docs/recipes.md"
            )
        for path in paths:
            self.refuse_foreign(path)
        traces = read_traces(paths, only_rank=0 if rank_count == 1 else None)
        for trace in traces.ranks:
            self._refuse_old(trace)
        return _missing(traces, rank_count) or traces

    def refuse_foreign(self, path: Path) -> None:
        """Raise `TraceError` for a file that this trial has not written here itself."""
        if stat.S_ISLNK(self.path.lstat().st_mode):
            raise TraceError(path, "TRACE_DIR was replaced by a link")
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode) or self.path.resolve() not in path.resolve().parents:
            raise TraceError(path, "is a link; a trial's files must be its own")
        if not stat.S_ISREG(found.st_mode):
            raise TraceError(path, "is no regular file")
        if found.st_nlink > 1:
            raise TraceError(path, "is also linked from elsewhere; a trial's files must be its own")
        if found.st_mtime_ns < self.launched_ns:
            raise TraceError(path, "was written before this trial was launched")

    def _found(self, patterns: Sequence[str], besides: str) -> list[Path]:
        found = {path for pattern in patterns for path in self.path.glob(pattern)}
        return sorted(path for path in found if path.name != besides and not path.is_dir())

    def _refuse_old(self, trace: RankTrace) -> None:
        """Raise for a copy of an older trace: a copy's date is new, its clock is not."""
        starts_ns = [
            int(column[0]) for column in (trace.spans.start_ns, trace.steps.start_ns) if column.size
        ]
        if starts_ns and _SINCE_EPOCH_NS < min(starts_ns) < self.launched_ns - CLOCK_SKEW_NS:
            early_s = (self.launched_ns - min(starts_ns)) / 1e9
            raise TraceError(
                self.path,
                f"the trace of rank {trace.rank} begins {early_s:.1f} s before the launch: "
                "it is of an older trial",
            )


def _missing(traces: TraceSet, rank_count: int) -> str | None:
    """What a set of traces lacks, in words."""
    if traces.world_size is not None and traces.world_size != rank_count:
        return (
            f"the traces are of a job of {traces.world_size} ranks, but [command] rank_count "
            f"gives {rank_count}"
        )
    present = [trace.rank for trace in traces.ranks]
    missing = [rank for rank in range(rank_count) if rank not in present]
    if missing:
        there = f"there are traces of rank {_listed(present)}"
        return f"rank {_listed(missing)} left no trace in TRACE_DIR; {there}"
    if len(present) > rank_count:
        there = f"there are traces of rank {_listed(present)}"
        return f"{there} in TRACE_DIR, but [command] rank_count gives {rank_count}"
    return None


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
