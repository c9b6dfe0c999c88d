"""Conformance suite for metrics, as a test class to subclass.

    from evaluator.metrics.testing import MetricConformance

    class TestJoules(MetricConformance):
        metric = joules

Pytest runs its tests by their names; nothing here needs pytest.
"""

import math
import pickle
from collections.abc import Mapping
from dataclasses import fields, replace

from evaluator.metrics.base import Absent, Evidence, Metric, contract_fault
from evaluator.metrics.registry import measure
from evaluator.traces.model import (
    Activity,
    CollectiveKind,
    Device,
    RankGroup,
    RankTrace,
    StepKind,
    TraceSet,
)
from evaluator.traces.testing import Span, rank_trace
from records.study import Environment
from records.trial import Latency, MetricValue, Serving, TrafficResult
from records.workload import Message, TrafficPoint, Workload

CARD = Workload(
    name="decoder",
    global_batch=8,
    sequence_length=128,
    precision="bf16",
    layer_count=2,
    hidden_size=64,
    head_count=4,
    ffn_size=192,
    vocab_size=256,
)
MIX = (
    Message(collective="all_reduce", size_bytes=1 << 20, count=3),
    Message(collective="barrier"),
)
MACHINE = Environment(
    name="node", device="cuda", accelerator="NVIDIA H100", world_size=2, ranks_per_node=2
)
PAIR = RankGroup("0", (0, 1), 2)
STEPS = ((1, 0, 1_000), (2, 1_000, 2_100), (3, 2_100, 3_000))


class MetricConformance:
    """The contract of a metric; subclass it and say which `metric`."""

    metric: Metric

    def test_it_says_what_it_is(self) -> None:
        """A name, texts, a unit, a direction, sources and a version, all well-formed."""
        found = type(self).metric
        assert found.name.isidentifier()
        assert contract_fault(found) is None, contract_fault(found)
        assert isinstance(found.differs, str)

    def test_its_texts_are_sentences(self) -> None:
        """Descriptions end in a full stop and stand on one line."""
        found = type(self).metric
        for text in (found.description, *((found.differs,) if found.differs else ())):
            assert text.endswith(".") and "\n" not in text and text[0].isupper(), text

    def test_it_gives_a_finite_value_or_a_reason_for_whatever_it_is_shown(self) -> None:
        """It raises for no evidence, however little there is."""
        for name, evidence in evidences().items():
            answer = measure(type(self).metric, evidence)
            if isinstance(answer, Absent):
                assert answer.reason and not answer.reason.endswith("."), name
            else:
                assert math.isfinite(answer.value), name

    def test_it_has_no_value_without_evidence(self) -> None:
        """Without evidence there is no value."""
        assert isinstance(measure(type(self).metric, Evidence()), Absent)

    def test_it_gives_the_same_answer_twice(self) -> None:
        """For new equal evidence, and for the same evidence asked twice."""
        first, second = evidences(), evidences()
        for name in first:
            asked = self._answer(first[name])
            assert asked == self._answer(second[name]) == self._answer(first[name]), name

    def test_it_leaves_the_evidence_as_it_was(self) -> None:
        """Other metrics see the same columns after it."""
        for name, evidence in evidences().items():
            shown = [getattr(evidence, field.name) for field in fields(evidence)]
            before = pickle.dumps(shown)
            self._answer(evidence)
            assert pickle.dumps(shown) == before, name

    def _answer(self, evidence: Evidence) -> MetricValue | Absent:
        return measure(type(self).metric, evidence)


