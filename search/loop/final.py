"""The final of a study: which trials its next round launches, and when it ends.

A round is made only where it can change what is announced: which trial wins, or by how much it is
better than the seed. Everything is a function of the recorded launches, so a search can resume.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean

from evaluator.objective import Scoring
from evaluator.timing.decision import (
    Belief,
    Comparison,
    DecisionRule,
    Noise,
    Round,
    Verdict,
    chance_of_claim,
    decide,
    log_ratios,
)
from records.study import Measure
from records.trial import History, Measured, Repeat
from search.loop.leader import (
    SEED,
    Leader,
    claim_rule,
    compared,
    demand,
    find_leader,
    log_slowdown,
    rounds_between,
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
LEAST_CHANCE = 0.04
"""A trial is launched in the final as long as it may be shown faster than the seed with at least
this chance."""
CLOSE_CHANCE = 0.5
"""Share of the best chance that others need to be launched beside the most promising trial."""


def expected_gain(log_ratio: float, error: float) -> float:
    """Return what knowing which of two is faster gains on average, as a log ratio.

    One takes `log_ratio` longer than the leader, with this standard error. Where it is faster after
    all, the difference is gained; where it is slower, nothing.
    """
    if error <= 0:
        return max(0.0, -log_ratio)
    normal, distance = NormalDist(), log_ratio / error
    return error * normal.pdf(distance) - log_ratio * normal.cdf(-distance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What more rounds may show, by the `launches` of a final and by `earlier` ones.

    At most `left` launches follow.
    """

    leader: Leader
    earlier: RelativeSpeeds
    launches: Sequence[Repeat]
    left: int
    scoring: Scoring
    measure: Measure

    def chance(self, ordinal: int) -> float:
        """Return how likely it is that the final shows a trial to be faster than the seed."""
        rounds = self._rounds(ordinal, SEED)
        found = decide(rounds, self.rule) if rounds else None
        noise = self.leader.noise
        if noise is None or (found and found.verdict in (Verdict.SLOW, Verdict.SAME)):
            return 0.0
        made = log_ratios(rounds)
        count = min(self.rule.max_rounds, len(made) + self.left // 2)
        return chance_of_claim(self.belief(ordinal, SEED), self.rule, noise.sd, count, made)

    def gain(self, ordinal: int, best: int) -> float:
        """Return what comparing a trial with the best one gains on average, as a log ratio."""
        rounds = self._rounds(ordinal, best)
        found = decide(rounds, self.rule) if rounds else None
        ahead = min(self.rule.max_rounds - len(rounds), self.left // 2)
        noise = self.leader.noise
        if noise is None or ahead <= 0 or (found and found.verdict is not Verdict.UNDECIDED):
            return 0.0
        belief = self.belief(ordinal, best)
        if not belief.error:
            return expected_gain(belief.log_ratio, 0.0)
        # By how much further rounds change what is believed.
        change = belief.error**2 / math.hypot(belief.error, noise.sd / math.sqrt(ahead))
        return expected_gain(belief.log_ratio, change)

    def belief(self, ordinal: int, anchor: int) -> Belief:
        """Return by how much longer than the anchor a trial takes, less what favours it."""
        belief, made = self._before(ordinal, anchor), log_ratios(self._rounds(ordinal, anchor))
        if made and self.leader.noise is not None:
            error = self.leader.noise.sd / math.sqrt(len(made))
            belief = belief.combined(fmean(made), error)
        favour = _favour(self.leader.history, ordinal, anchor, self.measure)
        return replace(belief, log_ratio=belief.log_ratio - favour)

    def _before(self, ordinal: int, anchor: int) -> Belief:
        """Return the belief before the final.

        Of a launch that was disturbed only the most is known by which that slowed it.
        """
        speed, history = self.earlier.speed(ordinal, anchor), self.leader.history
        trial = history.find(ordinal)
        if speed is None or trial is None:
            return Belief()
        log_ratio, error = -math.log(speed.ratio), _error(speed, self.leader.noise)
        slowed = 0.0 if speed.side_by_side else log_slowdown(trial.outcome)
        if error is None or math.isinf(slowed):
            return Belief(log_ratio=min(0.0, log_ratio))
        log_ratio, error = log_ratio - slowed / 2, math.hypot(error, slowed / math.sqrt(12))
        if not speed.side_by_side and any(took_turns(each.outcome) for each in history.repeats):
            error *= APART
        return Belief().combined(log_ratio, error)

    def _rounds(self, ordinal: int, anchor: int) -> tuple[Round, ...]:
        return rounds_between(self.launches, ordinal, anchor, self.scoring)

    @property
    def rule(self) -> DecisionRule:
        """The rule of claims."""
        return claim_rule(self.measure)


def worth_launching(leader: Leader, scoring: Scoring, measure: Measure) -> frozenset[int]:
    """Return the trials that further launches, as many as a final may make, could make the best."""
    best, rule = leader.history.best, claim_rule(measure)
    outlook = Outlook(
        leader=leader,
        earlier=RelativeSpeeds.of(leader.history, scoring, measure),
        launches=(),
        left=2 * rule.max_rounds,
        scoring=scoring,
        measure=measure,
    )
    others = {trial.ordinal for trial in leader.history.admissible if trial is not best}
    if best is None or leader.noise is None:
        return frozenset(others)
    if best.ordinal == SEED:
        return frozenset(n for n in others if outlook.chance(n) >= LEAST_CHANCE)
    return frozenset(n for n in others if outlook.gain(n, best.ordinal) > rule.band)


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
    """The final of at most `launch_count` launches after those of `leader`.

    Its first rounds launch the trials `first`. In a race of two, every round launches both until
    one is shown to be better, or no further round can show it.
    """

    leader: Leader
    first: Sequence[int]
    launch_count: int
    scoring: Scoring
    measure: Measure
    is_race: bool = False

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
        is_open = len(done) < self._least_rounds(first) or self._may_tell_apart(first, launches)
        needed = first if is_open else ()
        worth = self._worth(launches, broken)
        return tuple(sorted({*needed, *worth}))

    def _least_rounds(self, first: Sequence[int]) -> int:
        """Return the rounds that the first trials need.

        One alone is compared with nothing, so its earlier launches count.
        """
        least = claim_rule(self.measure).min_rounds
        if len(first) > 1:
            return least
        earlier = [each for each in self.leader.history.repeats if each.ordinal in first]
        return least - sum(isinstance(each.outcome, Measured) for each in earlier)

    def _may_tell_apart(self, first: Sequence[int], made: Sequence[Repeat]) -> bool:
        """Whether this is a race of two trials that a further round may decide."""
        if not self.is_race or len(first) != 2:
            return False
        a, b = first
        found = compared(without_replaced(made, self.measure), a, b, self.scoring, self.measure)
        return not found.settled and found.round_count < claim_rule(self.measure).max_rounds

    def _worth(self, made: Sequence[Repeat], broken: Sequence[int]) -> Sequence[int]:
        """Return the trials whose comparison may change what is announced."""
        launches = without_replaced(made, self.measure)
        history = self.leader.history
        leader = find_leader(history, (*history.repeats, *launches), self.scoring, self.measure)
        if leader.history.best is None:
            return ()
        best = leader.history.best.ordinal
        outlook = Outlook(
            leader=leader,
            earlier=RelativeSpeeds.of(history, self.scoring, self.measure),
            launches=launches,
            left=self.launch_count - len(made),
            scoring=self.scoring,
            measure=self.measure,
        )
        others = [t.ordinal for t in history.admissible if t.ordinal not in (SEED, best, *broken)]
        if SEED in broken or all(trial.ordinal != SEED for trial in history.measured):
            return self._rivals(outlook, best, others)
        if best != SEED:
            found = compared(launches, best, SEED, self.scoring, self.measure)
            if found.verdict is Verdict.FAST:
                is_known = _is_narrow(found) or found.round_count >= outlook.rule.max_rounds
                return self._rivals(outlook, best, others, () if is_known else (SEED,))
            others.append(best)
        return self._promising(outlook, others)

    def _promising(self, outlook: Outlook, others: Iterable[int]) -> Sequence[int]:
        """Return the seed and the trials that are most likely to be shown faster than it."""
        chances = {n: chance for n in others if (chance := outlook.chance(n)) >= LEAST_CHANCE}
        order = sorted(chances, key=lambda n: (-chances[n], outlook.belief(n, SEED).log_ratio, n))
        if not order:
            return ()
        top, *rest = order
        beside = [
            n
            for n in rest
            if chances[n] >= CLOSE_CHANCE * chances[top]
            and outlook.gain(n, top) > outlook.rule.band
        ]
        # The first must keep the launches that a claim needs.
        most = min(self.measure.confirm_top, outlook.left - 2 * (outlook.rule.min_rounds - 1))
        return (SEED, top, *beside[: max(0, most - 2)])

    def _rivals(
        self, outlook: Outlook, best: int, others: Iterable[int], seed: Sequence[int] = ()
    ) -> Sequence[int]:
        """Return the best trial and those that may well be faster; without any, none but `seed`."""
        gains = {n: gain for n in others if (gain := outlook.gain(n, best)) > outlook.rule.band}
        order = sorted(gains, key=lambda n: (-gains[n], n))
        most = min(self.measure.confirm_top, outlook.left)
        rivals = order[: max(0, most - 1 - len(seed))]
        return (best, *rivals, *seed) if rivals or seed else ()


def _is_narrow(found: Comparison) -> bool:
    """Whether the interval of a gain is narrow enough to announce it."""
    if found.ratio is None or found.ratio_low is None or found.ratio_high is None:
        return False
    half = math.log(found.ratio_high / found.ratio_low) / 2
    return half <= max(math.log1p(NARROW), NARROW_SHARE * abs(math.log(found.ratio)))


def _ordinals(launches: Iterable[Repeat]) -> tuple[int, ...]:
    return tuple(sorted({launch.ordinal for launch in launches}))
