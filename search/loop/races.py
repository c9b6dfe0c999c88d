"""Repeat launches: self-test, races, confirmation, held-out contexts.

`RepeatRunner` launches trials again in rounds and records every launch. `ConfirmationPlan` decides
which launches are needed to measure the noise, to choose the leader and to confirm the winner.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean
from typing import NamedTuple
from zlib import crc32

from evaluator.evaluate import evidence
from evaluator.metrics.registry import measure_all
from evaluator.objective import Scoring
from evaluator.timing.decision import Belief, Comparison, Verdict, chance_of_claim
from records.study import Measure, Study
from records.trial import (
    Config,
    History,
    Measured,
    Outcome,
    Purpose,
    Repeat,
    Score,
    Trial,
    outcome_in,
)
from search.loop.budget import launches_used, remaining_launches, repeat_limit
from search.loop.final import Final
from search.loop.leader import (
    SEED,
    Leader,
    Race,
    claim_rule,
    compared,
    confirming,
    counted,
    find_leader,
    judge_race,
    launch_of,
    least_rounds,
    log_slowdown,
    race_rule,
    run_again,
    unreliable,
    without_replaced,
)
from search.loop.study_result import ContextResult
from search.loop.trial import TrialRunner
from search.study.spaces import held_out_study


@dataclass(frozen=True, slots=True)
class RepeatRunner:
    """Runs the repeat launches that are not recorded yet.

    `study` is the one of `trial_runner`, or its held-out contexts.
    """

    trial_runner: TrialRunner
    study: Study
    scoring: Scoring

    @property
    def history(self) -> History:
        """The recorded trials."""
        return self.trial_runner.store.history(self.trial_runner.study_id)

    @property
    def recorded(self) -> tuple[Repeat, ...]:
        """All recorded repeat launches."""
        return self.trial_runner.store.repeats(self.trial_runner.study_id)

    def repeats(self, purpose: Purpose, series: int) -> tuple[Repeat, ...]:
        """Return the recorded launches of one series that count, in their order."""
        return without_replaced(self.launched(purpose, series), self.study.measure)

    def run_until(
        self,
        count: int,
        purpose: Purpose,
        series: int,
        trials: Sequence[Trial],
        *,
        spare: int = 0,
        repeat_disturbed: bool = True,
    ) -> bool:
        """Launch until at least `count` rounds of all these trials count.

        Return False where the budget lacks launches for a round and `spare` others after it, or
        the search time for the round.
        """
        while trials and self.rounds_done(purpose, series, trials, repeat_disturbed) < count:
            number = self._incomplete(purpose, series, trials)
            if not self.run_round(number, purpose, series, trials, spare=spare):
                return False
        return True

    def run_round(
        self, number: int, purpose: Purpose, series: int, trials: Sequence[Trial], *, spare: int = 0
    ) -> bool:
        """Launch what is missing of a round; return False where launches or time are lacking."""
        missing = self._missing(number, purpose, series, trials)
        if missing and self.launches_left < len(missing) + spare:
            return False
        return not missing or self._launch(missing, whole=len(missing) == len(trials))

    def run_self_test(self, count: int, series: int, trial: Trial, spare: int = 0) -> None:
        """Launch a self-test of `count` pairs, as far as the budget and `spare` allow.

        The launches of pair k are in the rounds 2k and 2k + 1. Each pair leaves time for one more
        trial and for the spare launches.
        """
        for pair in range(count):
            done = {repeat.round for repeat in self.repeats(Purpose.SELF_TEST, series)}
            numbers = [number for number in (2 * pair, 2 * pair + 1) if number not in done]
            missing = [_Planned(trial, Purpose.SELF_TEST, series, number) for number in numbers]
            if self.launches_left < len(missing) + spare:
                return
            ahead = [_expected_s(trial)] * (len(missing) + spare + 1)
            if missing and not self._has_time(missing[0], ahead):
                return
            if missing and not self._launch(missing, whole=len(missing) == 2):
                return

    def _has_time(self, first: "_Planned", times_s: Iterable[float]) -> bool:
        """Whether launches that begin with this one, and take so long, end within the limit."""
        return self.trial_runner.has_time(first.purpose, first.series, sum(times_s))

    @property
    def launches_left(self) -> int:
        """Count the repeat launches that the budget still allows."""
        history, recorded = self.history, self.recorded
        left = self.study.budget.launch_limit - launches_used(history, recorded)
        return min(left, repeat_limit(self.study, history) - len(recorded))

    def rounds_done(
        self, purpose: Purpose, series: int, trials: Sequence[Trial], repeat_disturbed: bool = True
    ) -> int:
        """Count the rounds of all these trials, without disturbed ones that are to be repeated."""
        ordinals = {trial.ordinal for trial in trials}
        rounds = self._by_round(purpose, series)
        again = run_again(rounds) if repeat_disturbed else ()
        return sum(ordinals <= _ordinals(rounds[n]) for n in rounds if n not in again)

    def next_number(self, series: int) -> int:
        """Return the number of the round after all recorded ones of a series."""
        return max((r.round for r in self.recorded if r.series == series), default=-1) + 1

    def _incomplete(self, purpose: Purpose, series: int, trials: Sequence[Trial]) -> int:
        """Return the round to launch: one that an interruption left incomplete, or the next."""
        ordinals = {trial.ordinal for trial in trials}
        rounds = self._by_round(purpose, series)
        begun = (number for number, found in rounds.items() if _ordinals(found) < ordinals)
        return next(begun, self.next_number(series))

    def _missing(
        self, number: int, purpose: Purpose, series: int, trials: Sequence[Trial]
    ) -> tuple["_Planned", ...]:
        """Return the launches that complete a round, in their order."""
        done = _ordinals(self._by_round(purpose, series).get(number, ()))
        order = sorted(trials, key=lambda trial: trial.ordinal)
        Random(f"{self.study.random_seed}/{series}/{number}").shuffle(order)
        return tuple(
            _Planned(trial, purpose, series, number, position)
            for position, trial in enumerate(order)
            if trial.ordinal not in done
        )

    def _by_round(self, purpose: Purpose, series: int) -> Mapping[int, Sequence[Repeat]]:
        rounds: dict[int, list[Repeat]] = {}
        for repeat in self.launched(purpose, series):
            rounds.setdefault(repeat.round, []).append(repeat)
        return rounds

    def launched(self, purpose: Purpose, series: int) -> tuple[Repeat, ...]:
        """Return all recorded launches of one series, in their order."""
        return tuple(r for r in self.recorded if r.series == series and r.purpose is purpose)

    def _launch(self, planned: Sequence["_Planned"], *, whole: bool) -> bool:
        """Launch a whole round interleaved if it fits on the machine, else one after the other.

        Interleaved launches are not profiled. Return False where time is lacking: none is started
        that would not end.
        """
        runner = self.trial_runner
        studies = [self._study_of(each.trial) for each in planned]
        configs = [config_of(each.trial) for each in planned]
        times_s = [_expected_s(each.trial) for each in planned]
        timed_only = not any(study.measure.profiled_steps for study in studies)
        peaks = [_peak_memory_bytes(each.trial) for each in planned]
        if whole and len(planned) > 1 and timed_only and runner.fits(self.study, peaks):
            steps_s = [_step_s(each.trial) for each in planned]
            study = in_turns(self.study, max(steps_s))
            round_s = max(times_s) + study.measure.max_timed_steps * sum(steps_s)
            if not self._has_time(planned[0], [round_s]):
                return self._skipped(planned, round_s)
            seed = f"{self.study.random_seed}/{planned[0].series}/{planned[0].round}"
            outcomes = runner.launch_together(study, configs, crc32(seed.encode()))
            pairs = zip(planned, outcomes, strict=True)
            self._record(*(each.repeat(outcome, position=0) for each, outcome in pairs))
            return True
        for number, each in enumerate(planned):
            # A round is begun where all of it has time, and ended where a launch took longer.
            ahead_s = times_s[number : None if number == 0 else number + 1]
            if not self._has_time(each, ahead_s):
                return self._skipped(planned[number:], sum(times_s[number:]))
            outcome = runner.launch_once(studies[number], configs[number])
            self._record(each.repeat(outcome, each.position))
        return True

    def _skipped(self, planned: Sequence["_Planned"], seconds: float) -> bool:
        """Say that launches are left out for want of time; False."""
        what = "another launch" if len(planned) == 1 else f"{len(planned)} more launches"
        self.trial_runner.observer.notice(
            f"{_NAMES[planned[0].purpose]}: the time limit leaves no time for {what}, which would "
            f"take about {seconds:.0f} s"
        )
        return False

    def _record(self, *repeats: Repeat) -> None:
        self.trial_runner.store.repeat(self.trial_runner.study_id, *repeats)
        for repeat in repeats:
            self.trial_runner.observer.repeat_finished(repeat)

    def _study_of(self, trial: Trial) -> Study:
        """Return the study, without profiled steps if timing samples suffice for the objective."""
        outcome = trial.outcome
        if not isinstance(outcome, Measured) or outcome.measurement.profiled:
            return self.study
        samples = evidence(self.study, outcome.measurement, traces=None)
        if not isinstance(self.scoring.score(measure_all(samples).values), Score):
            return self.study
        return replace(self.study, measure=replace(self.study.measure, profiled_steps=0))


class _Planned(NamedTuple):
    """One repeat launch before it is made."""

    trial: Trial
    purpose: Purpose
    series: int
    round: int
    position: int = 0

    def repeat(self, outcome: Outcome, position: int) -> Repeat:
        """Return the launch as recorded."""
        return Repeat(
            series=self.series,
            round=self.round,
            ordinal=self.trial.ordinal,
            outcome=outcome,
            purpose=self.purpose,
            position=position,
        )


_NAMES = {
    Purpose.SELF_TEST: "self-test",
    Purpose.RACE: "race",
    Purpose.HALVING: "choice of finalists",
    Purpose.CONFIRM: "final",
    Purpose.HELD_OUT: "held-out contexts",
}


LEAST_TURNS, MOST_TURNS = 20, 40
"""Steps of a launch that takes turns. Rounds of equal jobs on two cores varied by 2.8 % with 20, by
2.0 % with 40 in the same launches: twice as many steps save half of the launches."""
TURNS_SHARE = 1 / 6
"""Share of a launch's time limit that the most turns of a job may take."""


