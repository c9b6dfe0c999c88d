"""How a winner does in each context of a study, also in those that the search never launched."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from evaluator.objective import Scoring
from evaluator.timing.paired import Comparison
from records.study import Study
from records.trial import Config, Purpose, Repeat, Trial
from search.contest import Contest
from search.context_launches import in_one
from search.contexts import decided, held_out_study
from search.final import compared
from search.finding import InContextFinding
from search.spaces import space_of


def hold_out(contest: Contest, series: int, winner: Trial, seed: Trial) -> tuple[Repeat, ...]:
    """Launch both in the contexts that were held out, in rounds, as far as the budget lets.

    Gives what is on record of it. There is nothing to launch where they are one trial.
    """
    study = held_out_study(contest.study)
    if study is None or winner.ordinal == seed.ordinal:
        return ()
    space = space_of(study)
    configs = [(trial, decided(trial.policy, study, space)) for trial in (winner, seed)]
    entrants = [replace(trial, config=c) for trial, c in configs if isinstance(c, Config)]
    inside = replace(contest, study=study)
    if len(entrants) == len(configs):
        inside.bring_to(study.measure.confirm_rounds, Purpose.HELD_OUT, series, entrants)
    return inside.repeats(Purpose.HELD_OUT, series)


def in_contexts(
    study: Study,
    confirmed: Sequence[Repeat],
    held_out: Sequence[Repeat],
    winner: int,
    scoring: Scoring,
) -> tuple[InContextFinding, ...]:
    """Judge the winner against the seed in every context, and over those held out together."""
    if not study.contexts or winner == 0:
        return ()
    outside = held_out_study(study)
    found = list(_each(study, confirmed, winner, scoring, held_out=False))
    if outside is not None:
        found += _each(outside, held_out, winner, scoring, held_out=True)
    if outside is not None and outside.contexts:
        mean = InContextFinding(
            name="the mean of all held out",
            held_out=True,
            against_seed=_judged(held_out, winner, scoring, study),
            context_count=1 + len(outside.contexts),
        )
        found.append(mean)
    return tuple(found)


def _each(
    study: Study, launches: Sequence[Repeat], winner: int, scoring: Scoring, *, held_out: bool
) -> Iterator[InContextFinding]:
    """The study's own context first, then the others that these launches were made in."""
    launched = [context.name for context in study.contexts if not context.held_out]
    for name in (study.name, *launched):
        inside = [
            replace(launch, outcome=outcome)
            for launch in launches
            if (outcome := in_one(launch.outcome, name) if launched else launch.outcome) is not None
        ]
        yield InContextFinding(
            name=name, held_out=held_out, against_seed=_judged(inside, winner, scoring, study)
        )


def _judged(
    launches: Sequence[Repeat], winner: int, scoring: Scoring, study: Study
) -> Comparison | None:
    seeds = [launch.outcome for launch in launches if launch.ordinal == 0]
    if not seeds:
        return None
    return compared(launches, winner, 0, scoring.against(seeds), study.measure)
