"""Decide whether a candidate is faster than an anchor, from repeated launches of both.

The round is the unit of inference: one launch of each side, close in time, in random order. What
is judged is the mean log ratio over rounds, against a margin below which a difference does not
matter in practice. Steps only sharpen the value of a launch; many steps of one launch are one
round. `compare_unpaired` is for launches of different days, which no round pairs. `spread`
summarises the launches of one configuration. Student's t distribution is here because reading a
store must not load scipy.
"""

import math
import statistics
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Key = TypeVar("Key", bound=Hashable)

POWER = 0.80
ORDER_ALPHA = 0.01
LEAST_ROUNDS_PER_ORDER = 3
ROUNDING = 1e-9
LARGEST_LOG = 700.0
EARLY_SHARE = 0.02
"""Share of the error rate that is spent at each look before `min_rounds`, which sees only a
difference that is far larger than the noise."""
TOO_FEW_ROUNDS = "too_few_rounds"
LOST_AMONG_MANY = "lost_among_many"
"""Reason of a claim that chance alone explains, given the number of comparisons."""
FINAL_REASONS = ("noise_exceeds_band", "direction_known_size_unclear", "budget_exhausted")


class Verdict(StrEnum):
    """`UNKNOWN` is for sides that do not compare, `UNDECIDED` for evidence that is not enough."""

    FAST = "fast"
    SLOW = "slow"
    SAME = "same"
    UNDECIDED = "undecided"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchValue:
    """One launch's value, lower is better; `mean` is the same from the mean of its steps.

    `late_shift` is by how much the level of its steps changed at the end, as a log ratio; 0 where
    they had settled.
    """

    value: float
    mean: float | None = None
    late_shift: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One launch of each side; which came first, where that is known.

    `disturbed` is whether something else on the machine may have slowed either. It is counted, and
    decides nothing here.
    """

    candidate: LaunchValue
    anchor: LaunchValue
    candidate_first: bool | None = None
    disturbed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRule:
    """How a decision is made: error rate, practical margin, and how many rounds it may take.

    With `look_often` the evidence may be looked at after every round, and the error rate holds for
    all looks together; fewer than `min_rounds` then decide only a difference far larger than the
    noise. Without it the evidence is looked at once. Where several candidates are compared with one
    anchor, a claim that one is faster or slower may err less often than an interval: `claim_alpha`.
    It says that the difference exceeds `claim_margin`, by default the margin.
    """

    margin: float = 0.02
    alpha: float = 0.05
    claim_alpha: float | None = None
    claim_margin: float | None = None
    min_rounds: int = 4
    max_rounds: int = 24
    look_often: bool = True

    def __post_init__(self) -> None:
        if not (0 <= self.margin < math.inf and 0 < self.alpha < 0.5):
            raise ValueError(f"margin {self.margin} or alpha {self.alpha} is out of range")
        if not 1 <= self.min_rounds <= self.max_rounds:
            raise ValueError(f"{self.min_rounds} to {self.max_rounds} rounds is not a range")

    @property
    def band(self) -> float:
        """Log ratio of the margin."""
        return math.log1p(self.margin)

    @property
    def claim_band(self) -> float:
        """Log ratio that a claim has to exceed."""
        return self.band if self.claim_margin is None else math.log1p(self.claim_margin)

    @property
    def claims_err(self) -> float:
        """How often a claim may be wrong."""
        return self.alpha if self.claim_alpha is None else self.claim_alpha


STANDARD_RULE = DecisionRule()


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Standard deviation of a round's log ratio, known from elsewhere, and how well (`freedom`)."""

    sd: float
    freedom: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A verdict with its evidence; `ratio` is candidate over anchor, with its interval.

    `noise` is the standard deviation of a round's log ratio. `detectable` is the smallest ratio
    above 1 that as many rounds as the rule allows would show in four cases of five.
    """

    verdict: Verdict
    reason: str
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    round_count: int = 0
    noise: float | None = None
    detectable: float | None = None
    alpha: float = 0.05
    """How often the interval may be wrong."""
    disturbed_count: int = 0
    """Rounds among them that something else on the machine may have slowed."""

    @property
    def settled(self) -> bool:
        """Whether more rounds cannot, or will not, change the verdict."""
        final = (Verdict.FAST, Verdict.SLOW, Verdict.SAME, Verdict.UNKNOWN)
        return self.verdict in final or self.reason in FINAL_REASONS


def decide(
    rounds: Sequence[Round],
    rule: DecisionRule = STANDARD_RULE,
    *,
    noise: Noise | None = None,
) -> Comparison:
    """Decide whether a candidate is faster than an anchor after these rounds.

    `noise` from other launches of the same machine lets few rounds decide; without it at least two
    are needed.
    """
    found = _decided(rounds, rule, noise)
    return replace(found, disturbed_count=sum(r.disturbed for r in rounds))


def log_ratios(rounds: Sequence[Round]) -> list[float]:
    """Return the logarithm of candidate over anchor in each round."""
    return _logs(rounds, lambda launch: launch.value)


def detectable(noise: Noise, rule: DecisionRule = STANDARD_RULE) -> float | None:
    """Return the ratio that all rounds of the rule would show with 80 % power, without a margin.

    (t(1 - alpha/2) + t(0.8)) sd / sqrt(rounds) on the log scale; None where it is beyond numbers.
    """
    rounds = rule.max_rounds
    freedom = max(noise.freedom, rounds - 1, 1)
    quantiles = sum(student_quantile(level, freedom) for level in (1 - rule.claims_err / 2, POWER))
    return _ratio(quantiles * noise.sd / math.sqrt(rounds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """What launches say of a log ratio: its expected value and the standard error of that."""

    log_ratio: float = 0.0
    error: float = 1.0

    def combined(self, log_ratio: float, error: float) -> "Belief":
        """Return the belief after independent launches with this mean and standard error."""
        if error <= 0:
            return Belief(log_ratio=log_ratio, error=0.0)
        if self.error <= 0:
            return self
        own, other = self.error**-2, error**-2
        mean = (own * self.log_ratio + other * log_ratio) / (own + other)
        return Belief(log_ratio=mean, error=(own + other) ** -0.5)


def chance_of_claim(
    belief: Belief,
    rule: DecisionRule,
    sd: float,
    count: int,
    made: Sequence[float] = (),
    *,
    freedom: int = 0,
) -> float:
    """Return the probability that `count` rounds show a candidate to be faster than an anchor.

    Rounds vary by `sd`; the log ratios of those already `made` are among them. `freedom` is how
    well the noise is known from elsewhere.
    """
    ahead = count - len(made)
    if ahead <= 0 or count < max(rule.min_rounds, 2):
        return 0.0
    _, wide, _ = _boundaries(count, count - 1 + freedom, rule)
    mean = (math.fsum(made) + ahead * belief.log_ratio) / count
    spread = ahead / count * math.hypot(belief.error, sd / math.sqrt(ahead))
    needed = -rule.claim_band - wide * sd
    return NormalDist(mean, spread).cdf(needed) if spread > 0 else float(mean < needed)


def p_value(found: Comparison, rule: DecisionRule) -> float | None:
    """Return how often sides within the margin differ as clearly as these, in either direction.

    For a rule that looks once, whose noise is that of its own rounds; a claim has less than the
    rule's alpha. None where there is no interval.
    """
    if found.ratio is None or found.noise is None:
        return None
    beyond = abs(math.log(found.ratio)) - rule.claim_band
    if found.noise == 0:
        return 0.0 if beyond > 0 else 1.0
    count = found.round_count
    return min(1.0, 2 * student_tail(beyond * math.sqrt(count) / found.noise, count - 1))


def corrected_for_number(found: Sequence[tuple[Comparison, DecisionRule]]) -> list[Comparison]:
    """Withdraw claims of a difference that this number of comparisons makes by chance (Holm).

    All claims that remain are right together with the probability that the rules ask of one.
    """
    values = [p_value(each, rule) for each, rule in found]
    tested = sorted(value for value in values if value is not None)
    alpha = min((rule.alpha for _, rule in found), default=STANDARD_RULE.alpha)
    shown = 0
    while shown < len(tested) and tested[shown] < alpha / (len(tested) - shown):
        shown += 1
    limit = tested[shown] if shown < len(tested) else math.inf
    return [
        replace(each, verdict=Verdict.UNDECIDED, reason=LOST_AMONG_MANY)
        if each.verdict in (Verdict.FAST, Verdict.SLOW) and value is not None and value >= limit
        else each
        for (each, _), value in zip(found, values, strict=True)
    ]


def pooled(tables: Sequence[Sequence[Sequence[float]]]) -> Noise | None:
    """Return the noise of a round from repeated launches of equal configurations, if there are any.

    Each table holds positive values shaped (rounds, configurations). What rounds have in common is
    taken out where there are several configurations, as pairing does. A round's log ratio has twice
    the variance of a launch's.
    """
    squares, freedom = 0.0, 0
    for table in tables:
        logs = [[math.log(value) for value in launched] for launched in table]
        means = [statistics.fmean(column) for column in zip(*logs, strict=True)]
        for row in logs:
            residual = [log - mean for log, mean in zip(row, means, strict=True)]
            shared = statistics.fmean(residual) if len(row) > 1 else 0.0
            squares += sum((each - shared) ** 2 for each in residual)
        freedom += (len(logs) - 1) * max(len(means) - 1, 1)
    return Noise(sd=math.sqrt(2 * squares / freedom), freedom=freedom) if freedom else None


def mean_of_faster_half(steps_s: Sequence[float]) -> float:
    """Return the mean of the faster half of the steps, which varies least between equal launches.

    In 180 pairs of `benchmarks/data/decision_launches.jsonl` its variance is 0.77 of the median's
    (95 % interval 0.65 to 0.92), in 73 of `landscape.jsonl` 0.62 (0.48 to 0.78).
    """
    return statistics.fmean(sorted(steps_s)[: max(1, len(steps_s) // 2)])


TRIMMED_SHARE = 0.2
"""Share of the steps at either end that a comparison of neighbouring steps omits."""


def values_in_turns(steps_s: Mapping[Key, Sequence[float]]) -> dict[Key, float]:
    """Return one value for each of several jobs that took turns, a step each.

    Ratios of these values are trimmed means over pairs of neighbouring steps.
    """
    logs = {key: [math.log(step_s) for step_s in own] for key, own in steps_s.items()}
    shared = [statistics.fmean(beside) for beside in zip(*logs.values(), strict=True)]
    level = statistics.fmean(shared)
    apart = {
        key: sorted(log - other for log, other in zip(own, shared, strict=True))
        for key, own in logs.items()
    }
    outside = int(TRIMMED_SHARE * len(shared))
    return {
        key: math.exp(level + statistics.fmean(each[outside : len(each) - outside]))
        for key, each in apart.items()
    }


def _decided(rounds: Sequence[Round], rule: DecisionRule, noise: Noise | None) -> Comparison:
    if not rounds:
        return Comparison(verdict=Verdict.UNKNOWN, reason="no_samples")
    if not all(_usable(side.value) for r in rounds for side in (r.candidate, r.anchor)):
        return Comparison(verdict=Verdict.UNKNOWN, reason="bad_time", round_count=len(rounds))
    logs = _logs(rounds, lambda launch: launch.value)
    interval = _interval(logs, rule, noise)
    if interval is None or (len(rounds) < rule.min_rounds and not _is_plain(interval, rule)):
        return Comparison(
            verdict=Verdict.UNDECIDED,
            reason=TOO_FEW_ROUNDS,
            ratio=_ratio(statistics.fmean(logs)),
            round_count=len(rounds),
        )
    verdict, reason = _judge(interval, rule, len(rounds))
    if verdict is not Verdict.UNDECIDED:
        claims = verdict is not Verdict.SAME
        veto = _veto(rounds, interval.beyond(rule) if claims else 0.0)
        if claims and _means_contradict(rounds, interval, rule):
            veto = "centre_disagreement"
        verdict, reason = (Verdict.UNDECIDED, veto) if veto else (verdict, reason)
    return Comparison(
        verdict=verdict,
        reason=reason,
        ratio=_ratio(interval.mean),
        ratio_low=_ratio(interval.mean - interval.half),
        ratio_high=_ratio(interval.mean + interval.half),
        round_count=len(rounds),
        noise=interval.sd,
        detectable=detectable(Noise(sd=interval.sd, freedom=interval.freedom), rule),
        alpha=rule.alpha,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Interval:
    """Mean log ratio with the half widths of its interval, of that for claims and for sameness."""

    mean: float
    half: float
    wide: float
    narrow: float
    sd: float
    freedom: int

    def beyond(self, rule: DecisionRule) -> float:
        """By how much the interval for claims clears what a claim has to exceed."""
        return abs(self.mean) - self.wide - rule.claim_band


def _interval(logs: Sequence[float], rule: DecisionRule, noise: Noise | None) -> _Interval | None:
    count = len(logs)
    own = statistics.stdev(logs) if count > 1 else None
    if own is None and noise is None:
        return None
    freedom = count - 1 + (noise.freedom if noise else 0)
    sd = own or 0.0
    if noise is not None:
        squares = noise.freedom * noise.sd**2 + (count - 1) * sd**2
        # A pair that is noisier than the rest must not be judged by their lower noise.
        sd = max(sd, math.sqrt(squares / freedom))
    mean = statistics.fmean(logs)
    half, wide, narrow = (sd * each for each in _boundaries(count, freedom, rule))
    return _Interval(mean=mean, half=half, wide=wide, narrow=narrow, sd=sd, freedom=freedom)


def _is_plain(interval: _Interval, rule: DecisionRule) -> bool:
    """Whether a difference is so large that it needs no more rounds; no noise at all is chance."""
    return rule.look_often and interval.sd > 0 and interval.beyond(rule) > 0


def _boundaries(count: int, freedom: int, rule: DecisionRule) -> Iterator[float]:
    """Half widths of the intervals of a mean, in standard deviations of one round."""
    for alpha in (rule.alpha, rule.claims_err, 2 * rule.alpha):
        level = 1 - _level(count, alpha, rule) / 2
        yield student_quantile(level, freedom) / math.sqrt(count)


def _level(count: int, alpha: float, rule: DecisionRule) -> float:
    """How often an interval after this number of rounds may be wrong."""
    if not rule.look_often:
        return alpha
    if count < rule.min_rounds:
        return alpha * EARLY_SHARE
    return sequential_level(count, alpha=alpha, first=rule.min_rounds, last=rule.max_rounds)


def _judge(interval: _Interval, rule: DecisionRule, count: int) -> tuple[Verdict, str]:
    if abs(interval.mean) + interval.narrow <= rule.band:
        return Verdict.SAME, "paired_interval_inside_band"
    if interval.beyond(rule) > 0:
        verdict = Verdict.FAST if interval.mean < 0 else Verdict.SLOW
        return verdict, "paired_interval_clears_band"
    is_last = count >= rule.max_rounds
    if not is_last and not _is_futile(interval, rule, count):
        return Verdict.UNDECIDED, "interval_too_wide"
    if abs(interval.mean) > interval.wide:
        return Verdict.UNDECIDED, "direction_known_size_unclear"
    return Verdict.UNDECIDED, "budget_exhausted" if is_last else "noise_exceeds_band"


def _is_futile(interval: _Interval, rule: DecisionRule, count: int) -> bool:
    """Whether all rounds together would leave it open, even if luck hid one standard error."""
    error = interval.sd / math.sqrt(count)
    outside = abs(interval.mean) + error - rule.claim_band
    inside = rule.band - max(abs(interval.mean) - error, 0.0)
    freedom = interval.freedom + rule.max_rounds - count
    _, wide, narrow = (interval.sd * each for each in _boundaries(rule.max_rounds, freedom, rule))
    return wide > outside and narrow > inside


def _veto(rounds: Sequence[Round], spare: float) -> str | None:
    """Why a verdict must not stand although the interval speaks for it.

    A doubt that is worth less than what the interval leaves to spare changes nothing.
    """
    last = rounds[-1]
    if last.candidate.late_shift + last.anchor.late_shift > spare:
        return "not_steady"
    return "order_effect" if _order_effect(rounds) > spare else None


def _means_contradict(rounds: Sequence[Round], interval: _Interval, rule: DecisionRule) -> bool:
    """Whether the means of the same launches point the other way, by more than the band."""
    values = [side.mean for r in rounds for side in (r.candidate, r.anchor)]
    if not all(value is not None and _usable(value) for value in values):
        return False
    other = statistics.fmean(_logs(rounds, lambda launch: launch.mean))
    return abs(other) > rule.band and other * interval.mean < 0


def _order_effect(rounds: Sequence[Round]) -> float:
    """By how much rounds differ by which side came first; 0 where they do not, by Welch's t."""
    first, second = (
        _logs([r for r in rounds if r.candidate_first is order], lambda launch: launch.value)
        for order in (True, False)
    )
    if min(len(first), len(second)) < LEAST_ROUNDS_PER_ORDER:
        return 0.0
    gap = abs(statistics.fmean(first) - statistics.fmean(second))
    shares = [statistics.variance(logs) / len(logs) for logs in (first, second)]
    squares = sum(
        share**2 / (len(logs) - 1) for share, logs in zip(shares, (first, second), strict=True)
    )
    limit = ROUNDING
    if squares:
        quantile = student_quantile(1 - ORDER_ALPHA / 2, sum(shares) ** 2 / squares)
        limit += quantile * math.sqrt(sum(shares))
    return gap if gap > limit else 0.0


