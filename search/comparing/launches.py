"""Compares single launches: what their steps suggest, and why that proves nothing."""

import statistics
from collections.abc import Sequence

from evaluator.timing.interval.decision import judge
from evaluator.timing.interval.judgement import Judgement
from evaluator.timing.interval.summary import summary_of
from evaluator.timing.interval.thresholds import Thresholds
from evaluator.timing.paired import STANDARD
from records.trial import Failed, Measurement
from search.comparing.compared import (
    Compared,
    Comparisons,
    Party,
    Reading,
    Terms,
    differing,
    refused,
    undecided,
)
from search.comparing.sides import OneLaunch, OnRecord, one_launch
from search.words.trial import one_line

NAME = "step_time"
CAUSE_CHARS = 300
TRACED = (
    "{side} was timed in profiled steps, which the profiler slows down; "
    "time steps that no profiler watches"
)


def compare_launches(a: OneLaunch | OnRecord, b: OneLaunch | OnRecord, terms: Terms) -> Comparisons:
    """What the steps of two launches suggest about B against A."""
    one, other = _alone(a), _alone(b)
    return Comparisons(
        a=Party(name=one.name, settings=one.settings),
        b=Party(name=other.name, settings=other.settings),
        quantity=NAME,
        unit="s",
        lines=(_told(one.launch, other.launch, terms.thresholds),),
        rule=terms.over(STANDARD),
        next_steps=("cclsearch run --objective step_time",),
    )


def failure(name: str, which: str, failed: Failed) -> Compared:
    """Why a side that failed is not compared."""
    cause = one_line(failed.message, CAUSE_CHARS)
    return refused(name, failed.kind, f"{which} failed: {cause}")


def _alone(side: OneLaunch | OnRecord) -> OneLaunch:
    if isinstance(side, OneLaunch):
        return side
    trial = side.trial
    return OneLaunch(
        name=side.name,
        launch=one_launch(trial.outcome),
        settings="" if trial.config is None else str(trial.config),
    )


def _told(a: Measurement | Failed, b: Measurement | Failed, thresholds: Thresholds) -> Compared:
    if isinstance(a, Failed):
        return failure(NAME, "A", a)
    if isinstance(b, Failed):
        return failure(NAME, "B", b)
    found = unfit(NAME, [a], [b]) or differing(NAME, _ranks(a), _ranks(b))
    return found or _useless("A", a) or _useless("B", b) or _screened_only(a, b, thresholds)


def _useless(which: str, launch: Measurement) -> Compared | None:
    if not launch.slowest_rank_s:
        return refused(NAME, "no_samples", f"{which} has no timed steps")
    if min(launch.slowest_rank_s) <= 0:
        return refused(NAME, "bad_time", f"{which} has a step that took no time")
    return None


def _screened_only(a: Measurement, b: Measurement, thresholds: Thresholds) -> Compared:
    one, other = _reading(a), _reading(b)
    return Compared(
        name=NAME,
        comparison=undecided("not_interleaved", other.centre / one.centre),
        a=one,
        b=other,
        screening=screened(a, b, thresholds),
    )


def unfit(name: str, a: Sequence[Measurement], b: Sequence[Measurement]) -> Compared | None:
    """Why launches of one workload cannot be compared, if they cannot."""
    for side, launches in (("A", a), ("B", b)):
        if any(launch.profiled for launch in launches):
            return refused(name, "traced_samples", TRACED.format(side=side))
    return differing(name, _facts(a), _facts(b))


def screened(a: Measurement, b: Measurement, thresholds: Thresholds) -> Judgement:
    """What the steps of one launch each say; nothing confirms them."""
    summaries = [summary_of(each.slowest_rank_s) for each in (a, b)]
    return judge(summaries[0], summaries[1], thresholds, confirmation=False)


def _facts(launches: Sequence[Measurement]) -> list[tuple[str, object]]:
    """What must be the same: one value, or a list where launches of one side differ already."""
    facts: dict[str, set[object]] = {
        "tokens_per_step": {launch.tokens_per_step for launch in launches},
        "device": {launch.device for launch in launches},
        "torch_version": {launch.torch_version for launch in launches},
    }
    return [
        (field, " and ".join(sorted(str(value) for value in values)))
        for field, values in facts.items()
    ]


def _ranks(launch: Measurement) -> list[tuple[str, object]]:
    return [("rank_count", len(launch.step_times_s))]


def _reading(launch: Measurement) -> Reading:
    """Median step of a launch, whose spread over launches nobody knows."""
    steps_s = launch.slowest_rank_s
    return Reading(centre=statistics.median(steps_s), step_count=len(steps_s))