def in_turns(study: Study, step_s: float) -> Study:
    """Return the study of launches that take turns; a step of the slowest takes `step_s` seconds.

    They time `MOST_TURNS` steps, or `LEAST_TURNS` where steps are long, but no more than twice as
    many as a launch alone may.
    """
    measure = study.measure
    fit = MOST_TURNS * step_s <= TURNS_SHARE * measure.timeout_s
    turns = min(MOST_TURNS if fit else LEAST_TURNS, 2 * measure.max_timed_steps)
    return replace(study, measure=replace(measure, max_timed_steps=turns))


def _step_s(trial: Trial) -> float:
    """Return the mean step of a trial; 0 if it was not measured."""
    outcome = trial.outcome
    return fmean(outcome.measurement.slowest_rank_s) if isinstance(outcome, Measured) else 0.0


def _expected_s(trial: Trial) -> float:
    """How long another launch of a trial takes: as long as its own did."""
    outcome = trial.outcome
    return (isinstance(outcome, Measured) and outcome.measurement.wall_s) or 0.0


def _ordinals(launches: Iterable[Repeat]) -> set[int]:
    return {launch.ordinal for launch in launches}


def _peak_memory_bytes(trial: Trial) -> tuple[int, ...]:
    outcome = trial.outcome
    return outcome.measurement.peak_memory_bytes if isinstance(outcome, Measured) else ()


