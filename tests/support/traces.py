"""Traces made of spans and recorded ones, and what is measured of them, for tests."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from evaluator.metrics.base import Absent, Evidence
from evaluator.metrics.registry import measure, metric
from evaluator.traces.intervals import Intervals
from evaluator.traces.model import Activity, CollectiveKind, RankGroup, RankTrace, TraceSet
from evaluator.traces.readers.read import read_traces
from evaluator.traces.testing import Span, rank_trace

DATA = Path(__file__).parents[1] / "data" / "traces"
SYNTHETIC = DATA / "synth_fsdp_4rank_straggler2"
GLOO = DATA / "gloo_ddp_2rank"
PAIR = RankGroup("0", (0, 1), 2)


def named_cases(names: Sequence[str], cases: Mapping[str, object]) -> pytest.MarkDecorator:
    """Parametrize a test over cases, each behind the sentence that says what it is."""
    return pytest.mark.parametrize(names, cases.values(), ids=cases)


def read(folder: Path) -> TraceSet:
    """The traces of all ranks in a folder."""
    return read_traces(sorted(folder.glob("rank*_trace.json.gz")))


def job(*spans_of_rank: Sequence[Span], ranks: Sequence[int] = (), **same: object) -> TraceSet:
    """The traces of ranks with these spans; what else is given is the same for all."""
    numbers = ranks or range(len(spans_of_rank))
    pairs = zip(numbers, spans_of_rank, strict=True)
    return TraceSet(ranks=tuple(rank_trace(spans, rank=rank, **same) for rank, spans in pairs))  # type: ignore[arg-type]  # whatever a trace may be given


def communication(
    kind: CollectiveKind,
    start_ns: int,
    end_ns: int,
    group: RankGroup = PAIR,
    size: int = 8,
    sequence: int = -1,
    correlation: int = 0,
) -> Span:
    """A collective or transfer."""
    return Span(
        Activity.COMMUNICATION,
        start_ns,
        end_ns,
        collective=kind,
        group=group,
        payload_bytes=size,
        sequence=sequence,
        correlation=correlation,
    )


def value_of(name: str, traces: TraceSet | RankTrace | None = None, **given: object) -> object:
    """What a metric measures of traces, or why it measures nothing."""
    whole = TraceSet(ranks=(traces,)) if isinstance(traces, RankTrace) else traces
    found = measure(metric(name), Evidence(traces=whole, **given))  # type: ignore[arg-type]  # whatever evidence may be
    return found.reason if isinstance(found, Absent) else found.value


def pieces(intervals: Intervals) -> list[tuple[int, int]]:
    """Starts and ends, ns."""
    return list(zip(intervals.start_ns.tolist(), intervals.end_ns.tolist(), strict=True))
