"""`cclsearch trace chakra`: what a reader of the schema finds, and how long a run of it takes.

What is written is read again as the same job, with its times or as a schedule without them.
"""

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from evaluator.traces.analysis.breakdown import job_split
from evaluator.traces.analysis.collectives import match
from evaluator.traces.readers.read import read_folder
from evaluator.whatif.questions import Question, WhatIf
from search.traces.chakra import write_chakra
from tests.support.chakra import (
    COLLECTIVE,
    COMPUTE,
    METADATA,
    read_chakra,
    run_us,
    without_times,
)

TRACES = Path(__file__).parents[2] / "data" / "traces"
SYNTHETIC, GLOO = TRACES / "synth_fsdp_4rank_straggler2", TRACES / "gloo_ddp_2rank"
ALL_GATHER, REDUCE_SCATTER = 2, 7


@pytest.fixture
def converted(cclsearch, tmp_path):
    """The nodes of each rank of a job with a straggler, and what the command printed."""
    to = tmp_path / "chakra"
    ended = cclsearch("trace", "chakra", SYNTHETIC, "--no-cache", "-o", to, "--json")
    assert (ended.code, ended.err) == (0, "")
    ranks = {rank: read_chakra(to / f"chakra.{rank}.et") for rank in range(4)}
    assert {version for version, _ in ranks.values()} == {"0.0.4"}
    return {rank: nodes for rank, (_, nodes) in ranks.items()}, json.loads(ended.out)


def test_a_run_of_the_nodes_takes_as_long_as_the_traced_job(converted, cclsearch):
    ranks, facts = converted
    breakdown = cclsearch("trace", "breakdown", SYNTHETIC, "--no-cache", "--json")

    steps = json.loads(breakdown.out)["steps"]
    windows_s = [row["window_s"] for row in steps if row["rank"] == 0]
    assert run_us(ranks) / 1e6 == pytest.approx(sum(windows_s), rel=0.002)
    assert facts["node_count"] == sum(map(len, ranks.values()))


def test_collectives_have_what_a_simulator_needs(converted):
    ranks, facts = converted
    metadata = ranks[0][0]
    (groups,) = json.loads(metadata.inputs[2:-2])
    found = [node for node in ranks[0] if node.type == COLLECTIVE]

    assert metadata.type == METADATA
    assert groups == {"pg_name": "0", "ranks": [0, 1, 2, 3]}
    assert {node.attributes["comm_type"] for node in found} == {ALL_GATHER, REDUCE_SCATTER}
    assert {node.attributes["pg_name"] for node in found} == {"0"}
    assert not any(node.attributes["is_cpu_op"] for node in found)
    assert facts["communication_count"] == sum(
        node.type == COLLECTIVE for nodes in ranks.values() for node in nodes
    )
    assert facts["fixed_count"] == 0


def test_an_all_gather_has_the_size_of_a_shard_and_a_reduce_scatter_of_the_whole(converted):
    sizes = {
        kind: {
            node.attributes["comm_size"]
            for node in converted[0][0]
            if node.attributes.get("comm_type") == kind
        }
        for kind in (ALL_GATHER, REDUCE_SCATTER)
    }

    assert {4 * size for size in sizes[ALL_GATHER]} == sizes[REDUCE_SCATTER]


def test_every_node_waits_only_for_nodes_of_its_rank(converted):
    for nodes in converted[0].values():
        numbers = {node.number for node in nodes}
        assert len(numbers) == len(nodes)
        assert all(numbers.issuperset(node.deps) for node in nodes)
        assert all(node.number not in node.deps for node in nodes)
        assert any(node.type == COMPUTE and node.attributes["is_cpu_op"] for node in nodes)


def test_traces_that_cannot_be_replayed_are_refused_and_nothing_is_written(cclsearch, tmp_path):
    ended = cclsearch("trace", "chakra", GLOO, "--no-cache", "-o", tmp_path / "chakra")

    assert ended.code == 2
    assert "no replay: the work of a rank did not run on a device" in ended.err
    assert not (tmp_path / "chakra").exists()


def test_a_folder_with_other_files_is_left_alone(cclsearch, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "mine.txt").touch()

    ended = cclsearch("trace", "chakra", SYNTHETIC, "--no-cache", "-o", folder, "--force")

    assert ended.code == 2
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]


QUESTIONS = {
    "faster links": Question(bandwidth={"communication": 2.0}),
    "faster kernels": Question(kernels={"compute": 2.0}),
    "no straggler": Question(no_straggler=True),
    "more nodes": Question(nodes=8),
}


def replay(folder):
    traces = read_folder(folder, use_cache=False)
    return WhatIf.of(traces, match(traces), ranks_per_node=2)


def parts_of(job):
    """What each step of each rank consists of."""
    return [
        {field.name: np.asarray(getattr(part, field.name)).tolist() for field in fields(part)}
        for part in job_split(job.traces).parts
    ]


@pytest.fixture(scope="module")
def job():
    return replay(SYNTHETIC)


@pytest.fixture(scope="module")
def written(job, tmp_path_factory):
    """The folder of its Chakra traces."""
    folder = tmp_path_factory.mktemp("job") / "chakra"
    write_chakra(job, folder)
    return folder


@pytest.fixture(scope="module")
def untimed(written, tmp_path_factory):
    """The folder of the same without times."""
    folder = tmp_path_factory.mktemp("untimed")
    for file in written.iterdir():
        (folder / file.name).write_bytes(without_times(file.read_bytes()))
    return folder


def test_a_job_that_is_read_back_has_the_same_times_and_answers(job, written):
    back = replay(written)

    assert back.measured_s == job.measured_s
    assert {name: back.answer(question) for name, question in QUESTIONS.items()} == {
        name: job.answer(question) for name, question in QUESTIONS.items()
    }
    assert parts_of(back) == parts_of(job)


def test_a_job_that_was_read_back_is_written_as_before(written, tmp_path):
    write_chakra(replay(written), tmp_path / "again")

    for file in written.iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()


def test_without_times_a_job_takes_as_long_as_a_run_of_its_nodes(untimed):
    ranks = {rank: read_chakra(untimed / f"chakra.{rank}.et")[1] for rank in range(4)}

    ends_ns = [trace.spans.end_ns.max() for trace in read_folder(untimed).ranks]

    assert max(ends_ns) / 1000 == pytest.approx(run_us(ranks), rel=1e-4)


def test_without_times_a_job_has_nearly_the_same_step_and_answers(job, untimed):
    scheduled = replay(untimed)

    assert scheduled.measured_s == pytest.approx(job.measured_s, rel=0.001)
    for question in QUESTIONS.values():
        expected = job.answer(question).utility
        assert scheduled.answer(question).utility == pytest.approx(expected, abs=0.005)


def test_commands_read_a_folder_of_chakra_traces(written, cclsearch):
    ended = cclsearch("trace", "breakdown", written)

    assert (ended.code, ended.err) == (0, "")
    assert "4 ranks; NVIDIA H100 80GB HBM3; chakra; 5 steps" in ended.out
