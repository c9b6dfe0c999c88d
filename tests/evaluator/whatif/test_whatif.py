"""Replays of traces: small jobs by hand, and generated jobs whose other runs are known."""

from dataclasses import replace

import numpy as np
import pytest

from evaluator.traces.analysis.collectives import match
from evaluator.traces.model import (
    Activity,
    CollectiveKind,
    Device,
    RankGroup,
    SpanWaits,
    TraceSet,
)
from evaluator.traces.readers.read import read_folder
from evaluator.traces.testing import Span, rank_trace
from evaluator.whatif.path import OnPath
from evaluator.whatif.questions import Question, Unanswered, WhatIf
from records.errors import StudyError
from tests.support import generated
from tests.support.traces import GLOO

DEVICE = Device(name="a GPU")
FASTER = Question(bandwidth={"communication": 2.0})
WITHIN = 0.01


def whatif(traces, ranks_per_node=None):
    found = WhatIf.of(traces, match(traces), ranks_per_node)
    assert isinstance(found, WhatIf)
    return found


def generate_job(**shape):
    return generated.generate_job(**{"steps": 3, "layers": 4} | shape)


def on_devices(*spans_of_rank, **same):
    ranks = [
        rank_trace(spans, rank=rank, world_size=len(spans_of_rank), device=DEVICE, **same)
        for rank, spans in enumerate(spans_of_rank)
    ]
    return TraceSet(ranks=tuple(ranks))


def work(start_us, end_us, lane=0, correlation=0, name="kernel"):
    return Span(
        Activity.COMPUTE,
        int(start_us * 1000),
        int(end_us * 1000),
        name=name,
        lane=lane,
        correlation=correlation,
    )


def gathered(start_us, end_us, correlation=0):
    return Span(
        Activity.COMMUNICATION,
        int(start_us * 1000),
        int(end_us * 1000),
        name="nccl",
        lane=1,
        correlation=correlation,
        collective=CollectiveKind.ALL_GATHER,
        group=RankGroup("0", (0, 1), 2),
        payload_bytes=1_000_000,
    )


def launch(start_us, correlation):
    start_ns = int(start_us * 1000)
    return Span(Activity.LAUNCH, start_ns, start_ns + 2000, lane=9, correlation=correlation)


def step(end_us):
    return {"steps": [(0, 0, int(end_us * 1000))]}


def answer(found, question):
    answered = found.answer(question)
    assert not isinstance(answered, Unanswered), answered
    return answered


def test_work_that_waited_for_a_collective_starts_sooner_when_links_are_faster():
    one = [launch(0, 1), work(5, 100, correlation=1), launch(3, 2), gathered(101, 301, 2)]
    one += [launch(6, 3), work(302, 402, correlation=3)]
    found = whatif(on_devices(one, one, **step(402)))

    answered = answer(found, FASTER)

    assert found.identity_error == 0
    assert answered.measured_s == pytest.approx(397e-6)
    assert answered.predicted_s == pytest.approx(297e-6, abs=1e-9)
    assert answered.most_saved_s == pytest.approx(100e-6, abs=1e-9)


def test_a_collective_behind_compute_saves_nothing():
    one = [launch(0, 1), work(5, 400, correlation=1), launch(3, 2), gathered(10, 210, 2)]
    found = whatif(on_devices(one, one, **step(400)))

    answered = answer(found, FASTER)

    assert answered.utility == 0
    assert answered.most_saved_s == 0


def test_waits_that_a_trace_states_hold_work_back_and_others_are_not_looked_for():
    one = [launch(0, 1), launch(3, 2)]
    one += [work(5, 605, correlation=1, name="a"), work(633, 673, 2, correlation=2, name="b")]
    silent = on_devices(one, **step(673))
    waits = SpanWaits(source=np.array([2]), target=np.array([3]))
    stating = TraceSet(ranks=tuple(replace(trace, waits=waits) for trace in silent.ranks))
    faster = Question(kernels={"a": 2.0})

    assert isinstance(whatif(silent).answer(faster), Unanswered)
    answered = answer(whatif(stating), faster)

    assert answered.predicted_s == pytest.approx((673 - 5 - 300) * 1e-6, abs=1e-9)


def test_ranks_wait_for_the_slowest_of_them_in_every_replay():
    fast = [launch(0, 1), work(5, 100, correlation=1), launch(3, 2), gathered(101, 301, 2)]
    slow = [launch(0, 1), work(5, 200, correlation=1), launch(3, 2), gathered(201, 301, 2)]
    found = whatif(on_devices(fast, slow, **step(301)))

    sooner = answer(found, Question(ranks={1: 195 / 95}))
    later = answer(found, Question(ranks={0: 0.25}))

    assert sooner.predicted_s == pytest.approx(196e-6, abs=1e-9)
    assert later.predicted_s == pytest.approx((380 + 1 + 100) * 1e-6, abs=1e-9)
    assert later.most_saved_s is None


