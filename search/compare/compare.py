"""Compare two trials, benchmark CSV or timing files: a verdict for each quantity.

A verdict needs interleaved launches of both sides.
"""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import TypeAlias, TypeVar

from evaluator.objective import Scoring, scoring_of
from evaluator.timing.bench_csv import LATENCY, BenchPoint, BenchRow
from evaluator.timing.decision import (
    ALPHA,
    Comparison,
    DecisionRule,
    LaunchValue,
    Round,
    Verdict,
    corrected_for_number,
    decide,
    spread,
    student_quantile,
)
from evaluator.timing.timing import Task, Timing, merge
from records.errors import StudyError
from records.study import Study
from records.trial import Failed, Measured, Measurement, Purpose, Repeat, Score
from search.compare.sides import BenchSide, Side, TimingsSide, TrialSide
from search.loop.leader import (
    claim_rule,
    is_step_time,
    launch_of,
    rounds_between,
    supported_launches,
)
from search.views.format import format_difference, one_line
from search.views.machine import disturbed_among

LEAST_ALPHA = 0.001
"""Few launches support no lower error rate: the intervals would have no bounds."""
CAUSE_CHARS, NAME_CHARS = 300, 200
MORE_TRIALS = 5
OTHER_STUDY = (
    "nothing is proven: only trials of one study are launched in interleaved rounds, and machine, "
    "load and software may have differed"
)


