"""Who wins among the finalists, from the launches that were made to confirm it."""

from collections.abc import Iterable, Sequence
from statistics import median

from evaluator.objective import Scoring
from evaluator.timing.paired import Comparison, decide
from evaluator.timing.verdict import Verdict
from records.history import History
from records.study import Measure
from records.trial import Failed, FailureKind, Measured, Purpose, Repeat
from search.rounds import objective_values, rounds_between
from search.rules import claim_rule

SEED = 0


def confirming(repeats: Iterable[Repeat], series: int) -> tuple[Repeat, ...]:
    """Launches that confirm the finalists chosen after `series` trials."""
    return tuple(r for r in repeats if r.series == series and r.purpose is Purpose.CONFIRM)


def winner_of(
    history: History, launches: Sequence[Repeat], scoring: Scoring, measure: Measure
) -> int | None:
    """Ordinal of the trial that wins these confirming launches; None where nothing was measured.

    `history` is what was known before them. Who led by it stays, unless another was shown to be
    faster, or to be the same in less memory or on fewer ranks. Where neither could be shown, what
    came out better by more than the margin wins over who led, though not over the seed: these are
    ties, and are named. A finalist that failed by its own doing wins only when no other is left.
    """
    admissible = {trial.ordinal for trial in history.admissible}
    found = objective_values(launches, scoring)
    values = {ordinal: found[ordinal] for ordinal in found if ordinal in admissible}
    if not values or history.best is None:
        return history.incumbent
    incumbent = history.best.ordinal
    failed = unreliable(launches)
    sound = [ordinal for ordinal in values if ordinal not in failed] or list(values)
    costs = {ordinal: scoring.sign * median(values[ordinal]) for ordinal in sound}
    if incumbent not in costs:
        return min(costs, key=lambda ordinal: (costs[ordinal], ordinal))
    against = {
        ordinal: compared(launches, ordinal, incumbent, scoring, measure)
        for ordinal in sound
        if ordinal != incumbent
    }
    faster = [ordinal for ordinal, found in against.items() if found.verdict is Verdict.FAST]
    if faster:
        return min(faster, key=lambda ordinal: (costs[ordinal], ordinal))
    ratios = {n: found.ratio for n, found in against.items() if _leans(found, measure)}
    if ratios and incumbent != SEED:
        return min(ratios, key=lambda ordinal: (ratios[ordinal], ordinal))
    same = [ordinal for ordinal, found in against.items() if found.verdict is Verdict.SAME]
    return min([incumbent, *same], key=lambda ordinal: _demand(history, ordinal))


def _leans(found: Comparison, measure: Measure) -> bool:
    """Whether a candidate came out better by more than the margin, without being shown to be."""
    undecided = found.verdict is Verdict.UNDECIDED
    return undecided and found.ratio is not None and found.ratio < 1 - measure.margin


def compared(
    launches: Iterable[Repeat], candidate: int, anchor: int, scoring: Scoring, measure: Measure
) -> Comparison:
    """Judge one finalist against another over the rounds that both have."""
    return decide(rounds_between(launches, candidate, anchor, scoring), claim_rule(measure))


def unreliable(launches: Iterable[Repeat]) -> tuple[int, ...]:
    """Finalists that failed by their own doing, ordinals in order."""
    failed = {
        launch.ordinal
        for launch in launches
        if isinstance(launch.outcome, Failed)
        and launch.outcome.kind is not FailureKind.INFRASTRUCTURE
    }
    return tuple(sorted(failed))


def _demand(history: History, ordinal: int) -> tuple[int, int]:
    """What a trial takes: peak memory of its fullest rank, and ranks."""
    trial = history.find(ordinal)
    if trial is None or not isinstance(trial.outcome, Measured):
        raise ValueError(f"trial {ordinal} was not measured")
    measurement = trial.outcome.measurement
    return max(measurement.peak_memory_bytes, default=0), len(measurement.step_times_s)
