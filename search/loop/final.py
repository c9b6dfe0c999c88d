"""The final of a study: which trials its next round launches, and when it ends.

A round is made only where it can change what is announced: which trial wins, or by how much it is
better than the seed. Everything is a function of the recorded launches, so a search can resume.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from evaluator.objective import Scoring
from evaluator.timing.decision import Comparison, Noise
from records.study import Measure
from records.trial import History, Repeat
from search.loop.leader import (
    SEED,
    Leader,
    claim_rule,
    compared,
    demand,
    find_leader,
    is_disturbed,
    run_again,
    took_turns,
    unreliable,
    without_replaced,
)
from search.loop.relative_speed import SIDE_BY_CHANCE, RelativeSpeeds, Speed

NARROW, NARROW_SHARE = 0.03, 0.25
"""An announced gain is known well enough where its interval reaches 3 % to either side, or a
quarter of the gain."""
APART = 2.0
"""How much more single launches differ than those that take turns: 12.6 % against 6.9 % in
`benchmarks/data/decision_launches.jsonl`."""


def expected_gain(log_ratio: float, error: float) -> float:
    """Return what knowing which of two is faster gains on average, as a log ratio.

    One takes `log_ratio` longer than the leader, with this standard error. Where it is faster after
    all, the difference is gained; where it is slower, nothing.
    """
    if error <= 0:
        return max(0.0, -log_ratio)
    normal, distance = NormalDist(), log_ratio / error
    return error * normal.pdf(distance) - log_ratio * normal.cdf(-distance)


def expected_gains(leader: Leader, scoring: Scoring, measure: Measure) -> Mapping[int, float]:
    """Return for each trial what comparing it with the leader gains on average, as a log ratio.

    Nothing is ruled out by a launch that other work disturbed, or while the noise is unknown. A
    trial that cannot be compared is missing.
    """
    best = leader.history.best
    if best is None:
        return {}
    speeds = RelativeSpeeds.of(leader.history, scoring, measure)
    turns = any(took_turns(each.outcome) for each in leader.history.repeats)
    gains: dict[int, float] = {}
    for trial in leader.history.admissible:
        speed = speeds.speed(trial.ordinal, best.ordinal)
        if speed is None or trial is best:
            continue
        error = _error(speed, leader.noise)
        if error is None or (not speed.side_by_side and is_disturbed(trial.outcome)):
            gains[trial.ordinal] = math.inf
            continue
        favour = _favour(leader.history, trial.ordinal, best.ordinal, measure)
        if turns and not speed.side_by_side:
            error *= APART
        gains[trial.ordinal] = expected_gain(-math.log(speed.ratio) - favour, error)
    return gains


def _error(speed: Speed, noise: Noise | None) -> float | None:
    """Return the standard error of the logarithm of a speed; None where nothing is known of it."""
    if speed.low is not None and speed.high is not None:
        return math.log(speed.high / speed.low) / 2 / SIDE_BY_CHANCE
    return None if noise is None else noise.sd


def _favour(history: History, ordinal: int, best: int, measure: Measure) -> float:
    """Return what less memory or fewer ranks are worth: such a trial wins if it is as fast."""
    is_leaner = demand(history, ordinal) < demand(history, best)
    return 2 * claim_rule(measure).band if is_leaner else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Final:
    """The final after the launches `before` it; the trials `first` are in its first rounds."""

    history: History
    before: Sequence[Repeat]
    first: Sequence[int]
    scoring: Scoring
    measure: Measure

    def next_round(self, made: Iterable[Repeat]) -> tuple[int, ...]:
        """Return the trials to launch after these launches; none where nothing may change."""
        rounds: dict[int, list[Repeat]] = {}
        for launch in made:
            rounds.setdefault(launch.round, []).append(launch)
        launches = [launch for each in rounds.values() for launch in each]
        again, broken = run_again(rounds), unreliable(launches)
        first = tuple(n for n in self.first if n not in broken)
        if rounds and max(rounds) in again:
            return tuple(n for n in _ordinals(rounds[max(rounds)]) if n not in broken)
        done = [n for n in rounds if n not in again and {*first} <= {*_ordinals(rounds[n])}]
        if first and len(done) < claim_rule(self.measure).min_rounds:
            return first
        return self._undecided(without_replaced(launches, self.measure), broken)

    def _undecided(self, launches: Sequence[Repeat], broken: Sequence[int]) -> tuple[int, ...]:
        """Return the leader and the trials whose comparison with it is worth another round."""
        leader = find_leader(self.history, (*self.before, *launches), self.scoring, self.measure)
        best = leader.history.best
        if best is None:
            return ()
        launched = _ordinals(launches)
        rivals = [n for n in launched if n != best.ordinal and n not in broken]
        others = [n for n in rivals if self._is_open(leader, n, best.ordinal, launches)]
        if not others or others == [SEED]:
            others += self._contender(leader, {*launched, *broken})
        return tuple(sorted({best.ordinal, *others})) if others else ()

    def _contender(self, leader: Leader, launched: Iterable[int]) -> list[int]:
        """Return the most promising trial that the final has not launched, if any may win."""
        gains = expected_gains(leader, self.scoring, self.measure)
        band = claim_rule(self.measure).band
        waiting = [n for n, gain in gains.items() if n not in launched and gain > band]
        return sorted(waiting, key=lambda ordinal: (-gains[ordinal], ordinal))[:1]

    def _is_open(self, leader: Leader, other: int, best: int, launches: Sequence[Repeat]) -> bool:
        """Whether another round of two trials may change what is announced."""
        found = compared(launches, other, best, self.scoring, self.measure)
        rule = claim_rule(self.measure)
        if other == SEED and _round_count(launches, other, best) < rule.min_rounds:
            return True
        if found.ratio is None or found.round_count >= rule.max_rounds:
            return False
        if found.settled:
            return other == SEED and found.reason == CLEAR and not _is_narrow(found)
        log_ratio, noise = math.log(found.ratio), leader.noise
        if other == SEED or (best == SEED and log_ratio < 0):
            return True
        sd = found.noise if found.noise is not None else noise.sd if noise else math.inf
        favour = _favour(leader.history, other, best, self.measure)
        return expected_gain(log_ratio - favour, sd / math.sqrt(found.round_count)) > rule.band


CLEAR = "paired_interval_clears_band"


def _is_narrow(found: Comparison) -> bool:
    """Whether the interval of a gain is narrow enough to announce it."""
    if found.ratio is None or found.ratio_low is None or found.ratio_high is None:
        return False
    half = math.log(found.ratio_high / found.ratio_low) / 2
    return half <= max(math.log1p(NARROW), NARROW_SHARE * abs(math.log(found.ratio)))


def _round_count(launches: Iterable[Repeat], one: int, other: int) -> int:
    """Count the rounds in which both were launched, measured or not."""
    rounds = [{x.round for x in launches if x.ordinal == ordinal} for ordinal in (one, other)]
    return len(rounds[0] & rounds[1])


def _ordinals(launches: Iterable[Repeat]) -> tuple[int, ...]:
    return tuple(sorted({launch.ordinal for launch in launches}))
