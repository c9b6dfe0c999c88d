"""Regressions and improvements of each label against the baseline, point by point."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from evaluator.timing.decision import (
    ROUNDING,
    TOO_FEW_ROUNDS,
    Comparison,
    DecisionRule,
    Noise,
    Verdict,
    corrected_for_number,
    detectable,
)
from records.errors import StudyError
from search.collective_bench.results import DevicePoint, Figures, Results, by_point
from search.compare.compare import ONCE, UNPAIRED, check_alpha, judge_points

NOT_MATCHED: Final = "no_baseline_point"
SKIPPED: Final = "skipped"
"""Status of a point that the library lacks: nothing went wrong."""
TOO_FEW: Final = (*UNPAIRED, TOO_FEW_ROUNDS)
"""Reasons for which only other launches help."""
PASSING_FACTOR: Final = 2.0
"""A point passes only if its interval excludes a slowdown of this many times the threshold."""
ONE_DEFINITION: Final = frozenset(
    {
        *("all_reduce", "reduce_scatter", "reduce_scatter_single"),
        *("all_to_all", "all_to_all_single", "send_recv"),
    }
)
"""Collectives whose bus bandwidth is the same by every convention."""


class Standing(StrEnum):
    """How a point of a label stands to the baseline's."""

    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    NEUTRAL = "neutral"
    """No difference beyond the threshold was shown."""
    ABSENT = "n/a"
    """There is nothing to compare; it counts for nothing."""


