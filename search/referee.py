"""Decides with further launches: how noisy this machine is, who leads, and who wins."""

from collections.abc import Sequence
from dataclasses import dataclass

from evaluator.objective import Scoring
from records.history import History
from records.store import Store
from records.study import Measure
from records.trial import Purpose, Repeat, Trial
from search.budget import remaining_launches
from search.contest import Contest
from search.disturbed import counted, is_disturbed
from search.final import compared, confirming, unreliable
from search.held_out import hold_out
from search.ports import Observer
from search.rounds import centred_burdens, launch_of
from search.rules import claim_rule, least_rounds
from search.standing import Race, Standing, judge_race, standing

FINALISTS = 2
FINAL_ROUNDS = 8
"""Rounds of the final that races and the thinning out leave launches for, where the limit is wide.

Only the final decides what is announced. On four rounds, one in two ends with an interval too wide
to show a winner of 10 %; beyond eight, races lack the launches to find that winner.
"""
CONFIRMED_FOR_EACH = 4
"""Confirming rounds for each round that first thins out: where claims take many, it does too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Referee:
    """Every answer comes from the store, so that a search that was killed goes on where it was."""

    study_id: str
    measure: Measure
    scoring: Scoring
    store: Store
    contest: Contest
    observer: Observer

    def standing(self) -> Standing:
        """Judge who leads by what is on record."""
        history = self.store.history(self.study_id)
        return standing(history, self._repeats, self.scoring, self.measure)

    @property
    def settled_count(self) -> int:
        """Trials that are surely settled: those before the last that was launched again."""
        series = (repeat.series for repeat in self.store.repeats(self.study_id))
        return max(0, max(series, default=0) - 1)

    def settle(self, settled_count: int) -> Standing:
        """Do what each trial after the settled ones calls for, one after the other.

        That is a self-test of the first that was measured, and a race of each challenger. What is
        on record of it is not done again.
        """
        now = self.standing()
        measured = now.history.measured
        due = [trial for trial in measured if trial.ordinal >= settled_count]
        for trial in due:
            if trial is measured[0]:
                self._test(trial)
            else:
                self._race(trial, now.history)
        return self.standing() if due else now

    def conclude(self) -> tuple[Repeat, ...]:
        """Thin out the best few, then confirm who is left, and the seed, on fresh launches."""
        history = self.standing().history
        series, least = len(history), self.measure.confirm_rounds
        if not least or not history.admissible:
            return ()
        finalists = self._halved(history, series)
        seed = [t for t in history.measured if t.ordinal == 0 and t not in finalists]
        entrants: tuple[Trial, ...] = (*finalists, *seed)
        front = [history.trials[n] for n in history.front if history.trials[n] not in entrants]
        entrants += tuple(front[: max(0, self._affordable(series) - len(entrants))])
        for count in range(1, claim_rule(self.measure).max_rounds + 1):
            broken = unreliable(confirming(self._repeats, series))
            entrants = tuple(trial for trial in entrants if trial.ordinal not in broken)
            spare = self._reserve(0) if count > least else 0
            fits = self.contest.bring_to(count, Purpose.CONFIRM, series, entrants, spare=spare)
            launches = confirming(self._repeats, series)
            if not fits or (count >= least and self._told_apart(launches, entrants)):
                break
        return confirming(self._repeats, series)

    def hold_out(self) -> tuple[Repeat, ...]:
        """Launch who won, and the seed, in the contexts that were held out."""
        history = self.standing().history
        seeds = [trial for trial in history.measured if trial.ordinal == 0]
        if history.best is None or not seeds:
            return ()
        return hold_out(self.contest, len(history), history.best, seeds[0])

    @property
    def _repeats(self) -> tuple[Repeat, ...]:
        return counted(self.store.repeats(self.study_id), self.measure)

    def _affordable(self, series: int) -> int:
        """Trials that the budget lets be confirmed, with what was launched for it already."""
        launches = self.contest.launches_left + len(confirming(self._repeats, series))
        return launches // self.measure.confirm_rounds

    def _test(self, trial: Trial) -> None:
        """Launch the first trial against itself, to learn how much equal launches differ."""
        tested = len(self._repeats)
        self.contest.against_itself(
            self.measure.self_test_rounds, trial.ordinal + 1, trial, spare=self._reserve(1)
        )
        noise = self.standing().noise
        if noise is not None and len(self._repeats) > tested:
            self.observer.noise_measured(noise, self.measure)

    def _race(self, challenger: Trial, history: History) -> None:
        """Race a trial that would lead by its one launch against who led before it.

        One that was slower, but under a load that the leader was spared, may be the better one: it
        is raced for as long as it is ahead.
        """
        series = challenger.ordinal + 1
        led = standing(
            History(history.before(challenger.ordinal).trials),
            [repeat for repeat in self._repeats if repeat.series < series],
            self.scoring,
            self.measure,
        ).history
        incumbent = led.best
        if incumbent is None or challenger.score is None or not self.measure.race_rounds:
            return
        if challenger.score.broken:
            return
        if launch_of(challenger.outcome, self.scoring) is None:
            return
        leads = challenger.score.cost < led.cost(incumbent)
        if not leads and not self._is_unlike(challenger, incumbent):
            return
        raced = len(self.store.repeats(self.study_id))
        least = least_rounds(Purpose.RACE, self.measure)
        # Trials that are still to come must not eat what the final needs.
        spare = self._for_final() + remaining_launches(self.contest.study, history)
        for count in range(1, self.measure.race_rounds + 1):
            fits = self.contest.bring_to(
                count, Purpose.RACE, series, (challenger, incumbent), spare=spare
            )
            race = judge_race(self._repeats, series, self.scoring, self.measure)
            broke = challenger.ordinal in unreliable(self.contest.repeats(Purpose.RACE, series))
            settled = count >= least and race is not None and race.comparison.settled
            if not fits or broke or settled or not (leads or _is_ahead(race)):
                break
        if race is not None and len(self.store.repeats(self.study_id)) > raced:
            self.observer.race_decided(race)

    def _is_unlike(self, challenger: Trial, incumbent: Trial) -> bool:
        """Whether a launch was disturbed, and most of the incumbent's before it were not."""
        again = (r for r in self._repeats if r.series <= challenger.ordinal)
        known = [incumbent.outcome, *(r.outcome for r in again if r.ordinal == incumbent.ordinal)]
        return is_disturbed(challenger.outcome) and 2 * sum(map(is_disturbed, known)) < len(known)

    def _halved(self, history: History, series: int) -> tuple[Trial, ...]:
        """The last few of the best, by rounds that double while their number halves.

        The incumbent stays in: it is who the others have to beat.
        """
        alive = history.ranked[: self.measure.confirm_top]
        rounds, rung = 0, max(1, self.measure.confirm_rounds // CONFIRMED_FOR_EACH)
        while len(alive) > FINALISTS:
            rounds += rung
            fits = self.contest.bring_to(
                rounds, Purpose.HALVING, series, alive, spare=self._for_final()
            )
            if not fits:
                break
            burdens = centred_burdens(self.contest.repeats(Purpose.HALVING, series), self.scoring)
            order = sorted(
                (trial for trial in alive if trial.ordinal in burdens),
                key=lambda trial: (trial.ordinal != history.incumbent, burdens[trial.ordinal]),
            )
            alive = tuple(order[: max(FINALISTS, len(alive) // 2)])
            rung *= 2
        return tuple(alive[:FINALISTS])

    def _told_apart(self, launches: Sequence[Repeat], entrants: Sequence[Trial]) -> bool:
        """Whether more rounds would tell no other further apart from who leads."""
        leader = self.standing().history.best
        return leader is None or all(
            compared(launches, leader.ordinal, other.ordinal, self.scoring, self.measure).settled
            for other in entrants
            if other.ordinal != leader.ordinal
        )

    def _for_final(self) -> int:
        """Launches that are kept back so that the finalists and the seed can be told apart.

        They take at most half of the limit, so that small studies still race, and never less than a
        claim needs.
        """
        if not self.measure.confirm_rounds:
            return 0
        entrants, rule = FINALISTS + 1, claim_rule(self.measure)
        affordable = self.contest.study.budget.launch_limit // 2 // entrants
        rounds = min(FINAL_ROUNDS, rule.max_rounds, affordable)
        return self._reserve(entrants) + entrants * max(0, rounds - rule.min_rounds)

    def _reserve(self, entrant_count: int) -> int:
        """Launches that are kept back to confirm the best, and for contexts that are held out."""
        held_out = any(context.held_out for context in self.contest.study.contexts)
        return self.measure.confirm_rounds * (entrant_count + 2 * held_out)


def _is_ahead(race: Race | None) -> bool:
    """Whether the challenger did better than the incumbent in the rounds so far."""
    ratio = None if race is None else race.comparison.ratio
    return ratio is not None and ratio < 1
