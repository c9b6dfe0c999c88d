"""What traces say about where a step goes, against answers by hand and recorded traces."""

from dataclasses import replace
from pathlib import Path

import pytest

from evaluator.evaluate import COLLECTIVES_KEPT, diagnose
from evaluator.metrics.base import Evidence
from evaluator.traces.analysis.breakdown import job_split
from evaluator.traces.model import Activity, CollectiveKind, RankGroup, TraceSet
from evaluator.traces.readers.read import read_traces
from evaluator.traces.testing import Span, rank_trace
from records.codec import from_json, to_json
from records.trial import Diagnosis
from tests.support.records import ENVIRONMENT

SYNTHETIC = Path(__file__).parents[1] / "data" / "traces" / "synth_fsdp_4rank_straggler2"
REDUCE, GATHER = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER


def call(start, end, ranks=(0, 1), kind=REDUCE, size=8):
    group = RankGroup(",".join(map(str, ranks)), tuple(ranks), len(ranks))
    return Span(
        Activity.COMMUNICATION, start, end, collective=kind, group=group, payload_bytes=size
    )


def compute(start, end):
    return Span(Activity.COMPUTE, start, end, lane=1)


def diagnosed(*spans_of_rank, steps=((0, 0, 100),), **changed):
    traces = TraceSet(
        ranks=tuple(
            rank_trace(spans, steps=steps, rank=rank) for rank, spans in enumerate(spans_of_rank)
        )
    )
    return diagnose(Evidence(traces=traces, **changed))


def ns(seconds):
    return round(seconds * 1e9)


def test_a_launch_without_traces_or_marked_steps_has_no_diagnosis():
    assert diagnose(Evidence()) is None
    assert diagnosed([compute(0, 10)], steps=()) is None


def test_each_collective_is_exposed_where_nothing_computes_and_hidden_beside_compute():
    found = diagnosed(
        [compute(0, 50), call(40, 70), call(80, 100, kind=GATHER, size=1024)],
        [compute(0, 60), call(40, 70), call(80, 100, kind=GATHER, size=1024)],
    )

    gather, reduce = found.collectives
    assert (gather.kind, ns(gather.exposed_s), ns(gather.hidden_s)) == ("all_gather", 20, 0)
    assert (reduce.kind, ns(reduce.exposed_s), ns(reduce.hidden_s)) == ("all_reduce", 15, 15)
    assert (gather.call_count, gather.bytes, gather.ranks) == (1.0, 1024.0, (0, 1))
    assert ns(found.exposed_communication_s) == 35
    assert ns(found.step_s) == 100


def test_groups_of_one_shape_are_one_line_and_others_are_not():
    neighbours = [[call(0, 10, ranks)] for ranks in ((0, 1), (0, 1), (2, 3), (2, 3))]
    across = [call(20, 60, ranks) for ranks in ((0, 2), (1, 3), (0, 2), (1, 3))]
    found = diagnosed(*([*near, far] for near, far in zip(neighbours, across, strict=True)))

    assert [(c.ranks, c.group_count, ns(c.exposed_s)) for c in found.collectives] == [
        ((0, 2), 2, 40),
        ((0, 1), 2, 10),
    ]


def test_groups_cross_nodes_by_the_ranks_of_a_node():
    def crossing(environment):
        (found,) = diagnosed(
            *([call(0, 10, (0, 1, 2))] for _ in range(3)), environment=environment
        ).collectives
        return found.crosses_nodes

    assert crossing(None) is None
    assert crossing(ENVIRONMENT) is True
    assert crossing(replace(ENVIRONMENT, ranks_per_node=4)) is False


def test_what_a_collective_does_not_list_is_told_without_it():
    unlisted = replace(call(0, 10, size=0), group=RankGroup("tp", None, 4))
    (found,) = diagnosed([unlisted, unlisted], environment=ENVIRONMENT).collectives

    assert (found.group_size, found.ranks, found.crosses_nodes) == (4, None, None)
    assert (found.call_count, found.bytes) == (2.0, None)


