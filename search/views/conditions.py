"""Describe the measurement conditions for a model: noise, load, drift and shared cores."""

import math
from collections.abc import Iterator, Sequence
from statistics import median

from evaluator.machine import core_count
from evaluator.objective import Scoring
from evaluator.timing.decision import Noise
from records.machine import Conditions
from records.study import Environment, Study
from records.trial import History, Outcome
from search.loop.leader import noise_of, took_turns
from search.loop.relative_speed import RelativeSpeeds, single_launch_ratio
from search.views.format import format_count, format_whole_percent
from search.views.machine import conditions_of
from search.views.study import USELESS_RATIO, noise_words

LAST = 5
"""Launches that count as lately."""
NOTABLE_DRIFT = 1.10


def condition_lines(
    study: Study, history: History, scoring: Scoring, scale: RelativeSpeeds
) -> Iterator[str]:
    """Each fact with its numbers, and what it means for scores."""
    yield _noise_line(noise_now(history, scoring), study)
    launches: list[tuple[float, Outcome]] = [(t.ordinal, t.outcome) for t in history]
    launches += [(repeat.series - 0.5, repeat.outcome) for repeat in history.repeats]
    launches.sort(key=lambda launch: launch[0])
    conditions = conditions_of(outcome for _, outcome in launches)
    if conditions:
        yield _load_line(conditions)
    drift = _drift(scale)
    if drift is not None:
        yield drift


def noise_now(history: History, scoring: Scoring) -> Noise | None:
    """How much rounds of equal launches differ, by all repeat launches."""
    repeats = history.repeats
    return noise_of(repeats, scoring, together=any(took_turns(r.outcome) for r in repeats))


def crowding_words(environment: Environment) -> str | None:
    """That ranks share cores, where they do."""
    cores = core_count(environment)
    ranks = min(environment.world_size, environment.ranks_per_node)
    if cores is None or ranks <= cores:
        return None
    return (
        f"Up to {ranks} ranks share {format_count(cores, 'core')} of a node, so one rank's "
        "compute shows up as another's waiting, and an idle rank may leave its core to another."
    )


def _noise_line(noise: Noise | None, study: Study) -> str:
    if noise is None:
        return "- noise: not known yet, no configuration was launched twice"
    alone = single_launch_ratio(noise)
    single = "none" if alone > USELESS_RATIO else f"none below {alone:.2f}x"
    return f"- noise: {noise_words(noise, study.measure)}; two single launches (~) show {single}"


def _load_line(conditions: Sequence[Conditions]) -> str:
    disturbed = [each.disturbances for each in conditions if each.disturbances]
    count = format_count(len(conditions), "launch", "launches")
    line = f"- load: {len(disturbed)} of {count} disturbed"
    shares = [c.others_cpu_share for c in conditions if c.others_cpu_share is not None]
    if len(shares) > LAST:
        first, last = median(shares[:LAST]), median(shares[-LAST:])
        then, now = format_whole_percent(first), format_whole_percent(last)
        return f"{line}; other processes used {then} of the cores at first, {now} lately"
    return f"{line}, the last because {disturbed[-1][0]}" if disturbed else line


def _drift(scale: RelativeSpeeds) -> str | None:
    """How the configuration changed whose launches lie furthest apart in time."""
    widest = max(
        scale.launches.items(),
        key=lambda launched: launched[1][-1][0] - launched[1][0][0],
        default=None,
    )
    if widest is None or widest[1][-1][0] == widest[1][0][0]:
        return None
    ordinal, launches = widest
    factor = math.exp(launches[-1][1] - launches[0][1])
    if 1 / NOTABLE_DRIFT < factor < NOTABLE_DRIFT:
        return f"- drift: little, #{ordinal} was {1 / factor:.2f}x as good at last as at first"
    return (
        f"- drift: the same configuration (#{ordinal}) was {1 / factor:.2f}x as good when launched "
        "last as at first, so values of different times do not compare"
    )
