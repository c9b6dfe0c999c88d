"""What keeping a set of traces costs: its size in the store, the time, and who waits for it.

The ranks of a made-up job (`generated_traces.py`) leave their traces, plain, as ours do; or take
those of a folder. They are kept as a trial's files are, and read back. Beside them: how long a
profiler takes to write as much, which the trial has waited for already; what gzip makes of the
first trace; and how long it takes another process to record a finished trial, alone and while the
traces are being kept. Everything that is written lies in a temporary folder and goes.

    python benchmarks/trace_storage.py
    python benchmarks/trace_storage.py --gigabytes 2 --json
    python benchmarks/trace_storage.py --traces FOLDER
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

from generated_events import Style
from generated_job import Shape
from generated_traces import generate, steps_for

from evaluator.traces.readers.files import LARGE_LIMITS
from evaluator.traces.readers.read import read_traces
from records.store.artifacts import Artifacts
from records.store.store import Store
from records.trial import Artifact
from tests.support.records import study, trial

GB, MB = 1e9, 1e6
LEAST_RATIO = 10.0
PROBE_EVENTS = 200_000
PROBED_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Seconds, and bytes; a rate is of the bytes of the traces as the ranks wrote them."""

    files: int
    trace_bytes: int
    disk_bytes: int
    gzip_ratio: float
    gzip_s_per_gb: float
    profiler_s_per_gb: float
    keep_s: float
    keep_cpu_s: float
    check_s: float
    parse_plain_s: float
    parse_kept_s: float
    finish_alone_ms: float
    finish_meanwhile_ms: float

    @property
    def ratio(self) -> float:
        """How much smaller the traces are in the store."""
        return self.trace_bytes / self.disk_bytes


def measured(folder: Path, traces: Sequence[Path]) -> Result:
    names = {path: path.name for path in traces}
    trace_bytes = sum(path.stat().st_size for path in traces)
    gzip_ratio, gzip_s = gzipped(traces[0])
    alone = finish_times(folder / "alone", PROBED_S)
    with Meanwhile(folder / "meanwhile") as probe:
        wall, cpu = time.perf_counter(), time.process_time()
        kept = Artifacts(folder / "kept").keep_all(names)
        keep_s, keep_cpu_s = time.perf_counter() - wall, time.process_time() - cpu
        meanwhile = probe.end()
    artifacts = Artifacts(folder / "kept")
    return Result(
        files=len(traces),
        trace_bytes=trace_bytes,
        disk_bytes=sum(file.disk_bytes for file in artifacts.all()),
        gzip_ratio=gzip_ratio,
        gzip_s_per_gb=gzip_s,
        profiler_s_per_gb=profiler_s_per_gb(folder),
        keep_s=keep_s,
        keep_cpu_s=keep_cpu_s,
        check_s=checked_s(artifacts, kept),
        parse_plain_s=parsed_s(traces[:1]),
        parse_kept_s=parsed_s([artifacts.path(kept[0].digest)]),
        finish_alone_ms=median(alone) * 1e3,
        finish_meanwhile_ms=median(meanwhile or alone) * 1e3,
    )


def gzipped(path: Path) -> tuple[float, float]:
    """How much smaller gzip's quickest level makes a file, and its seconds for each GB."""
    packer, packed_bytes, begun = zlib.compressobj(1), 0, time.perf_counter()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            packed_bytes += len(packer.compress(piece))
    packed_bytes += len(packer.flush())
    size = path.stat().st_size
    return size / packed_bytes, (time.perf_counter() - begun) / size * GB


def profiler_s_per_gb(folder: Path) -> float:
    """How long torch's profiler takes to write what it has recorded of many small operators."""
    import torch

    row = torch.zeros(8)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(PROBE_EVENTS):
            row.add_(1)
    path, begun = folder / "profiled.json", time.perf_counter()
    profiler.export_chrome_trace(str(path))
    return (time.perf_counter() - begun) / path.stat().st_size * GB