CLAIMS: Final = {Verdict.SLOW: Standing.REGRESSION, Verdict.FAST: Standing.IMPROVEMENT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much latency must change, in percent of the baseline's, and how sure that must be.

    Regressions and improvements of all points together are wrong in at most a share of `alpha`.
    """

    percent: float = 5.0
    alpha: float = 0.05

    def __post_init__(self) -> None:
        if not 0 <= self.percent < 100:
            raise StudyError(
                f"--threshold {self.percent:g}: give a percentage from 0 to below 100, as in "
                "--threshold 5"
            )
        check_alpha(self.alpha)

    @property
    def slower(self) -> DecisionRule:
        """When it is slower; a change of exactly the threshold is not, however floats round it."""
        return self._rule(self.percent / 100)

    @property
    def passing_percent(self) -> float:
        """The slowdown that the interval of a point must exclude for a gate to pass it."""
        return PASSING_FACTOR * self.percent

    @property
    def faster(self) -> DecisionRule:
        """When it is faster: the threshold is of the baseline, the margin of a rule of the less."""
        return self._rule(self.percent / (100 - self.percent))

    def _rule(self, margin: float) -> DecisionRule:
        return replace(ONCE, margin=margin + ROUNDING, alpha=self.alpha)


@dataclass(frozen=True, slots=True, kw_only=True)
class PointVerdict:
    """How one point stands and why; changes are in percent of the baseline, positive is better.

    The change of latency has no interval without rounds.
    """

    standing: Standing
    reason: str
    latency_change: float | None = None
    latency_change_low: float | None = None
    latency_change_high: float | None = None
    bandwidth_change: float | None = None
    round_count: int = 0
    is_undecided: bool = False
    """Whether a regression may be hidden here, so that a gate cannot let it pass."""
    detectable_percent: float | None = None
    """The smallest slowdown that these rounds would show in four cases of five."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairVerdicts:
    """Every point of a label against the baseline."""

    own: Results
    base: Results
    points: Mapping[DevicePoint, PointVerdict]

    @property
    def words(self) -> str:
        """What is compared with what."""
        return f"{self.own.label} against {self.base.label}"

    @property
    def missing(self) -> tuple[DevicePoint, ...]:
        """Points that were measured for the baseline alone."""
        return tuple(point for point in self.base.rows if point not in self.own.rows)

    @property
    def broken(self) -> tuple[DevicePoint, ...]:
        """Points of the baseline at which a launch of the label failed or was wrong."""
        failed = by_point(row for row in self.own.left_out if row.status != SKIPPED)
        return tuple(point for point in self.base.rows if point in failed)

    @property
    def unmeasured(self) -> tuple[DevicePoint, ...]:
        """Points of the baseline of which the label has no row at all."""
        left_out = by_point(self.own.left_out)
        return tuple(point for point in self.missing if point not in left_out)

    @property
    def counts(self) -> Mapping[Standing, int]:
        """Points of each standing."""
        found = Counter(each.standing for each in self.points.values())
        return {standing: found[standing] for standing in Standing}

    @property
    def regression_count(self) -> int:
        """Points that became slower."""
        return self.counts[Standing.REGRESSION]

    @property
    def judged_count(self) -> int:
        """Points that could be compared."""
        return len(self.points) - self.counts[Standing.ABSENT]

    @property
    def too_seldom_count(self) -> int:
        """Compared points that were measured too seldom to decide anything."""
        return sum(
            each.standing is Standing.NEUTRAL and each.reason in TOO_FEW
            for each in self.points.values()
        )

    @property
    def open_count(self) -> int:
        """Points at which a regression may be hidden."""
        return sum(each.is_undecided for each in self.points.values()) + len(self.unmeasured)

    def largest_slowdown_percent(self, *, undecided: bool) -> float | None:
        """The end of the widest interval of the neutral points that are undecided, or that pass."""
        ends = (
            -each.latency_change_low
            for each in self.points.values()
            if each.standing is Standing.NEUTRAL
            and each.is_undecided is undecided
            and each.latency_change_low is not None
        )
        return max(ends, default=None)


def judge_pairs(
    labels: Sequence[Results], baseline: Results, limits: Limits
) -> tuple[PairVerdicts, ...]:
    """Judge each label against the baseline at every point that it was measured at.

    Claims are corrected for the number of points of all labels, so that of all of them together as
    many are wrong as the limits allow for one.
    """
    chosen = [
        (label, point, _by_side(slower.comparison, faster[point].comparison, limits))
        for label in labels
        for faster in [judge_points(baseline.rows, label.rows, limits.faster)]
        for point, slower in judge_points(baseline.rows, label.rows, limits.slower).items()
    ]
    corrected = corrected_for_number([judged for _, _, judged in chosen])
    found: dict[str, dict[DevicePoint, PointVerdict]] = defaultdict(dict)
    for (label, point, _), each in zip(chosen, corrected, strict=True):
        sides = baseline.figures[point], label.figures[point]
        found[label.label][point] = replace(
            _verdict(point, each, sides, limits),
            detectable_percent=_detectable_percent(each, limits.slower, len(chosen)),
        )
    unmatched = PointVerdict(standing=Standing.ABSENT, reason=NOT_MATCHED)
    return tuple(
        PairVerdicts(
            own=label,
            base=baseline,
            points={point: found[label.label].get(point, unmatched) for point in label.rows},
        )
        for label in labels
    )


def _by_side(
    slower: Comparison, faster: Comparison, limits: Limits
) -> tuple[Comparison, DecisionRule]:
    """Of two comparisons by different margins, the one for the side that the middle lies on."""
    if slower.ratio is not None and slower.ratio > 1:
        return slower, limits.slower
    return faster, limits.faster


def _verdict(
    point: DevicePoint, found: Comparison, sides: tuple[Figures, Figures], limits: Limits
) -> PointVerdict:
    if found.verdict is Verdict.UNKNOWN:
        return PointVerdict(standing=Standing.ABSENT, reason=found.reason, is_undecided=True)
    base, own = sides
    change = 100 * (base.latency_us - own.latency_us) / base.latency_us
    plain = PointVerdict(
        standing=Standing.NEUTRAL,
        reason=found.reason,
        latency_change=change,
        bandwidth_change=_bandwidth_change(point, base, own),
        round_count=found.round_count,
        is_undecided=True,
    )
    if found.ratio is None or found.ratio_low is None or found.ratio_high is None:
        return plain
    standing = CLAIMS.get(found.verdict, Standing.NEUTRAL)
    return replace(
        plain,
        standing=standing,
        latency_change=100 * (1 - found.ratio),
        latency_change_low=100 * (1 - found.ratio_high),
        latency_change_high=100 * (1 - found.ratio_low),
        is_undecided=standing is Standing.NEUTRAL and _may_hide_regression(found, limits),
    )


def _detectable_percent(found: Comparison, rule: DecisionRule, point_count: int) -> float | None:
    """By the level that Holm's correction asks of the clearest of all points."""
    if found.noise is None or found.round_count < 2:
        return None
    noise = Noise(sd=found.noise, freedom=found.round_count - 1)
    strictest = replace(rule, max_rounds=found.round_count, alpha=rule.alpha / point_count)
    ratio = detectable(noise, strictest)
    return None if ratio is None else 100 * (ratio * (1 + rule.margin) - 1)


def _may_hide_regression(found: Comparison, limits: Limits) -> bool:
    """Whether the interval of what showed no regression does not exclude one.

    A claim that was withdrawn lies beyond the threshold, however narrow its interval is.
    """
    if found.ratio_low is None or found.ratio_high is None:
        return True
    is_withdrawn = found.ratio_low > 1 + limits.slower.margin
    return is_withdrawn or found.ratio_high > 1 + limits.passing_percent / 100 + ROUNDING


def _bandwidth_change(point: DevicePoint, base: Figures, own: Figures) -> float | None:
    """Change of bus bandwidth, None where a side has none or they are reckoned differently."""
    if base.bus_gb_per_s is None or own.bus_gb_per_s is None or base.bus_gb_per_s <= 0:
        return None
    if own.convention != base.convention and point.collective not in ONE_DEFINITION:
        return None
    change = 100 * ((own.bus_gb_per_s - base.bus_gb_per_s) / base.bus_gb_per_s)
    return change if math.isfinite(change) else None


REGRESSED, UNDECIDED = 3, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisOptions:
    """What to analyse, by which limits, and where it goes.

    `warn` receives what is left out, `doing` what is under way.
    """

    folders: tuple[str, ...]
    outdir: Path
    baseline: str | None = None
    limits: Limits = field(default_factory=Limits)
    fail_on_regression: bool = False
    allow_undecided: bool = False
    warn: Callable[[str], None] = lambda _: None
    doing: Callable[[str], None] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """Results in the order given, and the verdicts on each against the baseline, if there is one.

    `warnings` name what was left out, `caveats` what the verdicts cannot show.
    """

    results: tuple[Results, ...]
    baseline: Results | None
    pairs: tuple[PairVerdicts, ...]
    options: AnalysisOptions
    warnings: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()

    @property
    def regression_count(self) -> int:
        """Regressions of all labels."""
        return sum(pair.regression_count for pair in self.pairs)

    @property
    def open_count(self) -> int:
        """Points of all labels at which a regression may be hidden."""
        return sum(pair.open_count for pair in self.pairs)

    @property
    def exit_status(self) -> int:
        """What the command ends with: what broke is no better than what became slower."""
        if not self.options.fail_on_regression:
            return 0
        if self.regression_count or any(pair.broken for pair in self.pairs):
            return REGRESSED
        return UNDECIDED if self.open_count and not self.options.allow_undecided else 0

    def points(self) -> Iterator[DevicePoint]:
        """Every point of any label, by collective and size."""
        found = {point for results in self.results for point in results.rows}
        yield from sorted(found, key=lambda point: point.place)
