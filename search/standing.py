"""Who leads a study, decided from records alone: a trial leads once it was shown to be faster."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from evaluator.objective import Scoring, scoring_of
from evaluator.timing.noise import Noise
from evaluator.timing.paired import Comparison, decide
from evaluator.timing.verdict import Verdict
from records.history import History
from records.raced import Raced
from records.rows import StudyRow
from records.store import Store
from records.study import Measure
from records.trial import Purpose, Repeat
from search.disturbed import counted
from search.final import confirming, winner_of
from search.front import Member, front_of
from search.rounds import noise_of, rounds_between, supported_values, took_turns
from search.rules import race_rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """A challenger against the trial that led when it was measured."""

    challenger: int
    incumbent: int
    comparison: Comparison

    @property
    def leader(self) -> int:
        """Who leads after it: the incumbent, unless the challenger was shown to be faster."""
        return self.challenger if self.comparison.verdict is Verdict.FAST else self.incumbent

    @property
    def raced(self) -> Raced:
        """The same as a value of the history."""
        return Raced(
            challenger=self.challenger,
            incumbent=self.incumbent,
            verdict=self.comparison.verdict.value,
            ratio=self.comparison.ratio,
            ratio_low=self.comparison.ratio_low,
            ratio_high=self.comparison.ratio_high,
            round_count=self.comparison.round_count,
            disturbed_count=self.comparison.disturbed_count,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A study's history with what its re-measuring launches say."""

    history: History
    races: tuple[Race, ...]
    noise: Noise | None
    front: tuple[Member, ...] = ()


def standing(
    history: History, repeats: Sequence[Repeat], scoring: Scoring, measure: Measure
) -> Standing:
    """Judge every race and every confirmation in the order in which they were run."""
    scoring = scoring.over(history)
    if scoring.needs_seed:  # trials at once may have been scored before it was clear who stands in
        history = replace(history, trials=tuple(map(scoring.scored, history)))
    races: list[Race] = []
    incumbent: int | None = None
    for series in sorted({repeat.series for repeat in repeats}):
        race = judge_race(repeats, series, scoring, measure)
        if race is not None:
            races.append(race)
            incumbent = race.leader
        launches = confirming(repeats, series)
        if launches:
            before = [r for r in repeats if r.series < series or r not in launches]
            known = _known(history.before(series), before, scoring, incumbent)
            incumbent = winner_of(known, launches, scoring, measure)
    known = _known(history, repeats, scoring, incumbent)
    front = front_of(history, repeats, scoring)
    return Standing(
        history=replace(
            known,
            raced=tuple(race.raced for race in races),
            repeats=tuple(repeats),
            front=tuple(member.ordinal for member in front),
        ),
        races=tuple(races),
        noise=noise_of(repeats, scoring, together=any(took_turns(r.outcome) for r in repeats)),
        front=front,
    )


def standing_of(row: StudyRow, store: Store) -> Standing:
    """Judge who leads a study on record."""
    history, repeats = store.history(row.id), counted(store.repeats(row.id), row.study.measure)
    return standing(history, repeats, scoring_of(row.study), row.study.measure)


def judge_race(
    repeats: Sequence[Repeat], series: int, scoring: Scoring, measure: Measure
) -> Race | None:
    """Judge the race after `series` trials as far as it was run; None where there was none.

    The noise comes from what was launched before it.
    """
    raced = [r for r in repeats if r.series == series and r.purpose is Purpose.RACE]
    challenger = series - 1
    others = {repeat.ordinal for repeat in raced} - {challenger}
    if not others:
        return None
    (incumbent,) = others
    rounds = rounds_between(raced, challenger, incumbent, scoring)
    earlier = [repeat for repeat in repeats if repeat.series < series]
    noise = noise_of(earlier, scoring, together=any(took_turns(r.outcome) for r in raced))
    comparison = decide(rounds, race_rule(measure), noise=noise)
    return Race(challenger=challenger, incumbent=incumbent, comparison=comparison)


def _known(
    history: History,
    repeats: Sequence[Repeat],
    scoring: Scoring,
    incumbent: int | None,
) -> History:
    """The trials, with what these launches say of them."""
    values = supported_values(repeats, scoring)
    costs = {ordinal: scoring.sign * median(found) for ordinal, found in values.items()}
    return History(trials=history.trials, costs=costs, incumbent=incumbent, again=values)