def config_of(trial: Trial) -> Config:
    """Return the configuration of a trial that was launched."""
    if trial.config is None:
        raise ValueError(f"trial {trial.ordinal} has no configuration")
    return trial.config


def in_contexts(
    study: Study,
    confirmed: Sequence[Repeat],
    held_out: Sequence[Repeat],
    winner: int,
    scoring: Scoring,
) -> tuple[ContextResult, ...]:
    """Compare the winner with the seed in every context, and over the mean of those held out."""
    if not study.contexts or winner == 0:
        return ()
    outside = held_out_study(study)
    found = list(_findings(study, confirmed, winner, scoring, held_out=False))
    if outside is not None:
        found += _findings(outside, held_out, winner, scoring, held_out=True)
    if outside is not None and outside.contexts:
        mean = ContextResult(
            name="the mean of all held out",
            held_out=True,
            against_seed=_comparison(held_out, winner, scoring, study),
            context_count=1 + len(outside.contexts),
        )
        found.append(mean)
    return tuple(found)


def _findings(
    study: Study, launches: Sequence[Repeat], winner: int, scoring: Scoring, *, held_out: bool
) -> Iterator[ContextResult]:
    """Yield the study's own context first, then the other launched contexts."""
    launched = [context.name for context in study.contexts if not context.held_out]
    for name in (study.name, *launched):
        inside = [
            replace(launch, outcome=outcome)
            for launch in launches
            if (outcome := outcome_in(launch.outcome, name) if launched else launch.outcome)
            is not None
        ]
        yield ContextResult(
            name=name, held_out=held_out, against_seed=_comparison(inside, winner, scoring, study)
        )


