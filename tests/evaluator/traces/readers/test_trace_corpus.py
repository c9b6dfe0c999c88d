"""Whole traces: every recorded one is measured or refused, and known answers are found again."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from evaluator.metrics.base import Evidence
from evaluator.metrics.registry import measure_all
from evaluator.traces.analysis.breakdown import step_parts
from evaluator.traces.analysis.collectives import match
from evaluator.traces.analysis.kernels import top_kernels
from evaluator.traces.analysis.stragglers import stragglers
from evaluator.traces.model import StepWindows
from evaluator.traces.readers.read import read_folder
from tests.support.traces import SYNTHETIC

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"
JOBS = {
    "relative times": ("--straggler", "2", "--skew-us", "250"),
    "absolute times": ("--straggler", "1", "--era", "absolute", "--layout", "sorted", "--gzip"),
    "whole microseconds": ("--straggler", "3", "--era", "integer", "--python-frames", "0"),
    "tensor parallel experts": (
        *("--tensor-parallel", "2", "--experts", "--straggler", "2", "--skew-us", "4"),
    ),
}
WITHIN = 1e-3
"""Relative: what the synthetic truth must be met to."""
ONE_CLOCK_NS = 1_000
"""How far clocks may be apart that were brought together."""
PARTS = {
    "wall": "window_ns",
    "compute_busy": "compute_ns",
    "exposed_comm": "exposed_communication_ns",
    "overlap": "hidden_communication_ns",
    "exposed_memcpy": "exposed_copy_ns",
    "memset_only": "fill_ns",
    "idle": "idle_ns",
}


def run(script, *arguments):
    done = subprocess.run(
        [sys.executable, BENCHMARKS / script, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=JOBS)
def job(request, tmp_path_factory):
    """The folder of a generated job."""
    folder = tmp_path_factory.mktemp("job")
    run("generated_traces.py", folder, *JOBS[request.param])
    return folder


def test_every_recorded_trace_is_measured_and_adds_up_or_is_refused(recorded_data):
    told = run("trace_corpus.py", recorded_data / "traces")

    assert "29 measured, 13 refused, 0 wrong" in told


def test_parts_and_metrics_of_each_rank_of_a_generated_job_are_those_that_were_made(job):
    assert_parts_and_metrics(job)


def test_the_recorded_job_is_measured_as_it_was_made():
    assert_parts_and_metrics(SYNTHETIC)
    traces = read_folder(SYNTHETIC, use_cache=False)
    assert stragglers(traces, match(traces)).straggler == 2
    values, last = metrics(traces), truth(SYNTHETIC)["ranks"]["2"]["collectives"]
    busbw = last["reducescatter"]["busbw_GBps_median"]
    assert values["bw_reducescatter"] == pytest.approx(busbw, rel=WITHIN)
    total_bytes = sum(kind["total_bytes"] for kind in last.values())
    assert values["communication_volume"] == pytest.approx(total_bytes / 5)


def assert_parts_and_metrics(job):
    assert_parts(job)
    for path in sorted(job.glob("rank*")):
        traces = read_folder(path, use_cache=False)
        told = truth(job)["ranks"][str(traces.ranks[0].rank)]
        window, exposed = told["gpu_window"], told["gpu_window"]["exposed_comm"]
        in_steps = partial(sum_of, told["steps"])
        table = top_kernels(traces).job
        assert table.kernels[0].name == told["top_kernel"]
        assert table.kernel_s == pytest.approx(told["kernel_time_sum"] / 1e9)
        expected = {
            "avg_step_time": told["avg_step_time_inner"] / 1e9,
            "communication_fraction": in_steps("gpu_comm_busy") / in_steps("gpu_wall"),
            "compute_comm_overlap": window["overlap"] / window["comm_busy"],
            "dominant_kernel_concentration": told["top_kernel_fraction"],
            "mean_sm_coverage": told["sm_coverage_dur_weighted"],
            "average_memory_bandwidth": told["memcpy_GBps"],
            "total_communication_time": exposed / len(told["steps"]) / 1e9,
        }
        values = metrics(traces)
        found = {name: values.get(name) for name in expected}
        assert found == {name: pytest.approx(value, rel=WITHIN) for name, value in expected.items()}


def test_waits_and_transfers_of_mtia_are_no_compute(tmp_path):
    run("generated_traces.py", tmp_path, "--maker", "mtia", "--ranks", "2", "--world", "2")

    assert_parts(tmp_path)


def test_collectives_without_group_or_number_are_matched_where_every_rank_is_traced(tmp_path):
    run("generated_traces.py", tmp_path, "--no-groups", "--straggler", "2")

    traces = read_folder(tmp_path, use_cache=False)

    told, values = truth(tmp_path)["matched"], metrics(traces)
    assert values["bw_allreduce"] == pytest.approx(told["allreduce"]["busbw_GBps"], rel=WITHIN)
    assert values["bw_reducescatter"] == pytest.approx(
        told["reducescatter"]["busbw_GBps"], rel=WITHIN
    )
    assert stragglers(traces, match(traces)).straggler == 2
    assert any("name no group" in caveat for caveat in traces.caveats)


def test_the_bandwidth_of_a_generated_job_is_that_of_its_bus_whoever_waits(job):
    told = truth(job)["matched"]
    values = metrics(read_folder(job, use_cache=False))

    found = {kind: values.get(f"bw_{kind}") for kind in told}

    assert found == {
        kind: pytest.approx(own["busbw_GBps"], rel=WITHIN) for kind, own in told.items()
    }


def test_ranks_of_a_generated_job_wait_for_the_slow_one_as_long_as_they_did(job):
    told, traces = truth(job), read_folder(job, use_cache=False)

    found = stragglers(traces, match(traces))

    assert found.straggler == told["args"]["straggler"]
    waited_ns = {str(rank.rank): rank.waited_s * found.step_count * 1e9 for rank in found.ranks}
    assert waited_ns == pytest.approx(told["excess_wait"])


def test_ranks_of_a_generated_job_compute_as_unequally_as_they_did(job):
    told = [rank["gpu_window"]["compute_busy"] for rank in truth(job)["ranks"].values()]

    found = metrics(read_folder(job, use_cache=False))["load_imbalance_ratio"]

    assert found == pytest.approx(max(told) / min(told), rel=WITHIN)


def test_clocks_of_a_generated_job_are_brought_together(job):
    skews_ns = np.array([rank["clock_skew"] for rank in truth(job)["ranks"].values()])

    alignment = read_folder(job, use_cache=False).alignment

    aligned_ns = np.array(alignment.offsets_ns) + skews_ns
    assert np.ptp(aligned_ns) <= ONE_CLOCK_NS
    assert alignment.residual_ns <= ONE_CLOCK_NS


def sum_of(steps, key):
    return sum(step[key] for step in steps)


def truth(folder):
    return json.loads((folder / "truth.json").read_text())


def metrics(traces):
    return {value.name: value.value for value in measure_all(Evidence(traces=traces)).values}


def assert_parts(folder):
    for trace in read_folder(folder, use_cache=False).ranks:
        told = truth(folder)["ranks"][str(trace.rank)]
        assert_same(
            step_parts(trace, trace.steps),
            [{key: step.get(f"gpu_{key}", 0) for key in PARTS} for step in told["steps"]],
        )
        in_host = [{"memset_only": 0, **step["in_cpu_window"]} for step in told["steps"]]
        assert_same(step_parts(trace, trace.host_steps), in_host)
        whole = step_parts(trace, whole_window(trace))
        assert_same(whole, [{"memset_only": 0, **told["gpu_window"]}])


def whole_window(trace):
    start, end = trace.steps.start_ns[0], trace.steps.end_ns[-1]
    return StepWindows.plain(np.zeros(1, np.int64), np.array([start]), np.array([end]))


def assert_same(parts, told):
    for key, column in PARTS.items():
        expected = np.array([step.get(key, 0) for step in told])
        np.testing.assert_allclose(getattr(parts, column), expected, rtol=WITHIN, err_msg=key)