def checked_s(artifacts: Artifacts, kept: Sequence[Artifact]) -> float:
    begun = time.perf_counter()
    for artifact in kept:
        artifacts.check(artifact.digest)
    return time.perf_counter() - begun


def parsed_s(paths: Sequence[Path]) -> float:
    begun = time.perf_counter()
    read_traces(paths, LARGE_LIMITS, only_rank=0)
    return time.perf_counter() - begun


def finish_times(root: Path, seconds: float, until: Connection | None = None) -> list[float]:
    """How long each of the trials took to be recorded that a store was given in this time."""
    times: list[float] = []
    with closing(Store(root)) as store:
        store.create("one", study(), "benchmark")
        end = time.perf_counter() + seconds
        while until.poll() is False if until else time.perf_counter() < end:
            begun = time.perf_counter()
            store.finish("one", trial(len(times), 0.5, {"n": len(times)}))
            times.append(time.perf_counter() - begun)
            time.sleep(0.01)
    return times


class Meanwhile:
    """Another process that records trials until it is told to end."""

    def __init__(self, root: Path) -> None:
        context = get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_record, args=(root, theirs))

    def __enter__(self) -> "Meanwhile":
        self._process.start()
        self._ours.recv()
        return self

    def end(self) -> list[float]:
        """Have it end, and give how long each of its trials took."""
        self._ours.send(None)
        times: list[float] = self._ours.recv()
        return times

    def __exit__(self, *_error: object) -> None:
        self._process.terminate()
        self._process.join()


def _record(root: Path, told: Connection) -> None:
    told.send("begun")
    told.send(finish_times(root, 0.0, told))


def written(folder: Path, size_bytes: float, ranks: int) -> list[Path]:
    """Traces of a made-up job of about so many bytes in all."""
    shape = Shape(ranks=ranks)
    events = int(size_bytes / ranks / 255)
    generate(folder, replace(shape, steps=steps_for(shape, events)), Style())
    return sorted(folder.glob("rank*_trace.json"))


def lines(result: Result) -> list[str]:
    size_gb = result.trace_bytes / GB
    share = result.keep_s / (result.profiler_s_per_gb * size_gb)
    return [
        f"{result.files} traces of {result.trace_bytes / MB:.0f} MB take "
        f"{result.disk_bytes / MB:.0f} MB: {result.ratio:.1f} times smaller "
        f"(gzip: {result.gzip_ratio:.1f} times, {result.gzip_s_per_gb:.1f} s/GB)",
        f"kept in {result.keep_s:.2f} s, {result.trace_bytes / MB / result.keep_s:.0f} MB/s, "
        f"{result.keep_cpu_s:.2f} s of CPU on {os.cpu_count()} cores; {share:.0%} of what a "
        "profiler takes to write them",
        f"checked in {result.check_s:.2f} s, {result.trace_bytes / MB / result.check_s:.0f} MB/s; "
        f"the first is parsed in {result.parse_kept_s:.2f} s, plain in "
        f"{result.parse_plain_s:.2f} s",
        f"a finished trial is recorded in {result.finish_alone_ms:.1f} ms, meanwhile in "
        f"{result.finish_meanwhile_ms:.1f} ms",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=0.25, help="of all traces together")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--traces", type=Path, help="a folder of plain traces instead")
    parser.add_argument("--folder", type=Path, help="where there is room [default: temporary]")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="cclsearch-traces-", dir=asked.folder))
    try:
        if asked.traces:
            traces = sorted(path for path in asked.traces.rglob("*.json") if path.is_file())
        else:
            traces = written(folder / "traces", asked.gigabytes * GB, asked.ranks)
        result = measured(folder, traces)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if asked.json:
        facts: Mapping[str, object] = {**asdict(result), "ratio": result.ratio}
        print(json.dumps(facts, indent=1))
    else:
        print("\n".join(lines(result)))
    if result.ratio < LEAST_RATIO:
        sys.exit(f"{LEAST_RATIO:.0f} times smaller was asked for")


if __name__ == "__main__":
    main()
