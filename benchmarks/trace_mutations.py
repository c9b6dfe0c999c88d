"""Damages traces in thousands of ways and checks that each is measured or refused, never more.

Every mutant is read and measured in a worker process that has a limit of memory and is ended when
it takes too long. What may come out: values, with the parts of every step adding up to its window;
or a typed error. Anything else, that is another exception, a crash, a hang, or memory beyond the
limit, is wrong: the file is kept in the folder `--keep`, and the run ends with status 1.
A number always makes the same mutant of the same seeds: `--only 4711` runs one of them again.

    python benchmarks/trace_mutations.py --count 10000
"""

import argparse
import json
import resource
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
from mutated_traces import mutant, seeds

from evaluator.metrics.base import Evidence
from evaluator.metrics.registry import measure_all
from evaluator.traces.analysis.stragglers import stragglers
from evaluator.traces.readers.files import ReadLimits
from evaluator.traces.readers.read import read_folder
from records.errors import TraceError

CORPUS = Path(__file__).parents[2] / "shared" / "data" / "traces"
LIMITS = ReadLimits(file_bytes=64 << 20, decompressed_bytes=256 << 20, event_count=500_000)
ADDRESS_SPACE_BYTES = 6 << 30
MOST_MEMORY_BYTES = 1 << 30
TIMEOUT_S = 30.0
TABLES = ("kernels", "coverage", "launches", "idle", "matches", "bandwidths", "volume")
"""What evidence has beside metrics, for tables."""
READ_AGAIN = Path("/proc/self/clear_refs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one mutant."""

    number: int
    seed: str
    kind: str
    """values, refused or wrong."""
    words: str = ""
    seconds: float = 0.0
    peak_bytes: int = 0


def work() -> None:
    """A worker: numbers in, outcomes out, one per line."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    all_seeds = seeds(CORPUS)
    with TemporaryDirectory() as folder:
        for line in sys.stdin:
            print(json.dumps(asdict(outcome(int(line), all_seeds, Path(folder)))), flush=True)


def outcome(number: int, all_seeds: Mapping[str, bytes], folder: Path) -> Outcome:
    """Make one mutant, read it, and measure what was read."""
    seed, path = written(number, all_seeds, folder)
    READ_AGAIN.write_text("5", encoding="ascii")  # the peak is that of this mutant alone
    started = time.perf_counter()
    kind, words = judged(path)
    seconds, peak_bytes = time.perf_counter() - started, peak()
    path.unlink()
    if kind != "wrong" and peak_bytes > MOST_MEMORY_BYTES:
        kind, words = "wrong", f"took {peak_bytes >> 20} MiB"
    return Outcome(
        number=number, seed=seed, kind=kind, words=words, seconds=seconds, peak_bytes=peak_bytes
    )


def written(number: int, all_seeds: Mapping[str, bytes], folder: Path) -> tuple[str, Path]:
    """The name of the seed and the mutant on disk."""
    random = Random(number)
    seed = sorted(all_seeds)[number % len(all_seeds)]
    path = folder / f"rank{random.randrange(4)}_trace.json"
    path.write_bytes(mutant(all_seeds[seed], random))
    return seed, path


def judged(path: Path) -> tuple[str, str]:
    """What a file gives, and in which words."""
    try:
        traces = read_folder(path, limits=LIMITS, use_cache=False)
        evidence = Evidence(traces=traces)
        measures = measure_all(evidence)
        wrong = list(faults(evidence))
        for table in TABLES:
            getattr(evidence, table)
        if evidence.matches:
            stragglers(traces, evidence.matches)
    except TraceError as error:
        return "refused", str(error)
    except Exception:  # noqa: BLE001 - that nothing else comes out is what is checked
        return "wrong", traceback.format_exc()
    if wrong:
        return "wrong", "; ".join(wrong)
    return "values", str(len(measures.values))


def faults(evidence: Evidence) -> Iterator[str]:
    """Parts of a step that do not add up, or are less than nothing."""
    for parts in evidence.split.parts if evidence.split else ():
        columns = {
            "compute": parts.compute_ns,
            "exposed communication": parts.exposed_communication_ns,
            "copies": parts.exposed_copy_ns,
            "fills": parts.fill_ns,
            "idle": parts.idle_ns,
        }
        yield from (f"{name} is negative" for name, own in columns.items() if np.any(own < 0))
        if not np.array_equal(sum(columns.values()), parts.window_ns):
            yield "parts do not add up"


def peak() -> int:
    """Most memory since it was last reset, bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


class Worker:
    """A process that works off mutants, and is replaced when one ends it."""

    def __init__(self) -> None:
        self._process = self._started()

    def _started(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, __file__, "--worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, number: int) -> Outcome:
        """The outcome of one mutant, whatever happens to the process."""
        assert self._process.stdin and self._process.stdout
        late = threading.Event()

        def end() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(TIMEOUT_S, end)
        timer.start()
        try:
            self._process.stdin.write(f"{number}\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if line:
            return Outcome(**json.loads(line))
        status = self._process.wait()
        self._process = self._started()
        words = f"took over {TIMEOUT_S:.0f} s" if late.is_set() else f"ended with status {status}"
        return Outcome(number=number, seed="", kind="wrong", words=words)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def run_lane(numbers: Sequence[int]) -> list[Outcome]:
    worker = Worker()
    try:
        return [worker.run(number) for number in numbers]
    finally:
        worker.close()


def keep(outcomes: Sequence[Outcome], folder: Path) -> None:
    """Write the mutants that went wrong, and what was said."""
    folder.mkdir(exist_ok=True)
    all_seeds = seeds(CORPUS)
    for one in outcomes:
        with TemporaryDirectory() as here:
            _, path = written(one.number, all_seeds, Path(here))
            (folder / f"{one.number}.trace").write_bytes(path.read_bytes())
        (folder / f"{one.number}.txt").write_text(one.words, encoding="utf-8")


def report(outcomes: Sequence[Outcome], wall_s: float, folder: Path) -> int:
    """Print what came out; gives the exit status."""
    formats = sorted({one.seed for one in outcomes})
    counts = Counter((one.seed, one.kind) for one in outcomes)
    print(f"{'seed':<52} {'values':>7} {'refused':>8} {'wrong':>6}")
    for seed in formats:
        row = (counts[seed, kind] for kind in ("values", "refused", "wrong"))
        print(f"{seed or 'ended its worker':<52} {next(row):>7} {next(row):>8} {next(row):>6}")
    wrong = [one for one in outcomes if one.kind == "wrong"]
    for one in wrong[:20]:
        print(f"\nWRONG: {one.number} of {one.seed}\n{one.words}")
    if wrong:
        keep(wrong[:50], folder)
    total = Counter(one.kind for one in outcomes)
    slowest = max(outcomes, key=lambda one: one.seconds)
    largest = max(outcomes, key=lambda one: one.peak_bytes)
    print(
        f"\n{len(outcomes)} mutants in {wall_s:.0f} s: {total['values']} with values, "
        f"{total['refused']} refused, {total['wrong']} wrong; slowest {slowest.seconds:.2f} s "
        f"(number {slowest.number}), most memory {largest.peak_bytes >> 20} MiB "
        f"(number {largest.number})"
    )
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1_000, help="how many mutants")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--only", type=int, help="run one mutant here, by its number")
    parser.add_argument("--lanes", type=int, default=2, help="workers at a time")
    parser.add_argument("--keep", type=Path, default=Path("wrong"), help="folder for what is wrong")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        work()
        return 0
    if asked.only is not None:
        with TemporaryDirectory() as folder:
            one = outcome(asked.only, seeds(CORPUS), Path(folder))
        print(one.kind, one.seed, one.words, f"{one.seconds:.2f} s, {one.peak_bytes >> 20} MiB")
        return 1 if one.kind == "wrong" else 0
    numbers = range(asked.first, asked.first + asked.count)
    started = time.perf_counter()
    with ThreadPoolExecutor(asked.lanes) as lanes:
        done = lanes.map(run_lane, [numbers[lane :: asked.lanes] for lane in range(asked.lanes)])
        outcomes = [one for lane in done for one in lane]
    return report(outcomes, time.perf_counter() - started, asked.keep)


if __name__ == "__main__":
    sys.exit(main())
