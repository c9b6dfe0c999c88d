"""Reads and measures every trace under a folder, and checks that no instant is lost or told twice.

One line per job, that is a folder of `rank*` files, or a file by itself: format, ranks, spans,
steps, how many metrics have a value and how many a reason, and the parts of the time in percent.
For every step of every rank, or all of its time where no step is marked, compute + exposed
communication + exposed copies + fills + idle must be the window, to the nanosecond, and each part
what a sweep over the edges of the spans finds, which shares no code with the product. A file that
is no trace must be refused with a typed error. Anything else is wrong and ends with status 1.

    python benchmarks/trace_corpus.py
    python benchmarks/trace_corpus.py FOLDER --reasons
"""

import argparse
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from generated_truth import Sweep

from evaluator.metrics.base import Evidence
from evaluator.metrics.registry import Measures, measure_all
from evaluator.traces.analysis.breakdown import JobSplit, StepParts, job_windows
from evaluator.traces.intervals import Intervals
from evaluator.traces.model import Activity, RankTrace, StepWindows, TraceSet
from evaluator.traces.readers.files import STANDARD_LIMITS
from evaluator.traces.readers.read import read_folder
from records.errors import TraceError

CORPUS = Path(__file__).parents[2] / "shared" / "data" / "traces"
HEADER = (
    f"{'what':<44} {'format':>6} {'ranks':>5} {'spans':>8} {'steps':>5} {'values':>6} "
    f"{'reasons':>7} {'compute':>8} {'exposed':>8} {'copies':>7} {'fills':>6} {'idle':>6}"
)


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of one job: traces and their metrics, or why they were refused."""

    name: str
    traces: TraceSet | None = None
    measures: Measures | None = None
    split: JobSplit | None = None
    refused: str = ""
    wrong: tuple[str, ...] = field(default=())


def jobs(folder: Path) -> Iterator[Path]:
    """Folders of ranks, and all other files under a folder."""
    ranks = [path for path in folder.iterdir() if path.is_file() and path.name.startswith("rank")]
    if len(ranks) > 1:
        yield folder
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            yield from jobs(path)
        elif not path.name.startswith(".") and (len(ranks) < 2 or path not in ranks):
            yield path


def checked(path: Path, name: str) -> Checked:
    """Read and measure one job."""
    try:
        traces = read_folder(path, limits=STANDARD_LIMITS, use_cache=False)
    except TraceError as error:
        return Checked(name, refused=str(error).removeprefix(f"{path}: "))
    except Exception:  # noqa: BLE001 - that nothing else comes out is what is checked
        return Checked(name, wrong=(traceback.format_exc(),))
    try:
        evidence = Evidence(traces=traces)
        measures, split = measure_all(evidence), evidence.split
    except Exception:  # noqa: BLE001 - as above
        return Checked(name, traces, wrong=(traceback.format_exc(),))
    return Checked(name, traces, measures, split, wrong=tuple(faults(traces, split)))


def faults(traces: TraceSet, split: JobSplit | None) -> Iterator[str]:
    """What is wrong with the parts of any step of any rank."""
    windows = job_windows(traces)
    if split is None or windows is None:
        return
    for trace, parts, own in zip(traces.ranks, split.parts, windows, strict=True):
        total_ns = (
            parts.compute_ns
            + parts.exposed_communication_ns
            + parts.exposed_copy_ns
            + parts.fill_ns
            + parts.idle_ns
        )
        if not np.array_equal(total_ns, parts.window_ns):
            yield f"rank {trace.rank}: parts give {total_ns} ns of {parts.window_ns}"
        yield from differences(trace, parts, own)


def differences(trace: RankTrace, parts: StepParts, windows: StepWindows) -> Iterator[str]:
    """Where a sweep over the edges finds other parts."""
    sweep = Sweep(edges(trace))
    for row, (start_ns, end_ns) in enumerate(
        zip(windows.start_ns.tolist(), windows.end_ns.tolist(), strict=True)
    ):
        swept = sweep.parts(start_ns, end_ns)
        told = {
            "wall": parts.window_ns[row],
            "compute_busy": parts.compute_ns[row],
            "exposed_comm": parts.exposed_communication_ns[row],
            "overlap": parts.hidden_communication_ns[row],
            "exposed_memcpy": parts.exposed_copy_ns[row],
            "memset_only": parts.fill_ns[row],
            "idle": parts.idle_ns[row],
        }
        for name, value in told.items():
            if int(value) != swept[name]:
                yield f"rank {trace.rank} step {row}: {name} is {value}, swept {swept[name]}"


def edges(trace: RankTrace) -> "np.ndarray[tuple[int, int], np.dtype[np.int64]]":
    """Start, end and kind of all that ran."""
    kinds: tuple[Intervals, ...] = (
        trace.computing(),
        trace.communicating(),
        trace.covered(Activity.COPY),
        trace.covered(Activity.FILL),
    )
    return np.concatenate(
        [
            np.column_stack((own.start_ns, own.end_ns, np.full_like(own.start_ns, number)))
            for number, own in enumerate(kinds)
        ]
    )


def line(one: Checked) -> str:
    """One job in a line."""
    if one.refused:
        return f"{one.name:<44} refused: {one.refused[:150]}"
    if one.traces is None or one.measures is None:
        return f"{one.name:<44} WRONG"
    ranks = one.traces.ranks
    text = (
        f"{one.name:<44} {ranks[0].source:>6} {len(ranks):>5} "
        f"{sum(trace.spans.count for trace in ranks):>8} {one.traces.common_steps.size:>5} "
        f"{len(one.measures.values):>6} {len(one.measures.absent):>7} "
    )
    if one.split is None or not one.split.mean.window_s:
        return text + "no window"
    mean = one.split.mean
    shares = (
        100 * part / mean.window_s
        for part in (
            mean.compute_s,
            mean.exposed_communication_s,
            mean.exposed_copy_s,
            mean.fill_s,
            mean.idle_s,
        )
    )
    return text + " ".join(
        f"{share:{width}.2f}" for share, width in zip(shares, (8, 8, 7, 6, 6), strict=True)
    )


def report(all_checked: Sequence[Checked]) -> int:
    """Say what was wrong; gives the exit status."""
    wrong = [one for one in all_checked if one.wrong]
    for one in wrong:
        print(f"\nWRONG: {one.name}", *one.wrong[:5], sep="\n  ")
    read_count = sum(one.measures is not None for one in all_checked)
    refused_count = sum(bool(one.refused) for one in all_checked)
    print(
        f"\n{len(all_checked)} jobs and files: {read_count} measured, {refused_count} refused, "
        f"{len(wrong)} wrong"
    )
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=CORPUS)
    parser.add_argument("--reasons", action="store_true", help="say why metrics have no value")
    asked = parser.parse_args()
    print(HEADER)
    all_checked = []
    for path in jobs(asked.folder):
        one = checked(path, str(path.relative_to(asked.folder)))
        print(line(one), flush=True)
        for caveat in one.traces.caveats if one.traces and asked.reasons else ():
            print(f"    caveat: {caveat}")
        for name, reason in one.measures.absent.items() if one.measures and asked.reasons else ():
            print(f"    {name}: {reason}")
        all_checked.append(one)
    return report(all_checked)


if __name__ == "__main__":
    sys.exit(main())
