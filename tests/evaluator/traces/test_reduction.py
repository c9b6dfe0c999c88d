"""A reduced trace answers what is asked over all ranks as the whole one, to the nanosecond."""

import json
import shutil
import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest

from evaluator.launchers.cluster.launcher import sampled_ranks
from evaluator.metrics.base import Evidence
from evaluator.metrics.registry import measure_all
from evaluator.traces.analysis.breakdown import job_split
from evaluator.traces.analysis.collectives import exposures, match, volume, work_digest
from evaluator.traces.analysis.stragglers import stragglers
from evaluator.traces.model import TraceSet
from evaluator.traces.readers.read import read_folder, read_traces
from evaluator.traces.reduction import files_of_ranks, reduced
from records.errors import TraceError
from tests.support.traces import GLOO, SYNTHETIC, read

OF_KERNELS = {
    "average_memory_bandwidth",
    "compute_bound_fraction",
    "dominant_kernel_concentration",
    "host_wait_fraction",
    "kernel_launch_delay",
    "launches_per_step",
    "mean_sm_coverage",
    "memory_bound_fraction",
    "moe_fraction",
    "short_kernel_fraction",
}
"""Metrics that need the names of kernels, or who launched them."""


@pytest.fixture(params=[SYNTHETIC, GLOO], ids=["on devices", "on the host"])
def whole(request):
    return read(request.param)


def all_reduced(traces):
    return replace(traces, ranks=tuple(map(reduced, traces.ranks)))


def test_the_parts_of_every_step_of_every_rank_are_the_same(whole):
    parts, others = job_split(whole).parts, job_split(all_reduced(whole)).parts

    for one, other in zip(parts, others, strict=True):
        for field in fields(one):
            assert np.array_equal(getattr(one, field.name), getattr(other, field.name))


def test_who_waits_for_whom_and_what_collectives_cost_is_the_same(whole):
    small = all_reduced(whole)
    matches, others = match(whole), match(small)

    assert np.array_equal(matches.row, others.row)
    assert stragglers(whole, matches) == stragglers(small, others)
    traffic = volume(whole, matches)
    assert volume(small, others) == traffic
    assert exposures(small, others, traffic) == exposures(whole, matches, traffic)


def without_replays(found):
    """Metrics by name but those of replays, which take the launches of every rank."""
    every = {value.name: value.value for value in found.values}
    return {name: value for name, value in every.items() if not name.startswith("utility_")}


def test_metrics_of_kernels_are_those_of_the_ranks_that_were_kept_whole(whole):
    first, *others = whole.ranks
    mixed = replace(whole, ranks=(first, *map(reduced, others)))
    alone = Evidence(traces=TraceSet(ranks=(first,)))

    found, expected = measure_all(Evidence(traces=mixed)), measure_all(Evidence(traces=whole))

    values = {value.name: value.value for value in found.values}
    wanted = without_replays(expected)
    own = {value.name: value.value for value in measure_all(alone).values}
    assert values.keys() == wanted.keys()
    for name, value in values.items():
        assert value == pytest.approx((own if name in OF_KERNELS else wanted)[name]), name
    assert f"the traces of {len(others)} of {len(whole.ranks)} ranks were reduced" in str(
        mixed.caveats
    )


def test_without_any_whole_trace_kernels_are_unknown(whole):
    small = all_reduced(whole)
    evidence = Evidence(traces=small)

    assert small.whole is None
    assert evidence.kernels is evidence.launches is evidence.idle is None
    assert OF_KERNELS.isdisjoint(value.name for value in measure_all(evidence).values)
    assert work_digest(small, volume(small, match(small))) is None


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(SYNTHETIC, tmp_path / "job")
    return tmp_path / "job"


def reduce_in(folder, *, whole_ranks):
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "evaluator.traces.reduction"),
            *(folder, "node0.columns", whole_ranks, "0", "4", "rank*_trace.json.gz"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_a_node_keeps_some_traces_whole_and_puts_one_small_file_in_the_place_of_the_others(folder):
    expected = measure_all(Evidence(traces=read_folder(folder, use_cache=False)))

    told = reduce_in(folder, whole_ranks="1")

    assert (told["reduced_count"], told["whole_count"], told["unread"]) == (3, 1, [])
    assert told["bytes_after"] < told["bytes_before"]
    left = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    assert left == ["node0.columns", "rank1_trace.json.gz", "truth.json"]
    traces = read_folder(folder, use_cache=False)
    assert [(trace.rank, trace.reduced) for trace in traces.ranks] == [
        (0, True),
        (1, False),
        (2, True),
        (3, True),
    ]
    values = {value.name: value.value for value in measure_all(Evidence(traces=traces)).values}
    for name, value in without_replays(expected).items():
        if name not in OF_KERNELS:
            assert values[name] == pytest.approx(value, rel=1e-6), name


def test_a_trace_that_cannot_be_read_stays_where_it_is(folder):
    (folder / "rank2_trace.json.gz").write_bytes(b"\x1f\x8bcut")

    told = reduce_in(folder, whole_ranks="")

    assert told["reduced_count"] == 3
    assert "rank2_trace.json.gz" in told["unread"][0]
    assert (folder / "rank2_trace.json.gz").exists()


@pytest.mark.parametrize("damage", [lambda data: data[:-40], lambda data: data[:200] + b"x" * 9])
def test_columns_that_were_cut_or_changed_are_refused(folder, damage):
    reduce_in(folder, whole_ranks="")
    path = folder / "node0.columns"
    path.write_bytes(damage(path.read_bytes()))

    with pytest.raises(TraceError, match=r"node0\.columns"):
        read_traces([path])


def test_a_node_touches_the_files_of_its_own_ranks_only(tmp_path):
    for name in ("rank3_trace.json", "rank4_trace.json", "steps.json", "host_77.trace.json"):
        (tmp_path / name).touch()
    (tmp_path / "rank5_trace.json").symlink_to(tmp_path / "steps.json")

    found = files_of_ranks(tmp_path, ["*.json"], range(4, 8))

    assert [file.name for file in found] == ["rank4_trace.json"]


@pytest.mark.parametrize(
    ("world_size", "ranks"),
    [
        (4, (0, 1, 2, 3)),
        (16, (*range(8), 8)),
        (8192, (*range(8), *range(1024, 8192, 1024))),
    ],
)
def test_whole_traces_are_those_of_one_node_and_of_ranks_far_apart(world_size, ranks):
    assert sampled_ranks(world_size, 8) == ranks
