"""What a server's clients saw: results of `vllm bench serve --save-detailed`, one file for a batch.

File `P-B.json` is batch B at traffic point P. Those of the first point are the steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import msgspec

from evaluator.recipes.script_output import TraceFolder
from evaluator.samples import no_samples, unequal_work
from evaluator.traces.readers.files import ReadLimits, read_bytes
from records.errors import TraceError, shown
from records.study import Study
from records.trial import Failed, Latency, Serving, TrafficResult
from records.workload import TrafficPoint, Workload

FOLDER = "bench"
_LIMITS = ReadLimits(file_bytes=1 << 30, decompressed_bytes=1 << 30)


class Batch(msgspec.Struct, frozen=True):
    """One run of the load generator: seconds for each request, and for each token after its first.

    Requests that failed have a text among the errors.
    """

    duration: float
    completed: int
    output_lens: list[int]
    ttfts: list[float]
    itls: list[list[float]]
    errors: list[str] = []

    @property
    def tpots(self) -> list[float]:
        """Mean time per token after the first, of each request that has more."""
        answered = zip(self.itls, self.output_lens, strict=True)
        return [sum(times_s) / (length - 1) for times_s, length in answered if length > 1]


@dataclass(frozen=True, slots=True)
class Traffic:
    """What was measured at each traffic point, the main one first, and the batches of its steps."""

    results: tuple[TrafficResult, ...]
    steps: tuple[Batch, ...]

    def serving(self, rank_count: int) -> Serving:
        """Return how each step's requests were answered, the same for all ranks of a server."""
        first = tuple(fmean(batch.ttfts) for batch in self.steps)
        next_ = tuple(fmean(batch.tpots) for batch in self.steps if batch.tpots)
        return Serving(
            first_token_times_s=(first,) * rank_count,
            next_token_times_s=(next_,) * rank_count if next_ else None,
            output_tokens_per_step=sum(self.steps[0].output_lens),
        )


def read_traffic(folder: TraceFolder, study: Study) -> Traffic | Failed:
    """Read what a server did at each traffic point; raises `TraceError` for a file it refuses."""
    results: list[TrafficResult] = []
    steps: tuple[Batch, ...] = ()
    for number, point in enumerate(study.workload.traffic):
        batches = []
        for batch in range(1 if number else study.measure.timed_steps):
            path = folder.path / FOLDER / f"{number}-{batch}.json"
            if not path.exists():
                return no_samples(f"the load generator left no {FOLDER}/{path.name}")
            batches.append(_read(folder, path))
            fault = _fault(batches[-1], study.workload)
            if fault is not None:
                return unequal_work(f"with {point}: {fault}")
        results.append(_result(point, batches, study.workload))
        steps = steps or tuple(batches)
    return Traffic(tuple(results), steps)


def _read(folder: TraceFolder, path: Path) -> Batch:
    folder.refuse_foreign(path)
    try:
        return msgspec.json.decode(read_bytes(path, _LIMITS), type=Batch)
    except msgspec.MsgspecError as error:
        raise TraceError(path, str(error)) from error


def _fault(batch: Batch, work: Workload) -> str | None:
    """Return what makes a batch other work than was asked for, or no measurement."""
    errors = [error for error in batch.errors if error]
    count = len(batch.ttfts)
    if errors or batch.completed < count:
        first = shown(errors[0]) if errors else "it does not say why"
        return f"the server failed {count - batch.completed} of {count} requests: {first}"
    if not count or len(batch.itls) != count or len(batch.output_lens) != count:
        return "the load generator reports no request, or not all of each"
    wrong = [length for length in batch.output_lens if length != (work.output_length or 1)]
    if wrong:
        return f"{len(wrong)} answers have {wrong[0]} tokens, not {work.output_length or 1}"
    times_s = (batch.duration, *batch.ttfts, *(t for times in batch.itls for t in times))
    if not all(math.isfinite(t) and t >= 0 for t in times_s) or batch.duration <= 0:
        return "the load generator reports a time that is not above 0"
    return None


def _result(point: TrafficPoint, batches: Sequence[Batch], work: Workload) -> TrafficResult:
    duration_s = sum(batch.duration for batch in batches)
    requests = sum(batch.completed for batch in batches)
    tpots = [time_s for batch in batches for time_s in batch.tpots]
    itls = [time_s for batch in batches for times_s in batch.itls for time_s in times_s]
    return TrafficResult(
        point=point,
        request_count=requests,
        requests_per_s=requests / duration_s,
        output_tokens_per_s=sum(sum(batch.output_lens) for batch in batches) / duration_s,
        ttft=_latency([time_s for batch in batches for time_s in batch.ttfts]),
        tpot=_latency(tpots) if tpots else None,
        itl=_latency(itls) if itls else None,
        goodput=_goodput(batches, work, duration_s),
    )


def _goodput(batches: Sequence[Batch], work: Workload, duration_s: float) -> float | None:
    if work.slo_ttft_s is None and work.slo_tpot_s is None:
        return None
    most_ttft_s, most_tpot_s = work.slo_ttft_s or math.inf, work.slo_tpot_s or math.inf
    good = sum(
        ttft_s <= most_ttft_s and tpot_s <= most_tpot_s
        for batch in batches
        for ttft_s, tpot_s in zip(batch.ttfts, batch.tpots or [0.0] * batch.completed, strict=True)
    )
    return good / duration_s


def _latency(times_s: Sequence[float]) -> Latency:
    """Percentiles as the load generator has them, with linear interpolation."""
    ordered = sorted(times_s)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        below = ordered[math.floor(place)]
        return below + (ordered[math.ceil(place)] - below) * (place % 1)

    return Latency(p50_s=at(0.5), p99_s=at(0.99))