def _comparison(
    launches: Sequence[Repeat], winner: int, scoring: Scoring, study: Study
) -> Comparison | None:
    seeds = [launch.outcome for launch in launches if launch.ordinal == 0]
    if not seeds:
        return None
    return compared(launches, winner, 0, scoring.against(seeds), study.measure)


CONCLUDING = (Purpose.HALVING, Purpose.CONFIRM)
"""Purposes of launches after the last trial and its race; studies used to halve the finalists."""
LEAST_ENTRANTS = 2
"""Trials in a round of a final."""
FINALISTS = 3
"""Trials that the first rounds of a final may launch beside the seed."""
RACE_CHANCE = 0.99
"""A race is begun where its rounds will show a faster trial with at least this chance: others
decide little, and their launches are worth more in the final."""
FINAL_ROUNDS = 8
"""Rounds of the final for which races reserve launches, if the budget is large enough.

Only the final decides the result. With four rounds, half of the finals end with an interval too
wide to show a winner of 10 %; beyond eight, races lack the launches to find that winner.
"""


@dataclass(frozen=True, slots=True)
class ConfirmationPlan:
    """Decides what to launch again; all state is in the store, so a search can resume."""

    runner: RepeatRunner

    def leader(self) -> Leader:
        """Return the leader by the recorded launches."""
        return find_leader(self.runner.history, self._repeats, self._scoring, self._measure)

    @property
    def settled_count(self) -> int:
        """Count the trials that need no more launches: those before the last repeated one."""
        series = (repeat.series for repeat in self.runner.recorded)
        return max(0, max(series, default=0) - 1)

    def settle(self, settled_count: int) -> Leader:
        """Launch what each trial after the settled ones needs, one after the other.

        The first measured trial needs a self-test, each challenger a race. Recorded launches are
        not repeated.
        """
        now = self.leader()
        measured = now.history.measured
        due = [trial for trial in measured if trial.ordinal >= settled_count]
        for trial in due:
            if trial is measured[0]:
                self._self_test(trial)
            else:
                self._race(trial, now.history)
        return self.leader() if due else now

    @property
    def closing_count(self) -> int:
        """Count the launches of a race and of the shortest final."""
        raced = 2 * least_rounds(Purpose.RACE, self._measure) if self._measure.race_rounds else 0
        return raced + self._reserve(FINALISTS + 1)

    def conclude(self, has_time: Callable[[], bool] = lambda: True) -> tuple[Repeat, ...]:
        """Confirm the best trial in new launches, with the seed and others that may be better.

        After the first, rounds are launched while it `has_time`.
        """
        recorded, series = self.runner.history, len(self.runner.history)
        chosen = [r for r in self._repeats if r.series < series or r.purpose not in CONCLUDING]
        leader = find_leader(recorded, chosen, self._scoring, self._measure)
        if not self._measure.confirm_rounds or not leader.history.admissible:
            return ()
        launch_count = self.runner.launches_left + len(
            self.runner.launched(Purpose.CONFIRM, series)
        )
        affordable = launch_count // self._measure.confirm_rounds
        # Where nothing can be claimed, or the noise is unknown, the best two are launched again.
        is_open = affordable > FINALISTS - 1 and leader.noise is None
        most = 2 if affordable < LEAST_ENTRANTS or is_open or leader.front else 1
        first = [trial.ordinal for trial in leader.history.ranked[:most]]
        if SEED not in first and any(trial.ordinal == SEED for trial in leader.history.measured):
            first.append(SEED)
        front = [ordinal for ordinal in leader.history.front if ordinal not in first]
        study = self.runner.study
        final = Final(
            leader=leader,
            first=first + front[: max(0, affordable - len(first))],
            launch_count=launch_count,
            scoring=self._scoring,
            measure=self._measure,
            is_race=study.replay_of is not None and study.budget.trials == 2,
        )
        self._launch_final(final, series, has_time)
        return confirming(self._repeats, series)

    def _launch_final(self, final: Final, series: int, has_time: Callable[[], bool]) -> None:
        """Launch the rounds of a final that are not recorded, until none is worth its launches."""
        for count in range(self.runner.study.budget.launch_limit):
            made = self.runner.launched(Purpose.CONFIRM, series)
            numbers = sorted({launch.round for launch in made})
            number = numbers[count] if count < len(numbers) else self.runner.next_number(series)
            ordinals = final.next_round(launch for launch in made if launch.round < number)
            if not ordinals or (count and not has_time()):
                return
            trials = [final.leader.history.trials[n] for n in ordinals]
            spare = self._reserve(0) if count >= self._measure.confirm_rounds else 0
            if SEED not in ordinals and not {*ordinals} <= {*final.first}:
                spare += 2 * self._measure.confirm_rounds  # to compare it with the seed if it wins
            if not self.runner.run_round(number, Purpose.CONFIRM, series, trials, spare=spare):
                return

    def hold_out(self) -> tuple[Repeat, ...]:
        """Launch the winner and the seed in the held-out contexts, as far as the budget allows.

        Return the recorded launches; none where both are the same trial.
        """
        history, prepared = self.leader().history, self.runner.trial_runner.prepared.held_out()
        winner, series = history.best, len(history)
        seed = next((trial for trial in history.measured if trial.ordinal == 0), None)
        if prepared is None or winner is None or seed is None or winner.ordinal == seed.ordinal:
            return ()
        configs = [(trial, prepared.decide(trial.policy)) for trial in (winner, seed)]
        entrants = [replace(trial, config=c) for trial, c in configs if isinstance(c, Config)]
        study = prepared.study
        inside = replace(self.runner, study=study)
        if len(entrants) == len(configs):
            inside.run_until(study.measure.confirm_rounds, Purpose.HELD_OUT, series, entrants)
        return inside.repeats(Purpose.HELD_OUT, series)

    @property
    def _repeats(self) -> tuple[Repeat, ...]:
        return counted(self.runner.recorded, self._measure)

    @property
    def _measure(self) -> Measure:
        return self.runner.study.measure

    @property
    def _scoring(self) -> Scoring:
        return self.runner.scoring

    def _self_test(self, trial: Trial) -> None:
        """Launch the first trial against itself to measure the noise."""
        tested = len(self._repeats)
        self.runner.run_self_test(
            self._measure.self_test_rounds,
            trial.ordinal + 1,
            trial,
            spare=self._reserve(LEAST_ENTRANTS),
        )
        noise = self.leader().noise
        if noise is not None and len(self._repeats) > tested:
            self.runner.trial_runner.observer.noise_measured(noise, self._measure)

    def _race(self, challenger: Trial, history: History) -> None:
        """Race a trial that would lead by its single launch against the leader before it.

        One that was no slower than other work can have made it may be better: its race continues
        while it is ahead.
        """
        series = challenger.ordinal + 1
        before = find_leader(
            History(history.before(challenger.ordinal).trials),
            [repeat for repeat in self._repeats if repeat.series < series],
            self._scoring,
            self._measure,
        )
        leader, incumbent = before.history, before.history.best
        if incumbent is None or challenger.score is None or not self._measure.race_rounds:
            return
        if challenger.score.broken:
            return
        if launch_of(challenger.outcome, self._scoring) is None:
            return
        leads = challenger.score.cost < leader.cost(incumbent)
        slowed = log_slowdown(challenger.outcome)
        if slowed:
            may_win = leads or self._log_ratio(challenger, leader.cost(incumbent)) < slowed
        else:
            may_win = leads and self._may_win(challenger, incumbent, before)
        if not may_win:
            return
        launch_count = len(self.runner.recorded)
        least = least_rounds(Purpose.RACE, self._measure)
        # Later trials must not use the launches that the final needs.
        spare = self._for_final() + remaining_launches(self.runner.study, history)
        for count in range(1, self._measure.race_rounds + 1):
            fits = self.runner.run_until(
                count,
                Purpose.RACE,
                series,
                (challenger, incumbent),
                spare=spare,
                repeat_disturbed=leads,
            )
            race = judge_race(self._repeats, series, self._scoring, self._measure)
            broke = challenger.ordinal in unreliable(self.runner.repeats(Purpose.RACE, series))
            settled = race is not None and _is_settled(race.comparison, is_long=count >= least)
            if not fits or broke or settled or not (leads or _is_ahead(race)):
                break
        if race is not None and len(self.runner.recorded) > launch_count:
            self.runner.trial_runner.observer.race_decided(race)

    def _may_win(self, challenger: Trial, incumbent: Trial, before: Leader) -> bool:
        """Whether a race is likely to show the challenger to be faster, if the noise is known."""
        noise = before.noise
        if noise is None or challenger.score is None or not self._measure.confirm_rounds:
            return True
        log_ratio = self._log_ratio(challenger, before.history.cost(incumbent))
        rule = race_rule(self._measure)
        chance = chance_of_claim(
            Belief(log_ratio=log_ratio, error=noise.sd),
            rule,
            noise.sd,
            rule.max_rounds,
            freedom=noise.freedom,
        )
        return chance >= RACE_CHANCE

    def _log_ratio(self, challenger: Trial, cost: float) -> float:
        """Return how much longer a trial took than this cost, as a log ratio.

        Infinite where they have no ratio, as with a cost of 0.
        """
        assert challenger.score is not None
        ratio = challenger.score.cost / cost if cost else 0.0
        if ratio <= 0:
            return math.inf
        return math.log(ratio) if self._scoring.lower_is_better else -math.log(ratio)

    def _for_final(self) -> int:
        """Count the launches reserved to compare the finalists and the seed.

        At most half of the limit, so that small studies still race; at least what a claim needs.
        """
        if not self._measure.confirm_rounds:
            return 0
        entrants, rule = FINALISTS + 1, claim_rule(self._measure)
        affordable = self.runner.study.budget.launch_limit // 2 // entrants
        rounds = min(FINAL_ROUNDS, rule.max_rounds, affordable)
        return self._reserve(entrants) + entrants * max(0, rounds - rule.min_rounds)

    def _reserve(self, entrant_count: int) -> int:
        """Count the launches reserved to confirm the best, and for held-out contexts."""
        held_out = any(context.held_out for context in self.runner.study.contexts)
        return self._measure.confirm_rounds * (entrant_count + 2 * held_out)


def _is_settled(found: Comparison, *, is_long: bool) -> bool:
    """Whether further rounds are not needed; in a race that is not long, for a plain difference."""
    return found.settled and (is_long or found.verdict in (Verdict.FAST, Verdict.SLOW))


def _is_ahead(race: Race | None) -> bool:
    """Whether the challenger is better in the rounds so far."""
    ratio = None if race is None else race.comparison.ratio
    return ratio is not None and ratio < 1