def _logs(rounds: Sequence[Round], account: Callable[[LaunchValue], float | None]) -> list[float]:
    """Return the log ratio of each round; all of them have the account."""
    both = ((account(r.candidate), account(r.anchor)) for r in rounds)
    return [math.log(a) - math.log(b) for a, b in both if a is not None and b is not None]


def _ratio(log_ratio: float) -> float | None:
    """The ratio of a logarithm; None for one that floats do not hold."""
    return math.exp(log_ratio) if abs(log_ratio) < LARGEST_LOG else None


def _usable(value: float) -> bool:
    return 0 < value < math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpairedComparison:
    """Ratio of today's geometric mean to that of another day, with its interval.

    `recorded_high` is the upper end of the other day's own interval. Values are None where there
    are too few launches; `reason` then says why.
    """

    reason: str = ""
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    recorded_high: float | None = None


def compare_unpaired(
    now: Sequence[float],
    then: Sequence[float],
    rule: DecisionRule,
    alike: Sequence[Sequence[float]] = (),
) -> UnpairedComparison:
    """Compare launches of today with those of another day; lower values are better.

    Each launch stands for itself: drift between the days is part of the ratio. How much equal
    launches differ is estimated from all groups of equal launches together.

    `alike` are further groups of equal launches, each of one configuration: with them a side may be
    a single launch. The rule's rounds are launches of today, which are looked at as they come.
    """
    if not now or not then:
        return UnpairedComparison(reason="no_samples")
    if not all(0 < value < math.inf for group in (now, then, *alike) for value in group):
        return UnpairedComparison(reason="bad_time")
    mean = _mean_log(now) - _mean_log(then)
    error, recorded_error = (
        _standard_error(now, (then, *alike)),
        _standard_error(then, alike or (now,)),
    )
    if error is None or recorded_error is None or len(now) < rule.min_rounds:
        return UnpairedComparison(reason=TOO_FEW_ROUNDS, ratio=_ratio(mean))
    level = 1 - _level(len(now), rule.alpha, rule) / 2
    half, recorded_half = _half_width(error, level), _half_width(recorded_error, 1 - rule.alpha / 2)
    return UnpairedComparison(
        ratio=_ratio(mean),
        ratio_low=_ratio(mean - half),
        ratio_high=_ratio(mean + half),
        recorded_high=_ratio(recorded_half),
    )