def test_a_host_that_waits_for_its_device_goes_on_sooner():
    spans = [launch(0, 1), work(5, 105, correlation=1)]
    spans += [Span(Activity.SYNC, 3000, 110_000, name="cudaDeviceSynchronize", lane=9)]
    spans += [launch(120, 2), work(126, 226, correlation=2)]
    found = whatif(on_devices(spans, **step(226)))

    answered = answer(found, Question(kernels={"compute": 2.0}))

    assert answered.predicted_s == pytest.approx((221 - 100) * 1e-6, abs=1e-9)


def test_the_time_of_a_critical_path_adds_up_to_the_step():
    found = whatif(generate_job(straggler=2))

    path = found.path

    pieces = path.pieces
    assert [one.end_ns for one in pieces[:-1]] == [one.start_ns for one in pieces[1:]]
    share = path.seconds()[OnPath.COMPUTE] / sum(path.seconds().values())
    assert share > 0.5
    ranks = np.bincount([one.rank for one in pieces if one.kind is OnPath.COMPUTE])
    assert ranks.argmax() == 2  # the straggler


JOBS = {
    "sharded": {},
    "sharded with a straggler": {"straggler": 2},
    "bound by its links": {"bus_gb_per_s": 25.0},
    "tensor parallel experts": {"tensor_parallel": 2, "experts": True, "straggler": 1},
    "clocks that are apart": {"skew_us": 250.0, "straggler": 3},
}


@pytest.mark.parametrize("shape", JOBS.values(), ids=JOBS)
def test_a_replay_with_faster_links_is_the_run_with_faster_links(shape):
    bandwidth = shape.get("bus_gb_per_s", 180.0)
    found = whatif(generate_job(**shape))
    other = whatif(generate_job(**shape | {"bus_gb_per_s": 2 * bandwidth}))

    answered = answer(found, FASTER)

    assert found.identity_error < WITHIN
    assert answered.predicted_s == pytest.approx(other.measured_s, rel=WITHIN)


def test_a_replay_without_the_straggler_is_the_run_without_it():
    found = whatif(generate_job(straggler=2))
    other = whatif(generate_job())

    answered = answer(found, Question(no_straggler=True))

    assert answered.utility > 0.1
    assert answered.predicted_s == pytest.approx(other.measured_s, rel=WITHIN)


def test_latency_and_bandwidth_of_links_are_those_of_the_job():
    (link,) = whatif(generate_job()).links.fitted.values()

    assert link.latency_ns == pytest.approx(14_000, rel=0.02)
    assert link.bytes_per_ns == pytest.approx(180, rel=0.02)


def test_tiers_are_told_apart_by_the_ranks_of_a_node():
    traces = generate_job(tensor_parallel=2)
    inside, across = (
        answer(whatif(traces, 2), Question(bandwidth={name: 2.0})).utility
        for name in ("scale_up", "scale_out")
    )

    # Tensor parallel groups, which compute waits for, are on one node.
    assert 0 < across < inside
    with pytest.raises(StudyError, match="how many ranks a node holds"):
        whatif(traces).answer(Question(bandwidth={"scale_up": 2.0}))


@pytest.mark.parametrize("shape", [{}, {"bus_gb_per_s": 25.0}], ids=["sharded", "slow links"])
def test_a_replay_on_more_nodes_is_the_run_on_them(shape):
    found = whatif(generate_job(**shape), 2)
    other = whatif(generate_job(**shape | {"ranks": 16, "world": 16}), 2)

    answered = answer(found, Question(nodes=8))

    assert answered.work == 4
    assert answered.predicted_s == pytest.approx(other.measured_s, rel=WITHIN)
    assert found.measured_s < answered.low_s < answered.predicted_s < answered.high_s


def test_as_many_nodes_as_before_change_nothing():
    answered = answer(whatif(generate_job(), 2), Question(nodes=2))

    assert (answered.work, answered.predicted_s) == (1, answered.replayed_s)


def test_what_more_nodes_bring_needs_nodes_that_are_known_and_links_between_them():
    traces = generate_job()

    with pytest.raises(StudyError, match=r"--nodes 8: the traces do not say .*--ranks-per-node"):
        whatif(traces).answer(Question(nodes=8))
    with pytest.raises(StudyError, match="--nodes 1: the job ran on 2; ask for as many or more"):
        whatif(traces, 2).answer(Question(nodes=1))
    refused = whatif(traces, 4).answer(Question(nodes=8))
    assert isinstance(refused, Unanswered)
    assert "no collective of data-parallel ranks between nodes" in refused.reason


def test_a_replay_that_disagrees_with_the_trace_answers_nothing():
    found = whatif(generate_job())

    refused = replace(found, identity_error=0.034).answer(FASTER)

    assert isinstance(refused, Unanswered)
    assert "3.4% off what was measured, more than 1%" in refused.reason


def test_a_job_on_cpus_is_not_replayed():
    traces = read_folder(GLOO, use_cache=False)

    assert isinstance(WhatIf.of(traces, match(traces)), Unanswered)


def test_work_without_a_launch_starts_sooner_when_what_it_waits_for_does():
    one = [work(5, 100), gathered(101, 301), work(302, 402)]
    found = whatif(on_devices(one, one, **step(402)))

    answered = answer(found, Question(kernels={"compute": 2.0}))

    assert answered.predicted_s == pytest.approx((397 - 47.5 - 50) * 1e-6, abs=1e-9)