def test_steps_are_averaged_and_what_is_between_them_is_left_out():
    spans = [compute(0, 20), call(20, 40), call(140, 160), compute(200, 260), call(260, 300)]
    found = diagnosed(spans, spans, steps=((0, 0, 100), (1, 200, 300)))

    (reduce,) = found.collectives
    assert ns(reduce.exposed_s) == 30
    assert ns(found.compute_s) == 40


def test_waiting_for_a_neighbour_is_the_pipeline_bubble():
    found = diagnosed(
        [compute(0, 50), call(50, 60, kind=CollectiveKind.SEND)],
        [call(0, 60, kind=CollectiveKind.RECV), compute(60, 100)],
    )

    assert ns(found.pipeline_bubble_s) == 35
    assert diagnosed([call(0, 60)], [call(0, 60)]).pipeline_bubble_s is None


def test_the_slowest_rank_and_the_one_that_is_waited_for_are_told():
    found = diagnosed([compute(0, 40), call(40, 100)], [compute(0, 80), call(80, 100)])

    assert (found.slowest_rank, found.straggler) == (1, 1)
    assert found.slowest_over_mean == pytest.approx(80 / 60)
    assert found.straggler_share == pytest.approx(0.4)


def test_the_memory_is_that_of_the_rank_that_needed_most():
    rich = replace(ENVIRONMENT, device="cuda", memory_bytes=100)
    found = diagnosed([compute(0, 10)], peak_memory_bytes=(30, 70), environment=rich)

    assert (found.peak_memory_bytes, found.memory_bytes) == (70, 100)
    assert diagnosed([compute(0, 10)], peak_memory_bytes=(0,)).peak_memory_bytes is None


def test_resident_pages_of_a_host_are_not_held_against_its_limit_on_mapped_ones():
    rich = replace(ENVIRONMENT, device="cpu", memory_bytes=100)
    found = diagnosed([compute(0, 10)], peak_memory_bytes=(110,), environment=rich)

    assert (found.peak_memory_bytes, found.memory_bytes) == (110, None)


def test_only_the_largest_collectives_are_kept():
    spans = [call(10 * n, 10 * n + n, (0, n + 1), size=n) for n in range(1, 9)]
    found = diagnosed(spans)

    assert len(found.collectives) == COLLECTIVES_KEPT
    assert [ns(c.exposed_s) for c in found.collectives] == [8, 7, 6, 5, 4, 3]


def test_recorded_traces_name_the_known_straggler():
    traces = read_traces(sorted(SYNTHETIC.glob("rank*_trace.json.gz")))
    found = diagnose(Evidence(traces=traces))

    assert (found.slowest_rank, found.straggler) == (2, 2)
    assert found.slowest_over_mean > 1.1
    assert {c.kind for c in found.collectives} == {"all_gather", "reduce_scatter"}


@pytest.mark.parametrize(
    "pattern",
    [
        "kineto/gloo_ddp_2rank/rank*_trace.json.gz",
        "kineto/mi300_ddp8_rank0.json.gz",
        "kineto/b200_8rank_rank0_eager.json.gz",
        "xla/jax_cpu_4dev.trace.json.gz",
        "xla/vllm_tpu_2chip_a.trace.json.gz",
    ],
)
def test_recorded_traces_add_up(recorded_data, pattern):
    traces = read_traces(sorted((recorded_data / "traces").glob(pattern)))
    found = diagnose(Evidence(traces=traces))

    split = job_split(traces)
    assert found.step_s == pytest.approx(split.mean.window_s)
    assert found.collectives
    total_s = split.mean.communication_s
    assert all(0 <= c.exposed_s <= c.total_s <= total_s * (1 + 1e-9) for c in found.collectives)
    exposed_s = sum(c.exposed_s for c in found.collectives)
    assert exposed_s == pytest.approx(found.exposed_communication_s, rel=0.02)
    assert from_json(Diagnosis, to_json(found)) == found
