"""Runs HolisticTraceAnalysis on trace files and prints JSON; started with a Python that has it.

    PYTHON benchmarks/hta_peer.py read|measure TRACE...

`read` parses; `measure` also asks for everything it has that our metrics have, one analysis after
the other, and prints the numbers of each rank. Knows nothing of cclsearch.
"""

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable

import pandas as pd
from hta.trace_analysis import TraceAnalysis


def main() -> None:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    stage, *paths = sys.argv[1:]
    began_s = sum(os.times()[:4])
    # by itself it leaves the last step out, which others do not
    traces = TraceAnalysis(dict(enumerate(paths)), "/", include_last_profiler_step=True)
    told = measured(traces) if stage == "measure" else {}
    told["cpu_s"] = sum(os.times()[:4]) - began_s
    print(json.dumps(told))


def measured(traces: TraceAnalysis) -> dict[str, object]:
    """Its numbers, or what went wrong, by analysis."""
    asked: dict[str, Callable[[], object]] = {
        "temporal": lambda: rows(traces.get_temporal_breakdown(visualize=False)),
        "overlap": lambda: rows(traces.get_comm_comp_overlap(visualize=False)),
        "kernels": lambda: [
            rows(table) for table in traces.get_gpu_kernel_breakdown(visualize=False)
        ],
        "idle": lambda: rows(traces.get_idle_time_breakdown(visualize=False)[0]),
        "launches": lambda: {
            rank: int(frame.shape[0])
            for rank, frame in traces.get_cuda_kernel_launch_stats(visualize=False).items()
        },
        "queue": lambda: rows(traces.get_queue_length_summary()),
        "memory": lambda: rows(traces.get_memory_bw_summary()),
        "stragglers": lambda: [int(rank) for rank in traces.get_potential_stragglers()],
    }
    told: dict[str, object] = {}
    for name, ask in asked.items():
        try:
            told[name] = ask()
        except Exception as error:  # noqa: BLE001 - whatever a peer dies of is its answer
            told[name] = f"{type(error).__name__}: {error}"
    return told


def rows(frame: pd.DataFrame | None) -> object:
    """A table as a list of rows; None when there is none."""
    return None if frame is None else json.loads(frame.reset_index().to_json(orient="records"))


if __name__ == "__main__":
    main()
