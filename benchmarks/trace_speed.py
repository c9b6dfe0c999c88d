"""What reading and measuring large traces costs: ours against HolisticTraceAnalysis, in one run.

Both get the same generated files (`generated_traces.py`), each answer from a fresh process whose
start and imports count: CPU seconds, wall, and peak memory of all its processes together. `read`
only parses; `measure` also computes every metric (of HTA: every analysis that has a counterpart
among our metrics); `again` does the same as `measure` once more, with the traces cached; the
columns are what our traces take in memory, and `above` is peak memory without them. `inside` is
CPU without start and imports. HTA is put into an environment of its own on first use. A stage of
HTA that does not end within `--peer-limit-s` is stopped: what it took by then is then the least
that it takes, and a stage that begins with the same work is not tried. Every run that fails says
why.

    python benchmarks/trace_speed.py
    python benchmarks/trace_speed.py --sizes 100000 --peer-python ~/hta/bin/python --json
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fresh_process import ProcessFailed, ProcessStopped, environment_of, run_fresh
from generated_events import Style
from generated_job import Shape
from generated_traces import generate, steps_for

from evaluator.metrics.base import Evidence
from evaluator.metrics.registry import measure_all
from evaluator.traces.model import TraceSet
from evaluator.traces.readers.files import STANDARD_LIMITS
from evaluator.traces.readers.read import read_folder

HERE = Path(__file__).parent
PEER = ("HolisticTraceAnalysis==0.5.0", "pandas<3")
STAGES = ("read", "measure", "again")
MB = 1e6
MILLION = 1_000_000
LIMITS_S = {"measure": 2.0, "again": 0.2}
LIMIT_ABOVE_MB = 300.0
LEAST_CPU_RATIO, LEAST_MEMORY_RATIO = 20.0, 5.0
"""Targets for a million events, and against HTA."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One stage on one set of files."""

    tool: str
    stage: str
    event_count: int
    packed: bool
    file_mb: float
    cpu_s: float
    inside_cpu_s: float | None
    wall_s: float
    peak_mb: float
    columns_mb: float | None = None
    metric_count: int | None = None
    stopped: bool = False
    """Whether it was stopped at the time limit, so that all it took is the least it takes."""

    @property
    def above_mb(self) -> float:
        """Peak memory without the columns."""
        return self.peak_mb - (self.columns_mb or 0.0)

    @property
    def what(self) -> str:
        """Stage and files in words."""
        return f"{self.stage} of {self.event_count:,} {'gz' if self.packed else 'plain'}"


def ours(stage: str, folder: Path) -> None:
    """Run one stage here and print what it took; this is the fresh process."""
    began_s = sum(os.times()[:4])
    traces = read_folder(folder, limits=STANDARD_LIMITS, use_cache=stage == "again")
    told: dict[str, float] = {"columns_mb": columns_mb(traces)}
    if stage != "read":
        told["metric_count"] = len(measure_all(Evidence(traces=traces)).values)
    told["cpu_s"] = sum(os.times()[:4]) - began_s
    print(json.dumps(told))


def columns_mb(traces: TraceSet) -> float:
    """What all columns of all ranks hold."""
    arrays = [
        column
        for trace in traces.ranks
        for column in (
            *trace.spans.columns().values(),
            trace.collectives.span,
            trace.collectives.kind,
            trace.collectives.group_id,
            trace.collectives.bytes,
            trace.collectives.sequence,
        )
    ]
    return float(sum(array.nbytes for array in arrays)) / MB


def measured(
    tool: str,
    stage: str,
    event_count: int,
    folder: Path,
    argv: Sequence[str | Path],
    limit_s: float = 1800.0,
) -> Row | None:
    """Run a stage in a fresh process; None when it failed, which is printed."""
    stopped = False
    try:
        cost = run_fresh(argv, limit_s)
    except ProcessStopped as error:
        cost, stopped = error.cost, True
    except ProcessFailed as error:
        print(f"{tool} {stage} of {folder.name} failed: {error}", file=sys.stderr)
        return None
    told = {} if stopped else json.loads(cost.output.splitlines()[-1])
    paths = sorted(folder.glob("rank*"))
    return Row(
        tool=tool,
        stage=stage,
        event_count=event_count,
        packed=paths[0].suffix == ".gz",
        file_mb=sum(path.stat().st_size for path in paths) / MB,
        cpu_s=cost.cpu_s,
        inside_cpu_s=told.get("cpu_s"),
        wall_s=cost.wall_s,
        peak_mb=cost.peak_bytes / MB,
        columns_mb=told.get("columns_mb"),
        metric_count=told.get("metric_count"),
        stopped=stopped,
    )


