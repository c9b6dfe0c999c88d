"""Ours beside HolisticTraceAnalysis on real traces, and where each difference comes from.

Four real traces, and a generated job of four ranks with a straggler and a known truth. The window
is HTA's: from the first kernel to the end of the last. `swept` are the same numbers found here from
the JSON itself by a sweep over exact times, without any code of ours or of HTA. A difference to HTA
is taken apart by further sweeps: `set` is what changes when only the kernels count that HTA keeps
(of two steps and more, those whose launch it finds before the end of the last step); `us` when
times are cut as HTA 0.5 cuts them, to floats and then to whole microseconds, starts up and ends
down. That leaves kernels of less than a microsecond negative, each taking up to 1 us away, where
HTA does not die of it. `rest` is what no sweep explains: the run ends with status 1 if it is more
than those microseconds and a few, or if ours and `swept` differ at all. `steps` are our own numbers
within the step windows on the device, which metrics are made of.

TraceLens is left out: what has this name on the package index is another project. Its interval
mathematics gives the exact sums.

    python benchmarks/trace_peers.py
    python benchmarks/trace_peers.py --peer-python ~/hta/bin/python
"""

import argparse
import gzip
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from math import ceil, floor
from pathlib import Path
from typing import Any

import numpy as np
from fresh_process import environment_of, run_fresh
from generated_events import Style
from generated_job import Shape
from generated_traces import generate
from generated_truth import Sweep
from numpy.typing import NDArray

from evaluator.traces.analysis.breakdown import StepParts, step_parts
from evaluator.traces.analysis.collectives import match
from evaluator.traces.analysis.stragglers import stragglers
from evaluator.traces.model import Activity, RankTrace, StepWindows
from evaluator.traces.readers.read import read_folder

