"""The number of each trial as pages and the API show it, as far as its launches can be read.

It is that of the terminal: see `search.rounds.supported_values`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from evaluator.objective import scoring_of
from evaluator.timing.spread import Spread, spread
from records.outlines import Outline
from records.rows import StudyRow
from records.store import Store
from records.trial import Repeat, Trial
from search.finding import values_again
from search.words.condition import Disturbed, disturbed_among

MOST_REPEATS = 5000
"""Launches beyond which a page does without them: each is read in full."""


def repeats_of(row: StudyRow, store: Store) -> tuple[Repeat, ...]:
    """All of them; none where they are too many."""
    return () if are_too_many(row, store) else store.repeats(row.id)


def are_too_many(row: StudyRow, store: Store) -> bool:
    """Whether a page does without them."""
    return store.counts(row.id).repeats > MOST_REPEATS


def reached_again(row: StudyRow, store: Store) -> Mapping[int, Spread]:
    """What each trial that was launched again reached; nothing where launches are too many."""
    if are_too_many(row, store):
        return {}
    return {ordinal: spread(values) for ordinal, values in values_again(row, store).items()}


def reached_by(trial: Trial, again: Mapping[int, Spread]) -> Spread | None:
    """What a trial reached, with what is known of launches again; None without a score."""
    if trial.score is None:
        return None
    return again.get(trial.ordinal) or spread([trial.score.value])


def costs_again(row: StudyRow, store: Store) -> Mapping[int, float]:
    """The costs of trials that were launched again, lower is better."""
    again = reached_again(row, store)
    sign = scoring_of(row.study).sign if again else 1
    return {ordinal: sign * found.centre for ordinal, found in again.items()}


def disturbed_study(row: StudyRow, store: Store) -> Disturbed | None:
    """How many launches of a study were disturbed; None where none was, or they are too many."""
    counts = store.counts(row.id)
    if counts.trials + counts.repeats > MOST_REPEATS:
        return None
    launches = (*store.history(row.id), *store.repeats(row.id))
    return disturbed_among(launch.outcome for launch in launches)


def disturbed_trials(
    trials: Iterable[Trial], row: StudyRow, store: Store
) -> Mapping[int, Disturbed]:
    """How many launches of each of these trials were disturbed, for those of which any was."""
    launches = {trial.ordinal: [trial.outcome] for trial in trials}
    for repeat in repeats_of(row, store):
        if repeat.ordinal in launches:
            launches[repeat.ordinal].append(repeat.outcome)
    found = {ordinal: disturbed_among(outcomes) for ordinal, outcomes in launches.items()}
    return {ordinal: each for ordinal, each in found.items() if each is not None}


def outlines_of(
    row: StudyRow, store: Store, ordinals: Iterable[int] | None = None
) -> tuple[Outline, ...]:
    """Finished trials of a study in outline, oldest first, by all launches that count."""
    again = reached_again(row, store)
    costs = costs_again(row, store)
    return tuple(
        replace(
            each,
            value=again[each.ordinal].centre,
            cost=costs[each.ordinal],
            launch_count=again[each.ordinal].launch_count,
        )
        if each.value is not None and each.ordinal in again
        else each
        for each in store.outlines(row.id, ordinals)
    )
