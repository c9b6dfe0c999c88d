"""Re-measuring launches as rounds that can be compared: what each launch is worth, and with whom.

What is compared is a launch's burden: the objective where less is better, its inverse where more
is. Only a positive objective has one.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from evaluator.objective import Scoring
from evaluator.timing.noise import Noise, pooled
from evaluator.timing.paired import Launch, Round
from evaluator.timing.spread import LEAST_FOR_INTERVAL
from records.trial import Measured, Outcome, Purpose, Repeat, Score
from search.disturbed import is_disturbed

STEP_OBJECTIVES = ("step_time", "tokens_per_s")
"""Objectives that are the step time, or its inverse, and nothing else."""


def is_step_time(scoring: Scoring) -> bool:
    """Whether the objective says nothing but how long steps take."""
    return scoring.expression.text.strip() in STEP_OBJECTIVES


def launch_of(outcome: Outcome, scoring: Scoring) -> Launch | None:
    """What a launch brings to a comparison; None where it has no positive objective."""
    if not isinstance(outcome, Measured):
        return None
    score = scoring.score(outcome.metrics, outcome.absent)
    if not isinstance(score, Score) or score.value <= 0:
        return None
    burden = score.value if scoring.lower_is_better else 1 / score.value
    each_steps_s = [measurement.slowest_rank_s for measurement in outcome.measurements]
    to_means = [statistics.fmean(steps_s) / statistics.median(steps_s) for steps_s in each_steps_s]
    to_mean = math.prod(to_means) ** (1 / len(to_means))
    return Launch(
        value=burden,
        mean=burden * to_mean if is_step_time(scoring) else None,
        steady=took_turns(outcome) or all(_settled(steps) for steps in each_steps_s),
    )


def _settled(steps_s: Sequence[float]) -> bool:
    from evaluator.timing.steady import steady_part  # brings numpy

    return steady_part(steps_s).settled


def rounds_between(
    repeats: Iterable[Repeat], candidate: int, anchor: int, scoring: Scoring
) -> tuple[Round, ...]:
    """The rounds in which both trials were launched and measured, in the order of launches."""
    rounds: dict[tuple[int, int], dict[int, Repeat]] = defaultdict(dict)
    for repeat in repeats:
        rounds[repeat.series, repeat.round][repeat.ordinal] = repeat
    found = (_round(both, candidate, anchor, scoring) for both in rounds.values())
    return tuple(one for one in found if one is not None)


def _round(
    launched: Mapping[int, Repeat], candidate: int, anchor: int, scoring: Scoring
) -> Round | None:
    if candidate not in launched or anchor not in launched:
        return None
    ours, theirs = launched[candidate], launched[anchor]
    launches = launch_of(ours.outcome, scoring), launch_of(theirs.outcome, scoring)
    if launches[0] is None or launches[1] is None:
        return None
    first = None if ours.position == theirs.position else ours.position < theirs.position
    return Round(
        candidate=launches[0],
        anchor=launches[1],
        candidate_first=first,
        disturbed=is_disturbed(ours.outcome) or is_disturbed(theirs.outcome),
    )


def objective_values(repeats: Iterable[Repeat], scoring: Scoring) -> dict[int, list[float]]:
    """Objective of each measured launch, by trial."""
    values: dict[int, list[float]] = defaultdict(list)
    for repeat in repeats:
        if isinstance(repeat.outcome, Measured):
            score = scoring.score(repeat.outcome.metrics, repeat.outcome.absent)
            if isinstance(score, Score):
                values[repeat.ordinal].append(score.value)
    return dict(values)


def supported_launches(repeats: Iterable[Repeat], scoring: Scoring) -> tuple[Repeat, ...]:
    """The launches that give each trial its one number, of all trials that were launched again.

    They are those of the last final that the trial was in, where these are enough for an interval;
    otherwise all that were made again. The first launch counts only where there is no other: a
    trial is raced because its first launch came out well.
    """
    launches = tuple(repeats)
    finals: dict[int, list[Repeat]] = defaultdict(list)
    for launch in launches:
        if launch.purpose is Purpose.CONFIRM:
            finals[launch.series].append(launch)
    last: dict[int, int] = {}
    for series in sorted(finals):
        confirmed = objective_values(finals[series], scoring)
        last |= {n: series for n, found in confirmed.items() if len(found) >= LEAST_FOR_INTERVAL}
    return tuple(
        launch
        for launch in launches
        if launch.ordinal not in last
        or (launch.purpose is Purpose.CONFIRM and launch.series == last[launch.ordinal])
    )


def supported_values(repeats: Iterable[Repeat], scoring: Scoring) -> dict[int, tuple[float, ...]]:
    """The objective in the launches that `supported_launches` names, by trial."""
    values = objective_values(supported_launches(repeats, scoring), scoring)
    return {ordinal: tuple(found) for ordinal, found in values.items()}


def centred_burdens(repeats: Iterable[Repeat], scoring: Scoring) -> dict[int, float]:
    """Mean burden of each trial, every launch divided by the median of its round."""
    rounds: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    for repeat in repeats:
        launch = launch_of(repeat.outcome, scoring)
        if launch is not None:
            rounds[repeat.series, repeat.round][repeat.ordinal] = launch.value
    centred: dict[int, list[float]] = defaultdict(list)
    for values in rounds.values():
        middle = statistics.median(values.values())
        for ordinal, value in values.items():
            centred[ordinal].append(value / middle)
    return {ordinal: statistics.fmean(values) for ordinal, values in centred.items()}


def noise_of(repeats: Sequence[Repeat], scoring: Scoring, *, together: bool) -> Noise | None:
    """How much a round's ratio varies by itself; None while nothing was launched twice.

    Only launches that took turns count, or only those that did not: they differ in noise.
    """
    values: dict[tuple[int, Purpose], dict[int, dict[int, float]]] = {}
    for repeat in repeats:
        launch = launch_of(repeat.outcome, scoring)
        if launch is not None and took_turns(repeat.outcome) is together:
            contest = values.setdefault((repeat.series, repeat.purpose), {})
            contest.setdefault(repeat.round, {})[repeat.ordinal] = launch.value
    tables: list[list[list[float]]] = []
    for (_, purpose), rounds in values.items():
        if purpose is Purpose.SELF_TEST:
            pairs: dict[int, list[list[float]]] = defaultdict(list)
            for number, launched in rounds.items():
                pairs[number // 2].append(list(launched.values()))
            tables += pairs.values()
        else:
            everyone = max(rounds.values(), key=len).keys()
            whole = [launched for launched in rounds.values() if launched.keys() == everyone]
            tables.append([[launched[n] for n in sorted(everyone)] for launched in whole])
    return pooled(tables)


def took_turns(outcome: Outcome) -> bool:
    """Whether a launch took turns with others on the same machine."""
    return isinstance(outcome, Measured) and bool(outcome.measurement.turn_steps)