def check_alpha(alpha: float) -> None:
    """Raise `StudyError` for an error rate that launches cannot support."""
    if not LEAST_ALPHA <= alpha < 0.5:
        raise StudyError(
            f"--alpha {alpha:g}: give {LEAST_ALPHA} or more and less than 0.5, as in --alpha 0.05"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What counts as a difference; margin and alpha are those of the study where they are None."""

    margin: float | None = None
    alpha: float | None = None

    def __post_init__(self) -> None:
        if self.margin is not None and not 0 <= self.margin < math.inf:
            raise StudyError(f"--margin {self.margin}: give 0 or more, as in --margin 0.02")
        if self.alpha is not None:
            check_alpha(self.alpha)

    def over(self, rule: DecisionRule) -> DecisionRule:
        """Return the rule with these terms, where they are given."""
        return replace(
            rule,
            margin=rule.margin if self.margin is None else self.margin,
            claim_margin=rule.claim_margin if self.margin is None else self.margin,
            alpha=rule.alpha if self.alpha is None else self.alpha,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one side was measured at.

    Of a trial it is the number that is shown everywhere, and its ratio need not be that of the
    rounds. The interval is None where launches are too few. `step_count` is that of all launches,
    None where unknown.
    """

    centre: float
    low: float | None = None
    high: float | None = None
    launch_count: int = 1
    step_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The values of both sides in one round, by the name of the round."""

    round: str
    a: float
    b: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """A verdict on B against A, and what it was taken from; a side that failed has no reading.

    `detail` explains the reason where its name alone does not.
    """

    name: str
    comparison: Comparison
    a: Reading | None = None
    b: Reading | None = None
    pairs: tuple[Pair, ...] = ()
    detail: str | None = None

    @property
    def change(self) -> float | None:
        """How far B's centre is from A's, over the smaller one; None where one is missing."""
        if self.a is None or self.b is None or min(self.a.centre, self.b.centre) <= 0:
            return None
        return (self.b.centre - self.a.centre) / min(self.a.centre, self.b.centre)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonSide:
    """One side as it is shown: its name on the command line, and the settings that differ."""

    name: str
    settings: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparisons:
    """The comparison of two sides.

    `quantity` was compared, in `unit`; where it is not a time, sides are better, not faster.
    `only_a` and `only_b` were measured on one side alone and count for nothing.
    """

    a: ComparisonSide
    b: ComparisonSide
    quantity: str
    unit: str
    lines: tuple[ComparisonRow, ...]
    rule: DecisionRule
    lower_is_better: bool = True
    is_time: bool = True
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[Verdict, int]:
        """Lines of each verdict."""
        found = Counter(line.comparison.verdict for line in self.lines)
        return {verdict: found[verdict] for verdict in Verdict}


def compare_sides(a: Side, b: Side, terms: Terms) -> Comparisons:
    """Compare two sides; raises `StudyError` where they are not of one kind."""
    match a, b:
        case TrialSide(), TrialSide():
            return compare_trials(a, b, terms)
        case TimingsSide(), TimingsSide():
            return compare_timings(a, b, terms)
        case BenchSide(), BenchSide():
            return compare_bench(a, b, terms)
        case _:
            raise StudyError(
                f"A, {a.name}, is {a.kind} and B, {b.name}, is {b.kind}; "
                "give two sides of the same kind"
            )


def refusal(name: str, reason: str, detail: str) -> ComparisonRow:
    """Sides that cannot be compared."""
    unknown = Comparison(verdict=Verdict.UNKNOWN, reason=reason)
    return ComparisonRow(name=name, comparison=unknown, detail=detail)


def _failure(name: str, which: str, failed: Failed) -> ComparisonRow:
    cause = one_line(failed.message, CAUSE_CHARS)
    return refusal(name, failed.kind, f"{which} failed: {cause}")


def _first_difference(
    name: str, a: Mapping[str, object], b: Mapping[str, object]
) -> ComparisonRow | None:
    """A refusal naming the first fact that is not the same on both sides, if there is one."""
    for fact, of_a in a.items():
        if of_a != b[fact]:
            words = f"{fact} is {of_a} for A and {b[fact]} for B"
            return refusal(name, f"not_comparable:{fact}", words)
    return None


def _undecided(reason: str, ratio: float | None = None) -> Comparison:
    """Sides whose launches prove nothing about each other, whatever their ratio."""
    return Comparison(verdict=Verdict.UNDECIDED, reason=reason, ratio=ratio)


def reading(values: Sequence[float], alpha: float) -> Reading:
    """Centre of launches with the interval of their mean, both of the log values.

    There is no interval where it would end beyond any number.
    """
    if len(values) == 1 or min(values) <= 0:
        return Reading(centre=statistics.median(values), launch_count=len(values))
    logs = [math.log(value) for value in values]
    mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(values))
    half = error * student_quantile(1 - alpha / 2, len(values) - 1)
    centred = Reading(centre=math.exp(mean), launch_count=len(values))
    try:
        return replace(centred, low=math.exp(mean - half), high=math.exp(mean + half))
    except OverflowError:
        return centred


TRACED = (
    "{side} was timed in profiled steps, which the profiler slows down; "
    "time steps that no profiler watches"
)


def _unfit(name: str, a: Sequence[Measurement], b: Sequence[Measurement]) -> ComparisonRow | None:
    """Why launches of one workload cannot be compared, if they cannot."""
    for side, launches in (("A", a), ("B", b)):
        if any(launch.profiled for launch in launches):
            return refusal(name, "traced_samples", TRACED.format(side=side))
    return _first_difference(name, _launch_facts(a), _launch_facts(b))


def _launch_facts(launches: Sequence[Measurement]) -> dict[str, object]:
    """What must be the same: one value, or a list where launches of one side differ already."""
    return {
        field: " and ".join(sorted({str(getattr(launch, field)) for launch in launches}))
        for field in ("tokens_per_step", "device", "torch_version")
    }


def compare_trials(a: TrialSide, b: TrialSide, terms: Terms) -> Comparisons:
    """Judge trial B against trial A; raises `StudyError` where they are one trial."""
    if a.name == b.name:
        raise StudyError(f"A and B are both {a.name}; give two trials")
    study = a.row.study
    objective = scoring_of(study).against(a.seed)
    rule = terms.over(claim_rule(study.measure))
    found = _compare_trials(a, b, objective, rule)
    return Comparisons(
        a=ComparisonSide(name=a.name, settings=_settings(a, b)),
        b=ComparisonSide(name=b.name, settings=_settings(b, a)),
        quantity=study.objective.expression,
        unit=objective.unit,
        lines=(found,),
        rule=rule,
        lower_is_better=objective.lower_is_better,
        is_time=is_step_time(objective),
        caveats=(
            *_caveats("A", a),
            *_caveats("B", b),
            *([OTHER_STUDY] if a.row.id != b.row.id else []),
        ),
        next_steps=tuple(_next_steps(found.comparison, a, b)),
    )


def _settings(side: TrialSide, other: TrialSide) -> str:
    config, base = side.trial.config, other.trial.config
    return side.settings if config is None or base is None else format_difference(config, base)


def _trial_facts(side: TrialSide) -> dict[str, object]:
    """What two trials must share to be compared, the most important first."""
    study: Study = side.row.study
    return {
        "tokens_per_step": study.workload.tokens_per_step,
        **{
            field.name: getattr(part, field.name)
            for part in (study.environment, study.workload)
            for field in fields(part)
            if field.name != "name"
        },
        "objective": study.objective.expression,
        "study": side.row.id,
    }


def _compare_trials(
    a: TrialSide, b: TrialSide, objective: Scoring, rule: DecisionRule
) -> ComparisonRow:
    name, own = a.row.study.objective.expression, list[Measured]()
    for which, side in (("A", a), ("B", b)):
        if isinstance(side.trial.outcome, Failed):
            return _failure(name, which, side.trial.outcome)
        own.append(side.trial.outcome)
    shared = max(_series(a, b, objective), key=lambda series: series.rank, default=None)
    launches = [[one] for one in own]
    if shared is not None:
        launches = [list(side.values()) for side in (shared.a, shared.b)]
    timings = [[launch.measurement for launch in side] for side in launches]
    wrong = _first_difference(name, _trial_facts(a), _trial_facts(b)) or _unfit(name, *timings)
    if wrong is not None:
        return wrong
    singles = [launch_of(launch, objective) for launch in own]
    return ComparisonRow(
        name=name,
        comparison=_separate(*singles) if shared is None else decide(shared.rounds, rule),
        a=_trial_reading(a, objective, rule),
        b=_trial_reading(b, objective, rule),
        pairs=() if shared is None else shared.pairs(objective),
    )


def _separate(a: LaunchValue | None, b: LaunchValue | None) -> Comparison:
    """One launch of each, which were no round."""
    if a is None or b is None:
        return Comparison(verdict=Verdict.UNKNOWN, reason="bad_time")
    return _undecided("not_interleaved", b.value / a.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """Rounds of one series in which both sides were launched, and those launches by round."""

    purpose: Purpose
    series: int
    rounds: tuple[Round, ...]
    a: Mapping[int, Measured]
    b: Mapping[int, Measured]

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Order of preference: a confirmation first, because other series chose the best."""
        return self.purpose is Purpose.CONFIRM, len(self.rounds), self.series

    def pairs(self, objective: Scoring) -> tuple[Pair, ...]:
        """The values of both sides in each round."""
        a, b = (_values(side.values(), objective) for side in (self.a, self.b))
        return tuple(
            Pair(round=f"{self.purpose} {self.series} {number}", a=one, b=other)
            for number, one, other in zip(self.a, a, b, strict=True)
        )


def _series(a: TrialSide, b: TrialSide, objective: Scoring) -> Iterator[_Shared]:
    series: dict[tuple[Purpose, int], list[Repeat]] = defaultdict(list)
    for repeat in a.repeats:
        if launch_of(repeat.outcome, objective) is not None:
            series[repeat.purpose, repeat.series].append(repeat)
    for (purpose, number), repeats in series.items():
        ours, theirs = (
            {
                repeat.round: repeat.outcome
                for repeat in repeats
                if repeat.ordinal == side.trial.ordinal and isinstance(repeat.outcome, Measured)
            }
            for side in (a, b)
        )
        both = [each for each in ours if each in theirs]
        if both:
            yield _Shared(
                purpose=purpose,
                series=number,
                rounds=rounds_between(repeats, b.trial.ordinal, a.trial.ordinal, objective),
                a={each: ours[each] for each in both},
                b={each: theirs[each] for each in both},
            )


def _values(launches: Iterable[Measured], objective: Scoring) -> list[float]:
    scores = [objective.score(launch.metrics, launch.absent) for launch in launches]
    return [score.value for score in scores if isinstance(score, Score)]


def _trial_reading(side: TrialSide, objective: Scoring, rule: DecisionRule) -> Reading | None:
    """The number of a trial as it is shown everywhere, by more launches than the rounds have."""
    counts = supported_launches(side.repeats, objective)
    outcomes = [launch.outcome for launch in counts if launch.ordinal == side.trial.ordinal]
    measured = [outcome for outcome in outcomes if isinstance(outcome, Measured)]
    if not measured and isinstance(side.trial.outcome, Measured):
        measured = [side.trial.outcome]
    values = _values(measured, objective)
    if not values:
        return None
    found = spread(values)
    ends = found if rule.alpha == ALPHA else reading(values, rule.alpha)
    return Reading(
        centre=found.centre,
        low=ends.low,
        high=ends.high,
        launch_count=found.launch_count,
        step_count=sum(len(launch.measurement.slowest_rank_s) for launch in measured),
    )


def _caveats(which: str, side: TrialSide) -> Iterator[str]:
    """What to keep in mind about a side: its samples, and launches that failed later."""
    if isinstance(side.trial.outcome, Measured):
        for caveat in side.trial.outcome.measurement.caveats:
            yield f"{which}: {caveat}"
    again = [r.outcome for r in side.repeats if r.ordinal == side.trial.ordinal]
    disturbed = disturbed_among((side.trial.outcome, *again))
    if disturbed is not None:
        yield f"{which}: {disturbed.caveat}"
    failed = [
        outcome
        for outcome in again
        if isinstance(outcome, Failed) and not outcome.kind.is_infrastructure
    ]
    if failed:
        cause = one_line(str(failed[0]), CAUSE_CHARS)
        yield f"{which}: {len(failed)} of {len(again)} launches to re-measure it failed; {cause}"


def _next_steps(comparison: Comparison, a: TrialSide, b: TrialSide) -> Iterator[str]:
    """What to type, from here; the store is not named in it."""
    if comparison.verdict is Verdict.UNDECIDED:
        yield f"cclsearch resume {a.row.id} --trials {MORE_TRIALS}"
        return
    outcomes = [side.trial.outcome for side in (a, b)]
    if all(isinstance(x, Measured) and x.breakdown is not None for x in outcomes):
        yield f"cclsearch trace diff {a.name} {b.name}"
        return
    faulty = next((side for side in (a, b) if isinstance(side.trial.outcome, Failed)), b)
    yield f"cclsearch trial show {faulty.row.id} {faulty.trial.ordinal}"


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
    return _undecided(reason, statistics.median(b.values) / statistics.median(a.values))


K = TypeVar("K", bound=Hashable)


def _compare_points(
    sides: tuple[BenchSide | TimingsSide, BenchSide | TimingsSide],
    points: tuple[Mapping[K, object], Mapping[K, object]],
    judged: Mapping[K, ComparisonRow],
    rule: DecisionRule,
    words: Callable[[K], str],
    thing: str,
) -> Comparisons:
    """The verdicts on what both sides have; what one side lacks is named and not judged."""
    (a, b), (of_a, of_b) = sides, points
    if not judged:
        one, other = (words(next(iter(side))) for side in points)
        raise StudyError(
            f"{a.name} and {b.name} have no {thing} in common ({one}, for example, and {other}); "
            f"give results of the same {thing}s"
        )
    results = corrected_for_number([(line.comparison, rule) for line in judged.values()])
    return Comparisons(
        a=ComparisonSide(name=a.name, settings=a.settings),
        b=ComparisonSide(name=b.name, settings=b.settings),
        quantity=LATENCY.partition("(")[0],
        unit="us",
        lines=tuple(
            replace(line, comparison=each)
            for line, each in zip(judged.values(), results, strict=True)
        ),
        rule=rule,
        only_a=tuple(words(point) for point in of_a if point not in of_b),
        only_b=tuple(words(point) for point in of_b if point not in of_a),
    )


def _advised(found: Comparisons, advice: str) -> Comparisons:
    """The same with advice, if other launches would help."""
    unpaired = any(line.comparison.reason in UNPAIRED for line in found.lines)
    return replace(found, next_steps=(advice,)) if unpaired else found


RUN, ORDER = "RunId", "Order"
ROUND_COLUMNS = ("LaunchId", "Block")

Rows: TypeAlias = Sequence[BenchRow]


def compare_bench(a: BenchSide, b: BenchSide, terms: Terms) -> Comparisons:
    """Judge the latencies of B against those of A; what one side lacks is not judged."""
    rule = terms.over(ONCE)
    points = _by_point(a.rows), _by_point(b.rows)
    found = _compare_points((a, b), points, judge_points(*points, rule), rule, str, "point")
    return _advised(
        replace(found, caveats=_devices(a.rows, b.rows)),
        f"run A and B in turns, {rule.min_rounds} times or more, and name each round in a "
        "column Block of both files",
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

    def both_have(column: str) -> bool:
        return all(column in row.columns for row in (*a, *b))

    run = (RUN,) if both_have(RUN) else ()
    for name in filter(both_have, ROUND_COLUMNS):
        labels = [set(_by_label(rows, (*run, name))) for rows in (a, b)]
        if labels[0] & labels[1]:
            return (*run, name)
    return run


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


def _devices(a: Rows, b: Rows) -> tuple[str, ...]:
    """A caveat where the two were measured on other devices."""
    named = [
        " and ".join(sorted({row.columns.get("DeviceName", "") for row in rows})) for rows in (a, b)
    ]
    if named[0] == named[1] or not all(named):
        return ()
    return (f"A was measured on {named[0]}, B on {named[1]}",)


def compare_timings(a: TimingsSide, b: TimingsSide, terms: Terms) -> Comparisons:
    """Judge the tasks of B against those of A; one task on each side is compared by any name."""
    rule = terms.over(ONCE)
    of_a, of_b = ({timing.task: timing for timing in merge(side.timings)} for side in (a, b))
    if len(of_a) == len(of_b) == 1:
        of_b = dict(zip(of_a, of_b.values(), strict=True))
    judged = {
        task: judge_replicates(task_words(task), _launches(timing), _launches(of_b[task]), rule)
        for task, timing in of_a.items()
        if task in of_b
    }
    found = _compare_points((a, b), (of_a, of_b), judged, rule, task_words, "task")
    return _advised(
        replace(found, quantity="time of a call", unit="s"),
        "time both in turns, four times or more, each turn under one launch name on both sides",
    )


def task_words(task: Task) -> str:
    """A task by what distinguishes it from others in a table."""
    threads = f"{task.num_threads} threads" if task.num_threads > 1 else None
    words = (task.label, task.row_name, task.description, task.env, threads)
    return one_line(" ".join(word for word in words if word), NAME_CHARS)


def _launches(timing: Timing) -> Replicates:
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