def evidences() -> Mapping[str, Evidence]:
    """Evidence of every kind that a metric may meet, by what it is, built at each call."""
    gpus = (_gpu_rank(0), _gpu_rank(1))
    samples = Evidence(
        step_times_s=(0.2, 0.1, 0.4),
        tokens_per_step=1024,
        rank_count=2,
        peak_memory_bytes=(5 << 20, 9 << 20),
        workload=CARD,
        environment=MACHINE,
    )
    return {
        "nothing": Evidence(),
        "timed steps": samples,
        "timed steps and traces": replace(samples, traces=TraceSet(ranks=gpus)),
        "served requests": replace(
            samples,
            workload=replace(CARD, phase="inference", output_length=4),
            serving=Serving(
                first_token_times_s=((0.1, 0.2, 0.1), (0.2, 0.1, 0.1)),
                next_token_times_s=((0.01, 0.02, 0.01), (0.02, 0.01, 0.01)),
                output_tokens_per_step=32,
            ),
        ),
        "a server under load": replace(
            samples,
            workload=replace(CARD, phase="inference", output_length=4),
            traffic=(
                TrafficResult(
                    point=TrafficPoint(concurrency=2),
                    request_count=8,
                    requests_per_s=10.0,
                    output_tokens_per_s=40.0,
                    ttft=Latency(p50_s=0.1, p99_s=0.3),
                    tpot=None,
                    itl=None,
                    goodput=9.0,
                ),
            ),
        ),
        "exchanged messages": replace(
            samples,
            tokens_per_step=0,
            workload=replace(CARD, phase="communication", messages=MIX),
        ),
        "steps that took no time": replace(samples, step_times_s=(0.0,)),
        "a card without sizes": replace(
            _traced(*gpus), workload=Workload(name="w", global_batch=1, sequence_length=1)
        ),
        "two ranks on GPUs": _traced(*gpus),
        "two ranks on GPUs with their card": replace(
            _traced(*gpus), workload=CARD, environment=MACHINE
        ),
        "one rank of two": _traced(_gpu_rank(1)),
        "one rank alone": _traced(rank_trace([_kernel(0, 400)])),
        "a job on CPUs": _traced(_cpu_rank(0), _cpu_rank(1)),
        "a server": _traced(_server_rank()),
        "no step in common": _traced(
            rank_trace([_kernel(0, 50)], steps=[(1, 0, 100)]),
            rank_trace([_kernel(0, 50)], steps=[(2, 0, 100)], rank=1),
        ),
        "no step at all": _traced(rank_trace([_kernel(0, 9)], steps=())),
        "an empty trace": _traced(rank_trace([], steps=())),
        "an empty step": _traced(rank_trace([], steps=[(1, 5, 5)])),
    }


def _traced(*ranks: RankTrace) -> Evidence:
    return Evidence(traces=TraceSet(ranks=ranks))


def _kernel(start_ns: int, end_ns: int, name: str = "gemm", correlation: int = 0) -> Span:
    return Span(
        Activity.COMPUTE, start_ns, end_ns, name, 0, correlation, blocks_per_sm=2.5, flops=1e6
    )


def _gpu_rank(rank: int) -> RankTrace:
    """Three steps, each a launch, a kernel, a collective half hidden, a copy and a fill."""
    late, spans = 20 * rank, list[Span]()
    for number, start, _ in STEPS:
        spans += [
            Span(Activity.LAUNCH, start, start + 10, "cudaLaunchKernel", 2, number),
            _kernel(start + 50 + late, start + 450, correlation=number),
            Span(
                Activity.COMMUNICATION,
                start + 400 + late,
                start + 600,
                "ncclDevKernel_AllGather_RING_LL",
                1,
                collective=CollectiveKind.ALL_GATHER,
                group=PAIR,
                payload_bytes=1 << 20,
            ),
            Span(Activity.COPY, start + 620, start + 640, "Memcpy HtoD", 0, bytes=4096),
            Span(Activity.FILL, start + 650, start + 660, "Memset", 0, bytes=512),
            Span(Activity.SYNC, start + 500, start + 700, "cudaStreamSynchronize", 2),
        ]
    return rank_trace(
        spans,
        steps=STEPS,
        host_steps=[(number, start - 10, end - 10) for number, start, end in STEPS],
        rank=rank,
        world_size=2,
        backend="nccl",
        device=Device(name="NVIDIA H100 80GB HBM3", multiprocessor_count=132),
    )


def _cpu_rank(rank: int) -> RankTrace:
    spans = [
        Span(Activity.COMPUTE, 0, 300, "aten::mm"),
        Span(Activity.WAIT, 100, 200, "c10d::allreduce_"),
        Span(
            Activity.COMMUNICATION,
            120 + rank,
            240,
            "gloo:all_reduce",
            1,
            collective=CollectiveKind.ALL_REDUCE,
            payload_bytes=4096,
        ),
    ]
    return rank_trace(spans, steps=[(1, 0, 400)], rank=rank, world_size=2, backend="gloo")


def _server_rank() -> RankTrace:
    kinds = (StepKind.PREFILL, StepKind.DECODE, StepKind.DECODE)
    spans = [_kernel(start, end - 100) for _, start, end in STEPS]
    return rank_trace(spans, steps=STEPS, kinds=kinds, device=Device(name="NVIDIA B200"))
