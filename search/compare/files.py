"""Compare benchmark CSV files point by point, and timing files task by task."""

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeAlias, TypeVar

from evaluator.timing.bench_csv import LATENCY, BenchPoint, BenchRow
from evaluator.timing.decision import Comparison, DecisionRule, LaunchValue, Round, decide
from evaluator.timing.intervals.decide import Judgement, judge
from evaluator.timing.intervals.estimate import Thresholds, summary_of
from evaluator.timing.timing import Task, Timing, merge
from records.errors import StudyError
from search.compare.compare import (
    ComparisonRow,
    Comparisons,
    ComparisonSide,
    Pair,
    Terms,
    correct_for_number,
    reading,
    refusal,
    undecided,
)
from search.compare.sides import BenchSide, TimingsSide
from search.views.format import one_line

ONCE = DecisionRule(look_often=False)
"""All rounds are complete before the decision."""
WIDEST = 1e12
"""Ratio of times beyond which they cannot be right, and their powers overflow."""
UNPAIRED = ("one_sample", "not_interleaved")
"""Reasons that only interleaved launches can resolve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One launch in a round; a lower `order` came first, where it is known."""

    launch: LaunchValue
    order: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicates:
    """Every launch of one side at one point, lower is better; those of a round by its name."""

    values: tuple[float, ...]
    rounds: Mapping[str, Turn] = field(default_factory=dict)


def judge_replicates(name: str, a: Replicates, b: Replicates, rule: DecisionRule) -> ComparisonRow:
    """Judge B against A over the rounds that both have."""
    for side, replicates in (("A", a), ("B", b)):
        if not replicates.values:
            return refusal(name, "no_samples", f"{side} was not measured here")
        if min(replicates.values) <= 0:
            return refusal(name, "bad_time", f"{side} has a time that is not above zero")
    everything = (*a.values, *b.values)
    if max(everything) / min(everything) > WIDEST:
        return refusal(name, "bad_time", "times differ beyond measure; is a unit wrong?")
    shared = [each for each in a.rounds if each in b.rounds]
    if not shared:
        return ComparisonRow(
            name=name,
            comparison=_unpaired(a, b),
            a=reading(a.values, rule.alpha),
            b=reading(b.values, rule.alpha),
        )
    rounds = [_round(a.rounds[each], b.rounds[each]) for each in shared]
    pairs = tuple(
        Pair(round=each, a=a.rounds[each].launch.value, b=b.rounds[each].launch.value)
        for each in shared
    )
    return ComparisonRow(
        name=name,
        comparison=decide(rounds, replace(rule, max_rounds=max(len(rounds), rule.min_rounds))),
        a=reading([pair.a for pair in pairs], rule.alpha),
        b=reading([pair.b for pair in pairs], rule.alpha),
        pairs=pairs,
    )


def _round(a: Turn, b: Turn) -> Round:
    first = None
    if a.order is not None and b.order is not None and a.order != b.order:
        first = b.order < a.order
    return Round(candidate=b.launch, anchor=a.launch, candidate_first=first)


def _unpaired(a: Replicates, b: Replicates) -> Comparison:
    """Launches that did not take turns: how their middles differ, and that this proves nothing."""
    reason = "one_sample" if 1 in (len(a.values), len(b.values)) else "not_interleaved"
    return undecided(reason, statistics.median(b.values) / statistics.median(a.values))


RUN, ORDER = "RunId", "Order"
ROUND_COLUMNS = ("LaunchId", "Block")

Rows: TypeAlias = Sequence[BenchRow]
K = TypeVar("K", bound=Hashable)


def compare_bench(a: BenchSide, b: BenchSide, terms: Terms) -> Comparisons:
    """Judge the latencies of B against those of A; what one side lacks is not judged."""
    rule = terms.over(ONCE)
    of_a, of_b = _by_point(a.rows), _by_point(b.rows)
    lines = correct_for_number(judge_points(of_a, of_b, rule).values(), rule)
    if not lines:
        raise StudyError(
            f"{a.name} and {b.name} have no point in common ({next(iter(of_a))}, for example, "
            f"and {next(iter(of_b))}); give results of the same points"
        )
    return Comparisons(
        a=ComparisonSide(name=a.name, settings=_software(a.rows)),
        b=ComparisonSide(name=b.name, settings=_software(b.rows)),
        quantity=LATENCY.partition("(")[0],
        unit="us",
        lines=lines,
        rule=rule,
        only_a=tuple(str(point) for point in of_a if point not in of_b),
        only_b=tuple(str(point) for point in of_b if point not in of_a),
        caveats=_devices(a.rows, b.rows),
        next_steps=(
            f"run A and B in turns, {rule.min_rounds} times or more, and name each round in a "
            "column Block of both files",
        )
        if any(line.comparison.reason in UNPAIRED for line in lines)
        else (),
    )


def judge_points(
    a: Mapping[K, Rows], b: Mapping[K, Rows], rule: DecisionRule
) -> Mapping[K, ComparisonRow]:
    """Judge the latencies of B against those of A at each point that both have rows of."""
    columns = _round_columns(*(list(chain.from_iterable(side.values())) for side in (a, b)))
    return {
        point: judge_replicates(
            str(point), _replicates(rows, columns), _replicates(b[point], columns), rule
        )
        for point, rows in a.items()
        if point in b
    }


