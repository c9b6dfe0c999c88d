"""Launches several trials' configurations again, in rounds, and keeps every launch on record."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from zlib import crc32

from evaluator.evaluate import evidence
from evaluator.metrics.registry import measure_all
from evaluator.objective import Scoring
from records.store import Store
from records.study import Study
from records.trial import Config, Measured, Outcome, Purpose, Repeat, Score, Trial
from search.budget import launches_used
from search.disturbed import run_again, without_replaced
from search.ports import Observer
from search.trial import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Runs what is not on record yet."""

    study_id: str
    study: Study
    scoring: Scoring
    store: Store
    turn: Turn
    observer: Observer

    def repeats(self, purpose: Purpose, series: int) -> tuple[Repeat, ...]:
        """What is on record of one contest and counts, in the order of launches."""
        return without_replaced(self._launched(purpose, series), self.study.measure)

    def bring_to(
        self, count: int, purpose: Purpose, series: int, trials: Sequence[Trial], spare: int = 0
    ) -> bool:
        """Bring a contest to at least `count` rounds of all these trials, and those to run again.

        Give False where the budget lacks launches for a round and `spare` others after it.
        """
        while trials and self._rounds_done(purpose, series, trials) < count:
            missing = self._missing(purpose, series, trials)
            if self.launches_left < len(missing) + spare:
                return False
            self._launch(missing, whole=len(missing) == len(trials))
        return True

    def against_itself(self, count: int, series: int, trial: Trial, spare: int = 0) -> None:
        """Bring a self-test to `count` pairs of launches, as far as the budget and `spare` let.

        The launches of pair k are in the rounds 2k and 2k + 1.
        """
        for pair in range(count):
            done = {repeat.round for repeat in self.repeats(Purpose.SELF_TEST, series)}
            missing = [
                _Place(
                    purpose=Purpose.SELF_TEST, series=series, round=number, position=0, trial=trial
                )
                for number in (2 * pair, 2 * pair + 1)
                if number not in done
            ]
            if self.launches_left < len(missing) + spare:
                return
            self._launch(missing, whole=len(missing) == 2)

    @property
    def launches_left(self) -> int:
        """Launches that the budget still allows."""
        history = self.store.history(self.study_id)
        used = launches_used(history, self.store.repeats(self.study_id))
        return self.study.budget.launch_limit - used

    def _rounds_done(self, purpose: Purpose, series: int, trials: Sequence[Trial]) -> int:
        ordinals = {trial.ordinal for trial in trials}
        rounds = self._by_round(purpose, series)
        again = run_again(rounds)
        return sum(ordinals <= _ordinals(rounds[n]) for n in rounds if n not in again)

    def _missing(
        self, purpose: Purpose, series: int, trials: Sequence[Trial]
    ) -> tuple["_Place", ...]:
        """The launches that complete a round, in their order.

        A round that was cut short by a kill is completed.
        """
        ordinals = {trial.ordinal for trial in trials}
        rounds = self._by_round(purpose, series)
        taken = [r.round for r in self.store.repeats(self.study_id) if r.series == series]
        fresh = max(taken, default=-1) + 1
        number = next((n for n, found in rounds.items() if _ordinals(found) < ordinals), fresh)
        turn = sorted(trials, key=lambda trial: trial.ordinal)
        Random(f"{self.study.random_seed}/{series}/{number}").shuffle(turn)
        return tuple(
            _Place(purpose=purpose, series=series, round=number, position=position, trial=trial)
            for position, trial in enumerate(turn)
            if trial.ordinal not in _ordinals(rounds.get(number, ()))
        )

    def _by_round(self, purpose: Purpose, series: int) -> Mapping[int, Sequence[Repeat]]:
        rounds: dict[int, list[Repeat]] = {}
        for repeat in self._launched(purpose, series):
            rounds.setdefault(repeat.round, []).append(repeat)
        return rounds

    def _launched(self, purpose: Purpose, series: int) -> tuple[Repeat, ...]:
        stored = self.store.repeats(self.study_id)
        return tuple(r for r in stored if r.series == series and r.purpose is purpose)

    def _launch(self, places: Sequence["_Place"], *, whole: bool) -> None:
        """Launch together what makes up a whole round and fits on the machine, else in turn.

        What takes turns is not profiled.
        """
        peaks = [_peak_memory_bytes(place.trial) for place in places]
        timed_only = all(not self._study_of(p.trial).measure.profiled_steps for p in places)
        if whole and len(places) > 1 and timed_only and self.turn.fits_together(self.study, peaks):
            seed = f"{self.study.random_seed}/{places[0].series}/{places[0].round}"
            configs = [_config(place.trial) for place in places]
            outcomes = self.turn.launch_together(self.study, configs, crc32(seed.encode()))
            pairs = zip(places, outcomes, strict=True)
            self._keep(*(replace(place, position=0).repeat(outcome) for place, outcome in pairs))
            return
        for place in places:
            study = self._study_of(place.trial)
            self._keep(place.repeat(self.turn.launch_once(study, _config(place.trial))))

    def _keep(self, *repeats: Repeat) -> None:
        self.store.repeat(self.study_id, *repeats)
        for repeat in repeats:
            self.observer.repeat_finished(repeat)

    def _study_of(self, trial: Trial) -> Study:
        """The study, without profiled steps where timing samples alone answer the objective."""
        outcome = trial.outcome
        if not isinstance(outcome, Measured) or outcome.measurement.profiled:
            return self.study
        seen = evidence(self.study, outcome.measurement, traces=None)
        if not isinstance(self.scoring.score(measure_all(seen).values), Score):
            return self.study
        return replace(self.study, measure=replace(self.study.measure, profiled_steps=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """One launch of a contest before it is made."""

    purpose: Purpose
    series: int
    round: int
    position: int
    trial: Trial

    def repeat(self, outcome: Outcome) -> Repeat:
        """The launch as it is recorded."""
        return Repeat(
            series=self.series,
            round=self.round,
            ordinal=self.trial.ordinal,
            outcome=outcome,
            purpose=self.purpose,
            position=self.position,
        )


def _ordinals(launches: Iterable[Repeat]) -> set[int]:
    return {launch.ordinal for launch in launches}


def _peak_memory_bytes(trial: Trial) -> tuple[int, ...]:
    outcome = trial.outcome
    return outcome.measurement.peak_memory_bytes if isinstance(outcome, Measured) else ()


def _config(trial: Trial) -> Config:
    if trial.config is None:
        raise ValueError(f"trial {trial.ordinal} has no configuration")
    return trial.config
