"""How often a way to decide is right, and what it costs, over the rounds of a recording.

A series is a run of consecutive rounds, so that drift stays in it; it ends where the method has
decided. Rates are over the series from every round on, which overlap; how sure they are is that of
as many series as there are one after the other, each from where the one before it ended.
"""

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from decision_methods import BEYOND, METHODS, PAIRED, RULE, Method, Pair
from decision_rounds import Kind, NoiseParts, Recording, Shift, Taking, noise_parts, shift
from scipy import stats

from evaluator.timing.decision import Verdict

CONFIDENCE = 0.95
ROUNDS_BEFORE = 10
ANCHOR = "A"
CASES: Mapping[str, str] = {"A2": "identical", "B3": "3 % slower", "B10": "10 % slower"}
SLOWED = (1.0, 1.03, 1.05, 1.1, 1.2)
"""What the steps of the identical job are multiplied by: differences that are known exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What one series came to."""

    verdict: Verdict
    launches_a_side: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A share of the series with its 95 % Clopper-Pearson interval over the disjoint ones."""

    share: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.share:6.1%} [{self.low:4.0%}, {self.high:4.0%}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """What a method said of one job against A; `disjoint_count` series share no round."""

    verdicts: Mapping[Verdict, Rate]
    claimed: Rate
    """Faster or slower: of identical jobs always false."""
    launches_a_side: float
    """Median of the series."""
    series_count: int
    disjoint_count: int

    @property
    def slow(self) -> Rate:
        """Said to be slower: of a slowed job the truth."""
        return self.verdicts[Verdict.SLOW]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Everything that a recording tells; a method that would need more rounds has no outcomes."""

    source: str
    kind: Kind
    about: Mapping[str, object]
    round_count: int
    broken_round_count: int
    launch_count: int
    disturbed_count: int
    wall_s: float
    noise: NoiseParts
    shifts: Mapping[str, Shift]
    outcomes: Mapping[str, Mapping[str, Outcomes]]
    slowed: Mapping[str, Mapping[float, Outcomes]]
    """Of the identical job, its steps multiplied."""


def quality(source: str, recording: Recording) -> Quality:
    """Try every method on a recording of at least two rounds."""
    rounds = recording.rounds
    launches = [launch for taking in rounds for launch in taking.values()]
    return Quality(
        source=source,
        kind=recording.kind,
        about=recording.about,
        round_count=len(rounds),
        broken_round_count=recording.broken_round_count,
        launch_count=len(launches),
        disturbed_count=sum(launch.disturbed for launch in launches),
        wall_s=statistics.median(launch.wall_s for launch in launches),
        noise=noise_parts(rounds, RULE),
        shifts={job: shift(rounds, job) for job in CASES},
        outcomes={
            method.name: {job: outcomes(method, rounds, job) for job in CASES}
            if method.most <= len(rounds)
            else {}
            for method in METHODS
        },
        slowed={
            method.name: {
                by: outcomes(method, [slowed(r, by) for r in rounds], "A2") for by in SLOWED
            }
            for method in (PAIRED, BEYOND)
            if method.most <= len(rounds)
        },
    )


def slowed(taking: Taking, ratio: float) -> Taking:
    """The round with the steps of the identical job multiplied."""
    job = taking["A2"]
    return {**taking, "A2": replace(job, steps_s=tuple(step_s * ratio for step_s in job.steps_s))}


def outcomes(method: Method, rounds: Sequence[Taking], name: str) -> Outcomes:
    """Try a method on a job against A, on at least as many rounds as it may need."""
    pairs = [Pair(candidate=each[name], anchor=each[ANCHOR]) for each in rounds]
    series = [decision(method, pairs, start) for start in range(len(pairs) - method.most + 1)]
    disjoint = sum(1 for _ in one_after_the_other(series))
    counts = Counter(one.verdict for one in series)
    shares = {verdict: counts[verdict] / len(series) for verdict in Verdict}
    return Outcomes(
        verdicts={verdict: rate(share, disjoint) for verdict, share in shares.items()},
        claimed=rate(shares[Verdict.FAST] + shares[Verdict.SLOW], disjoint),
        launches_a_side=statistics.median(one.launches_a_side for one in series),
        series_count=len(series),
        disjoint_count=disjoint,
    )


def decision(method: Method, pairs: Sequence[Pair], start: int) -> Decision:
    """Give the method its pairs, or one more at a time until it decides."""
    before = pairs_before(pairs, start)
    for count in range(1, method.most + 1) if method.stops_early else (method.most,):
        verdict = method.decide(pairs[start : start + count], before)
        if verdict is not None:
            return Decision(verdict=verdict, launches_a_side=count)
    raise ValueError(f"{method.name} did not decide on {method.most} rounds")


def pairs_before(pairs: Sequence[Pair], start: int) -> Sequence[Pair]:
    """Rounds before a series, for the first ones from the end; none of a short recording."""
    wrapped = range(start - ROUNDS_BEFORE, start)
    return [pairs[index] for index in wrapped] if len(pairs) > 2 * ROUNDS_BEFORE else ()


def one_after_the_other(series: Sequence[Decision]) -> Iterator[Decision]:
    at = 0
    while at < len(series):
        yield series[at]
        at += series[at].launches_a_side


def rate(share: float, count: int) -> Rate:
    """Clopper and Pearson's interval of a share that is known from so many series."""
    found, tail = share * count, (1 - CONFIDENCE) / 2
    low = float(stats.beta.ppf(tail, found, count - found + 1)) if found > 0 else 0.0
    high = float(stats.beta.ppf(1 - tail, found + 1, count - found)) if found < count else 1.0
    return Rate(share=share, low=low, high=high)