def _by_point(rows: Rows) -> Mapping[BenchPoint, list[BenchRow]]:
    found: dict[BenchPoint, list[BenchRow]] = defaultdict(list)
    for row in rows:
        found[row.point].append(row)
    return found


def _replicates(rows: Rows, columns: Sequence[str]) -> Replicates:
    measured = [row for row in rows if row.latency_us is not None]
    return Replicates(
        values=tuple(_latencies(measured)),
        rounds={
            label: Turn(
                launch=LaunchValue(value=statistics.median(_latencies(parts))), order=_order(parts)
            )
            for label, parts in _by_label(measured, columns).items()
        },
    )


def _latencies(rows: Rows) -> list[float]:
    return [row.latency_us for row in rows if row.latency_us is not None]


def _round_columns(a: Rows, b: Rows) -> tuple[str, ...]:
    """The columns whose values name a round of both sides; none where nothing does.

    A launch counts as one round, however many blocks it was measured in; where every launch has a
    separate name, the blocks are what both sides share.
    """
    run = (RUN,) if _have(a, RUN) and _have(b, RUN) else ()
    for name in ROUND_COLUMNS:
        if _have(a, name) and _have(b, name):
            labels = [set(_by_label(rows, (*run, name))) for rows in (a, b)]
            if labels[0] & labels[1]:
                return (*run, name)
    return run


def _have(rows: Rows, column: str) -> bool:
    return all(column in row.columns for row in rows)


def _by_label(rows: Rows, columns: Sequence[str]) -> Mapping[str, list[BenchRow]]:
    """Rows of each round; without columns that name rounds there are none."""
    found: dict[str, list[BenchRow]] = defaultdict(list)
    for row in rows if columns else ():
        found[" ".join(row.columns[column] for column in columns)].append(row)
    return found


def _order(rows: Rows) -> float | None:
    """When the first of these was measured within its round, if it is recorded as a number."""
    try:
        orders = [float(row.columns[ORDER]) for row in rows]
    except (KeyError, ValueError):
        return None
    return min(orders) if all(map(math.isfinite, orders)) else None


def _software(rows: Rows) -> str:
    """The communication library, as far as the first row states it."""
    columns = ("CommAdapter", "CommBackend", "CommBackendVersion")
    return " ".join(rows[0].columns[name] for name in columns if name in rows[0].columns)


def _devices(a: Rows, b: Rows) -> tuple[str, ...]:
    """A caveat where the two were measured on other devices."""
    named = [
        " and ".join(sorted({row.columns.get("DeviceName", "") for row in rows})) for rows in (a, b)
    ]
    if named[0] == named[1] or not all(named):
        return ()
    return (f"A was measured on {named[0]}, B on {named[1]}",)


NAME_CHARS = 200
NEXT = "time both in turns, four times or more, each turn under one launch name on both sides"


def compare_timings(a: TimingsSide, b: TimingsSide, terms: Terms) -> Comparisons:
    """Judge the tasks of B against those of A; one task on each side is compared by any name."""
    rule = terms.over(ONCE)
    of_a, of_b = _by_task(a.timings), _by_task(b.timings)
    if len(of_a) == len(of_b) == 1:
        of_b = dict(zip(of_a, of_b.values(), strict=True))
    each = (
        replace(
            judge_replicates(
                task_words(task), _timings_replicates(timing), _timings_replicates(of_b[task]), rule
            ),
            screening=_screened(timing, of_b[task], terms.thresholds),
        )
        for task, timing in of_a.items()
        if task in of_b
    )
    lines = correct_for_number(each, rule)
    if not lines:
        raise StudyError(
            f"{a.name} and {b.name} have no task in common ({task_words(next(iter(of_a)))}, for "
            f"example, and {task_words(next(iter(of_b)))}); give timings of the same tasks"
        )
    return Comparisons(
        a=ComparisonSide(name=a.name),
        b=ComparisonSide(name=b.name),
        quantity="time of a call",
        unit="s",
        lines=lines,
        rule=rule,
        only_a=tuple(task_words(task) for task in of_a if task not in of_b),
        only_b=tuple(task_words(task) for task in of_b if task not in of_a),
        next_steps=(NEXT,) if any(x.comparison.reason in UNPAIRED for x in lines) else (),
    )


def task_words(task: Task) -> str:
    """A task by what distinguishes it from others in a table."""
    threads = f"{task.num_threads} threads" if task.num_threads > 1 else None
    words = (task.label, task.row_name, task.description, task.env, threads)
    return one_line(" ".join(word for word in words if word), NAME_CHARS)


def _by_task(timings: Iterable[Timing]) -> Mapping[Task, Timing]:
    return {timing.task: timing for timing in merge(timings)}


def _timings_replicates(timing: Timing) -> Replicates:
    launches = {
        group.launch: LaunchValue(
            value=statistics.median(group.raw_times_s) / timing.number_per_run,
            mean=statistics.fmean(group.raw_times_s) / timing.number_per_run,
        )
        for group in timing.launches
    }
    return Replicates(
        values=tuple(launch.value for launch in launches.values()),
        rounds={name: Turn(launch=launch) for name, launch in launches.items()},
    )


def _screened(a: Timing, b: Timing, thresholds: Thresholds) -> Judgement:
    return judge(summary_of(a.times), summary_of(b.times), thresholds, confirmation=False)