HERE = Path(__file__).parent
CORPUS = HERE.parents[1] / "shared" / "data" / "traces" / "kineto"
REAL = ("a100_ddp_2rank_rank0", "mi300_ddp8_rank0", "h100_qwen0.5b", "v100_ns_resolution")
PEER = ("HolisticTraceAnalysis==0.5.0", "pandas<3")
KINDS = {"kernel": 0, "gpu_memcpy": 2, "gpu_memset": 3}
ROWS = ("window", "compute", "communication", "overlap", "other busy", "idle", "top kernel")
EXPLAINED_US = 5.0
WORK = (Activity.COMPUTE, Activity.COMMUNICATION, Activity.COPY, Activity.FILL)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One piece of device work as the file tells it, microseconds."""

    name: str
    kind: int
    start_us: Decimal
    end_us: Decimal
    correlation: object


def kernels(events: Sequence[Mapping[str, object]]) -> list[Kernel]:
    """All device work in a file."""
    found = []
    for event in events:
        if event.get("ph") != "X" or str(event.get("cat", "")) not in KINDS:
            continue
        name, arguments = str(event["name"]), event.get("args")
        assert isinstance(arguments, dict)
        kind = KINDS[str(event["cat"])]
        if kind == 0 and ("nccl" in name.lower() or "Collective name" in arguments):
            kind = 1
        start, duration = Decimal(str(event["ts"])), Decimal(str(event["dur"]))
        found.append(Kernel(name, kind, start, start + duration, arguments.get("correlation")))
    return found


def kept_by_hta(
    all_kernels: Sequence[Kernel], events: Sequence[Mapping[str, object]]
) -> list[Kernel]:
    """The device work that HTA looks at, from the rules in its documentation and behaviour."""
    steps = [
        event
        for event in events
        if str(event.get("name", "")).startswith("ProfilerStep#")
        and event.get("cat") == "user_annotation"
    ]
    if len({str(step["name"]) for step in steps}) < 2:
        return list(all_kernels)
    last = max(Decimal(str(step["ts"])) + Decimal(str(step["dur"])) for step in steps)
    launched = set()
    for event in events:
        arguments, is_call = event.get("args"), event.get("cat") in {"cuda_runtime", "cuda_driver"}
        if is_call and isinstance(arguments, dict) and Decimal(str(event["ts"])) <= last:
            launched.add(arguments.get("correlation"))
    return [kernel for kernel in all_kernels if kernel.correlation in launched]


def cut_to_us(all_kernels: Sequence[Kernel]) -> list[Kernel]:
    """Times as HTA has them: floats of 64 bits, then whole microseconds, starts up, ends down."""
    cut = []
    for one in all_kernels:
        start = float(one.start_us)
        end = start + float(one.end_us - one.start_us)
        cut.append(replace(one, start_us=Decimal(ceil(start)), end_us=Decimal(floor(end))))
    return cut


def swept(all_kernels: Sequence[Kernel]) -> dict[str, float]:
    """The numbers of a table in microseconds, by a sweep over edges."""
    rows = [
        (int(one.start_us * 1000), int(max(one.start_us, one.end_us) * 1000), one.kind)
        for one in all_kernels
    ]
    edges: NDArray[np.int64] = np.array(rows, np.int64)
    parts = Sweep(edges).parts(int(edges[:, 0].min()), int(edges[:, 1].max()))
    by_name: Counter[str] = Counter()
    for one in all_kernels:
        if one.kind < 2:
            by_name[one.name] += one.end_us - one.start_us  # type: ignore[assignment] # decimals
    return {
        "window": parts["wall"] / 1e3,
        "compute": parts["compute_busy"] / 1e3,
        "communication": parts["comm_busy"] / 1e3,
        "overlap": parts["overlap"] / 1e3,
        "other busy": (parts["busy"] - parts["compute_busy"]) / 1e3,
        "idle": parts["idle"] / 1e3,
        "top kernel": float(max(by_name.values())),
    }


def hta(told: Mapping[str, object], rank: int) -> dict[str, float]:
    """HTA's numbers of one rank; a number that it died of is missing."""
    found: dict[str, float] = {}
    for row in _of_rank(told["temporal"], rank):
        found["window"] = row["kernel_time(us)"]
        found["compute"] = row["compute_time(us)"]
        found["other busy"] = row["non_compute_time(us)"]
        found["idle"] = row["idle_time(us)"]
    tables = told["kernels"]
    if isinstance(tables, list):
        names = [row for row in _of_rank(tables[1], rank) if row["name"] != "others"]
        kernels_only = [row["sum (us)"] for row in names if row["kernel_type"] != "MEMORY"]
        found["top kernel"] = max(kernels_only)
        if {row["rank"] for row in tables[1]} == {rank}:
            # the table of kinds is one for all ranks
            talking = [row for row in tables[0] if "COMMUNICATION" in row["kernel_type"]]
            hidden = [row for row in talking if "COMPUTATION" in row["kernel_type"]]
            found["communication"] = sum(row["sum"] for row in talking)
            found["overlap"] = sum(row["sum"] for row in hidden)
    return found


def _of_rank(table: object, rank: int) -> Iterator[dict[str, Any]]:
    if isinstance(table, list):
        yield from (row for row in table if row["rank"] == rank)


def ours(trace: RankTrace) -> tuple[dict[str, float], dict[str, float]]:
    """Our numbers over the whole of the device's work, and within its steps."""
    work = trace.spans.doing(*WORK)
    first, last = trace.spans.start_ns[work].min(), trace.spans.end_ns[work].max()
    whole = StepWindows.plain(np.zeros(1, np.int64), np.array([first]), np.array([last]))
    return _numbers(trace, step_parts(trace, whole)), _numbers(
        trace, step_parts(trace, trace.steps)
    )