def _half_width(error: Noise, level: float) -> float:
    return error.sd * student_quantile(level, error.freedom)


def _standard_error(side: Sequence[float], others: Sequence[Sequence[float]]) -> Noise | None:
    """How far a side's mean logarithm may be off by chance; None where no launches are equal."""
    own, own_freedom = _pooled_deviation((side,))
    pooled, freedom = _pooled_deviation((side, *others))
    if not freedom:
        return None
    # A side that is noisier than the rest must not be judged by their lower noise.
    sd = max(own, pooled) if own_freedom else pooled
    return Noise(sd=sd / math.sqrt(len(side)), freedom=freedom)


def _mean_log(values: Sequence[float]) -> float:
    return math.fsum(map(math.log, values)) / len(values)


def _pooled_deviation(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Standard deviation of a launch's logarithm within its group, and its degrees of freedom."""
    squares, freedom = 0.0, 0
    for group in filter(None, groups):
        mean = _mean_log(group)
        squares += sum((math.log(value) - mean) ** 2 for value in group)
        freedom += len(group) - 1
    return (math.sqrt(squares / freedom) if freedom else 0.0), freedom


LEAST_FOR_INTERVAL = 3
ALPHA = 0.05
"""How often an interval may miss the median."""
ONE_SIDE = ALPHA / 2
SPREAD_LARGEST_LOG = 100.0
"""Three launches that leave e^100 open have shown nothing, and larger ends may not be floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median of repeated launches with a 95 % interval of it, None for fewer than three launches.

    `values` are the launches in their order; empty where they are blocks of one launch, and in
    summaries that were stored before values were kept.
    """

    centre: float
    low: float | None
    high: float | None
    launch_count: int
    values: tuple[float, ...] = ()

    @property
    def both(self) -> tuple[float, float] | None:
        """The values where there are two, since they have no interval; None otherwise."""
        if self.launch_count != 2 or len(self.values) != 2:
            return None
        return self.values[0], self.values[1]


def spread(values: Sequence[float]) -> Spread:
    """Return the median over launches with its 95 % interval, which always holds the median.

    From six launches on their order gives the interval, whatever the distribution. For three to
    five it is Student's, of the mean logarithm where all values are above zero, else of the mean:
    the median lies within, because no median is further from the mean than the deviation.
    """
    if not values:
        raise ValueError("no launches")
    centre = statistics.median(values)
    low, high = _spread_interval(values, centre) or (None, None)
    return Spread(
        centre=centre,
        low=low,
        high=high,
        launch_count=len(values),
        values=tuple(values),
    )


def order_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the median by the order of values; five or fewer have none."""
    ordered = sorted(values)
    outside = _left_out(len(ordered))
    return (ordered[outside - 1], ordered[-outside]) if outside else None


def _spread_interval(values: Sequence[float], centre: float) -> tuple[float, float] | None:
    if len(values) < LEAST_FOR_INTERVAL:
        return None
    ordered = order_interval(values)
    if ordered is not None:
        return ordered
    if min(values) <= 0:
        low, high = _student_interval([value - centre for value in values])
        return centre + min(low, 0.0), centre + max(high, 0.0)
    ratios = [value / centre for value in values]
    if not all(map(_usable, ratios)):
        return None
    low, high = _student_interval([math.log(ratio) for ratio in ratios])
    if high > SPREAD_LARGEST_LOG:
        return None
    return centre * math.exp(min(low, 0.0)), centre * math.exp(max(high, 0.0))


def _student_interval(values: Sequence[float]) -> tuple[float, float]:
    count, mean = len(values), statistics.fmean(values)
    error = statistics.stdev(values) / math.sqrt(count)
    half = error * student_quantile(1 - ONE_SIDE, count - 1)
    return mean - half, mean + half


def _left_out(count: int) -> int:
    """How many values on either side cannot be the end: the binomial quantile of 2.5 %."""
    log_chance, reached = -count * math.log(2), 0.0
    for outside in range(count + 1):
        reached += math.exp(log_chance)
        if reached >= ONE_SIDE:
            return outside
        log_chance += math.log((count - outside) / (outside + 1))
    raise AssertionError("the chances of a binomial distribution add up to 1")


PATH_COUNT = 100_000
GROWTH = 2
"""Power of the rounds by which levels grow (alpha spending): most is kept for the end, where it
separates close sides; sides that differ widely are separated early all the same."""
KNOWN_LEVELS: Mapping[tuple[float, int, int], float] = {
    (0.05 / 12, 4, 12): 0.0017981635199652776,
    (0.05, 2, 4): 0.03238525390625,
    (0.10, 2, 4): 0.0690185546875,
    (0.05, 4, 12): 0.025606282552083335,
    (0.10, 4, 12): 0.05559895833333334,
    (0.05, 4, 24): 0.022485351562500002,
    (0.10, 4, 24): 0.05021158854166667,
}
"""Results of `simulated_level` for the usual rules, so that reading a study simulates nothing."""


def sequential_level(count: int, *, alpha: float, first: int, last: int) -> float:
    """Return the level of Student's t after `count` rounds; all looks together err by `alpha`.

    Looks begin after `first` rounds and end after `last`.
    """
    rule = alpha, max(first, 2), last
    level = KNOWN_LEVELS.get(rule) or simulated_level(*rule)
    return level * float(min(count, last) / last) ** GROWTH


@cache
def simulated_level(alpha: float, first: int, last: int) -> float:
    """Return the level of the last look, found by following random rounds without a difference.

    The t statistic of normal rounds does not depend on their noise.
    """
    if first >= last:
        return alpha
    import numpy as np  # slow to load, and few readers need it

    paths = np.random.default_rng(0).standard_normal((PATH_COUNT, last))
    counts = np.arange(1, last + 1)
    sums, squares = paths.cumsum(axis=1), (paths**2).cumsum(axis=1)
    looks = slice(first - 1, last)
    spread = (squares - sums**2 / counts)[:, looks] / (counts[looks] - 1)
    seen = np.abs(sums[:, looks]) / np.sqrt(spread * counts[looks])
    shares = (counts[looks] / last) ** GROWTH

    def beyond(level: float) -> "NDArray[np.bool_]":
        limits = [
            student_quantile(1 - level * float(share) / 2, int(count) - 1)
            for share, count in zip(shares, counts[looks], strict=True)
        ]
        erring: NDArray[np.bool_] = (seen > limits).any(axis=1)
        return erring

    # Only rounds that err at the highest level can err at a lower one.
    seen = seen[beyond(alpha)]
    below, width = alpha / last, alpha - alpha / last
    while width > alpha * 1e-3:
        width /= 2
        if int(beyond(below + width).sum()) < alpha * PATH_COUNT:
            below += width
    return below + width


_CLOSE = 1e-15
_SETTLED = 1e-12
_MOST_STEPS = 1_000
_MOST_TERMS = 20_000
_TINY = 1e-300


@lru_cache(maxsize=4096)
def student_quantile(level: float, freedom: float) -> float:
    """Return the value that Student's t stays below with this probability."""
    if not (0 < level < 1 and freedom > 0):
        raise ValueError(f"level {level} or freedom {freedom} is out of range")
    value = _quantile_of_tail(min(level, 1 - level), freedom)
    return value if level >= 0.5 else -value


def student_tail(value: float, freedom: float) -> float:
    """Return the probability that Student's t exceeds a value."""
    if value < 0:
        return 1 - student_tail(-value, freedom)
    if math.isinf(value):
        return 0.0
    square = value * value
    return 0.5 * _beta_share(square / (freedom + square), freedom / (freedom + square), freedom)


def _quantile_of_tail(tail: float, freedom: float) -> float:
    """Solve for the value; the tail is convex, so Newton's steps rise to it and never pass it."""
    value, scale = 0.0, math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    for _ in range(_MOST_STEPS):
        falling = (freedom + 1) / 2 * math.log1p(value * value / freedom)
        density = math.exp(scale - falling) / math.sqrt(freedom * math.pi)
        step = (student_tail(value, freedom) - tail) / density
        value += step
        if step <= _SETTLED * value:
            break
    return value


def _beta_share(below: float, above: float, freedom: float) -> float:
    """Regularised incomplete beta function of freedom/2 and 1/2 at `above`, which is 1 - below."""
    a, b = freedom / 2, 0.5
    if below == 0:
        return 1.0
    if above == 0:
        return 0.0
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    log_above = math.log(above) if above < 0.5 else math.log1p(-below)
    front = math.exp(log_front + a * log_above + b * math.log(below))
    if above < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, above) / a
    return 1 - front * _fraction(b, a, below) / b


def _fraction(a: float, b: float, x: float) -> float:
    """Continued fraction of the incomplete beta function, by Lentz's method."""
    upper, lower = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    total = lower
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            lower = 1 / _nonzero(1 + term * lower)
            upper = _nonzero(1 + term / upper)
            change = lower * upper
            total *= change
        if abs(change - 1) < _CLOSE:
            return total
    raise ArithmeticError(f"no value of the incomplete beta function for {a}, {b}, {x}")


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