def measured_set(
    event_count: int, folder: Path, peer: Path | None, peer_limit_s: float
) -> Iterator[Row]:
    """All stages of both on one set of files."""
    for stage in STAGES:
        argv = (sys.executable, HERE / "trace_speed.py", "--stage", stage, folder)
        if stage == "again":
            # once to fill the cache
            measured("ours", stage, event_count, folder, argv)
        of_ours = measured("ours", stage, event_count, folder, argv)
        of_peer = None
        if peer and stage != "again":
            paths = sorted(folder.glob("rank*"))
            peer_argv: list[str | Path] = [peer, HERE / "hta_peer.py", stage, *paths]
            of_peer = measured("hta", stage, event_count, folder, peer_argv, peer_limit_s)
            if of_peer and of_peer.stopped:
                peer = None
        yield from (row for row in (of_ours, of_peer) if row)


def text(row: Row) -> str:
    kind = "gz" if row.packed else "plain"
    above = f"{row.above_mb:9.0f}" if row.columns_mb is not None else f"{'':>9}"
    inside = f"{'':>8}" if row.inside_cpu_s is None else f"{row.inside_cpu_s:8.2f}"
    return (
        f"{row.event_count:>10,} {kind:>5} {row.file_mb:8.1f}  {row.tool:>5} {row.stage:>8} "
        f"{row.cpu_s:8.2f} {inside} {row.wall_s:8.2f} {row.peak_mb:9.0f} {above}"
        f"{'  stopped here' if row.stopped else ''}"
    )


HEADER = (
    f"{'events':>10} {'file':>5} {'MB':>8}  {'tool':>5} {'stage':>8} {'CPU s':>8} {'inside':>8} "
    f"{'wall s':>8} {'peak MB':>9} {'above':>9}"
)


def conclusions(rows: Sequence[Row]) -> Iterator[str]:
    """Ratios of the two, growth from the smallest to the largest, and the targets."""
    by_key = {(row.tool, row.stage, row.event_count, row.packed): row for row in rows}
    for row in rows:
        peer = by_key.get(("hta", row.stage, row.event_count, row.packed))
        if row.tool == "ours" and peer:
            yield against_peer(row, peer)
    sizes = sorted({row.event_count for row in rows})
    for stage in STAGES:
        small = by_key.get(("ours", stage, sizes[0], False))
        large = by_key.get(("ours", stage, sizes[-1], False))
        if small and large and len(sizes) > 1 and small.inside_cpu_s and large.inside_cpu_s:
            grown = large.inside_cpu_s / small.inside_cpu_s
            more = sizes[-1] / sizes[0]
            yield f"{stage}: {more:.1f} times the events take {grown:.1f} times the CPU inside"
    for row in rows:
        if (
            row.tool == "ours"
            and row.event_count == MILLION
            and row.stage in LIMITS_S
            and row.inside_cpu_s is not None
        ):
            limit_s = LIMITS_S[row.stage]
            yield (
                f"{row.what}: {row.inside_cpu_s:.2f} s CPU of {limit_s} "
                f"({met(row.inside_cpu_s < limit_s)}), {row.above_mb:.0f} MB above the columns of "
                f"{LIMIT_ABOVE_MB:.0f} ({met(row.above_mb <= LIMIT_ABOVE_MB)})"
            )


def against_peer(row: Row, peer: Row) -> str:
    """How many times our CPU and memory the peer took, at least, for the same stage."""
    cpu, memory = peer.cpu_s / row.cpu_s, peer.peak_mb / row.peak_mb
    least = "more than " if peer.stopped else ""
    marks = ("", "")
    if row.event_count >= MILLION:
        marks = (f" ({met(cpu >= LEAST_CPU_RATIO)})", f" ({met(memory >= LEAST_MEMORY_RATIO)})")
    return (
        f"{row.what}: HTA takes {least}{cpu:.1f} times the CPU{marks[0]} and "
        f"{least}{memory:.1f} times the memory{marks[1]}"
    )


def met(fact: bool) -> str:
    return "met" if fact else "MISSED"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=[1_000_000, 5_000_000])
    parser.add_argument("--ranks", type=int, default=2, help="files that the events are spread on")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--peer-python", type=Path, help="a Python that has HTA already")
    parser.add_argument(
        "--peer-limit-s", type=float, default=600.0, help="when a stage of HTA is stopped"
    )
    parser.add_argument("--no-peer", action="store_true", help="ours alone")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--stage", nargs=2, metavar=("STAGE", "FOLDER"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.stage:
        ours(asked.stage[0], Path(asked.stage[1]))
        return
    peer = None if asked.no_peer else asked.peer_python or environment_of(PEER, "hta-0.5.0")
    rows = list[Row]()
    if not asked.json:
        print(HEADER)
    shape = Shape(
        ranks=asked.ranks, world=asked.ranks, layers=12, straggler=asked.ranks - 1, seed=asked.seed
    )
    for event_count in asked.sizes:
        steps = steps_for(shape, event_count // asked.ranks)
        for packed in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                generate(Path(folder), replace(shape, steps=steps), Style(gzip=packed))
                for row in measured_set(event_count, Path(folder), peer, asked.peer_limit_s):
                    rows.append(row)
                    if not asked.json:
                        print(text(row), flush=True)
    told = list(conclusions(rows))
    if asked.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "told": told}, indent=1))
    else:
        print("\n".join(["", *told]))


if __name__ == "__main__":
    main()