def _numbers(trace: RankTrace, parts: StepParts) -> dict[str, float]:
    spans = trace.spans
    chosen = spans.doing(Activity.COMPUTE, Activity.COMMUNICATION)
    by_name = np.bincount(spans.name_id[chosen], weights=spans.duration_ns[chosen])
    hidden, exposed = parts.hidden_communication_ns, parts.exposed_communication_ns
    other = exposed + parts.exposed_copy_ns + parts.fill_ns
    return {
        "window": int(parts.window_ns.sum()) / 1e3,
        "compute": int(parts.compute_ns.sum()) / 1e3,
        "communication": int((hidden + exposed).sum()) / 1e3,
        "overlap": int(hidden.sum()) / 1e3,
        "other busy": int(other.sum()) / 1e3,
        "idle": int(parts.idle_ns.sum()) / 1e3,
        "top kernel": float(by_name.max()) / 1e3,
    }


def compared(path: Path, trace: RankTrace, told: Mapping[str, object], rank: int) -> list[str]:
    """Print the table of one rank; gives what is unexplained."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    document = json.loads(text, parse_float=Decimal)
    every = kernels(document["traceEvents"])
    kept = kept_by_hta(every, document["traceEvents"])
    cut = cut_to_us(kept)
    exact, in_set, in_us = swept(every), swept(kept), swept(cut)
    negative_count = sum(one.end_us < one.start_us for one in cut)
    whole, in_steps = ours(trace)
    theirs = hta(told, rank)
    print(
        f"\n{path.parent.name}/{path.name}: {len(every)} kernels and copies, of which HTA keeps "
        f"{len(kept)} and has {negative_count} end before they start"
    )
    print(
        f"{'us':<14} {'ours':>12} {'swept':>12} {'HTA':>10} {'HTA-ours':>9} {'set':>9} {'us':>8} "
        f"{'rest':>7} {'steps':>12}"
    )
    wrong = []
    for row in ROWS:
        line = f"{row:<14} {whole[row]:>12.3f} {exact[row]:>12.3f} "
        if row in theirs:
            rest = theirs[row] - in_us[row]
            line += f"{theirs[row]:>10.0f} {theirs[row] - whole[row]:>9.1f} "
            line += f"{in_set[row] - exact[row]:>9.1f} {in_us[row] - in_set[row]:>8.1f} "
            line += f"{rest:>7.1f} "
            if abs(rest) > EXPLAINED_US + negative_count:
                wrong.append(f"{path.name}: {row}: {rest} us of the difference are unexplained")
        else:
            line += f"{'none':>10} {'':>9} {'':>9} {'':>8} {'':>7} "
        in_step = "" if row == "top kernel" else f"{in_steps[row]:.3f}"
        print(f"{line}{in_step:>12}")
        if abs(whole[row] - exact[row]) > 0.0005:
            wrong.append(f"{path.name}: {row}: ours is {whole[row]}, swept {exact[row]}")
    for name, value in told.items():
        if isinstance(value, str):
            print(f"HTA's {name} died: {value}")
    return wrong


def answers(peer: Path, paths: Sequence[Path]) -> Mapping[str, object]:
    """HTA's numbers of one job."""
    output = run_fresh((peer, HERE / "hta_peer.py", "measure", *paths)).output
    told: dict[str, object] = json.loads(output.splitlines()[-1])
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="folder of the real traces")
    parser.add_argument("--peer-python", type=Path, help="a Python that has HTA already")
    asked = parser.parse_args()
    peer = asked.peer_python or environment_of(PEER, "hta-0.5.0")
    wrong = []
    for name in REAL:
        path = asked.corpus / f"{name}.json.gz"
        traces = read_folder(path, use_cache=False)
        wrong += compared(path, traces.ranks[0], answers(peer, [path]), 0)
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder), Shape(straggler=2), Style())
        paths = sorted(Path(folder).glob("rank*"))
        traces = read_folder(Path(folder), use_cache=False)
        told = answers(peer, paths)
        for rank in (0, 2):
            wrong += compared(paths[rank], traces.ranks[rank], told, rank)
        found = stragglers(traces, match(traces))
        named = found and found.straggler
        print(f"\nstraggler, which is rank 2: ours {named}, HTA {told['stragglers']}")
    for one in wrong:
        print(f"WRONG: {one}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
