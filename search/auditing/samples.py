"""Checks of whether the best of a history is more than luck."""

import math
from statistics import median

from evaluator.metrics.published import SCORE
from records.study import MIN_TIMED_STEPS
from records.trial import Measured, Trial
from search.auditing.audited import Audited, Said, is_imported, listed, metric_of, value
from search.words.trial import number

CLEARLY = 2 * math.sqrt(2)
"""Two results differ clearly when their logarithms do by so many standard deviations of one."""
MOST_DIGITS = 6


def one_sample(seen: Audited) -> Said | None:
    """The best is a single number of a single launch."""
    best = seen.best
    if best is None or best.config is None or not seen.best_is_one_number:
        return None
    if len(seen.alike[seen.live(best.config)]) > 1:
        return None
    known = (
        "nothing in the record tells how far a second launch would be from it"
        if seen.noise is None
        else f"results of equal settings are {_percent(seen.noise)} apart in this record"
    )
    return f"The best, trial {best.ordinal}, is one number of one launch; {known}.", (best.ordinal,)


def best_of_noise(seen: Audited) -> Said | None:
    """The best is the luckiest of several launches of what is effectively the same."""
    best = seen.best
    if best is None or best.config is None or not seen.best_is_one_number:
        return None
    same = seen.alike[seen.live(best.config)]
    if len(same) < 2:
        return None
    values = sorted(value(trial) for trial in same)
    middle = median(values)
    apart = values[-1] / values[0] - 1 if values[0] > 0 else None
    spread = "" if apart is None else f", {_percent(apart)} apart"
    words = (
        f"{listed([trial.ordinal for trial in same]).capitalize()} set effectively the same and "
        f"got {number(values[0])} to {number(values[-1])}{spread}; the best, trial {best.ordinal}, "
        f"is the luckiest of these {len(same)}, whose median is {number(middle)}{_by_median(seen)}."
    )
    return words, tuple(trial.ordinal for trial in same)


def _by_median(seen: Audited) -> str:
    """Who leads when what is effectively the same counts by its median, if that is another."""
    sign, best = seen.scoring.sign, seen.best
    medians = {
        config: median(sign * value(trial) for trial in trials)
        for config, trials in seen.alike.items()
    }
    first = min(medians, key=lambda config: medians[config])
    if best is None or best.config is None or first == seen.live(best.config):
        return ""
    return f", and by medians trial {seen.alike[first][0].ordinal} leads"


def within_noise(seen: Audited) -> Said | None:
    """The best leads by less than equal settings differ by."""
    best, noise = seen.best, seen.noise
    if best is None or best.config is None or noise is None or not seen.best_is_one_number:
        return None
    own = seen.live(best.config)
    if value(best) <= 0:
        return None
    close = [
        (behind, leader)
        for config, trials in seen.alike.items()
        if config != own
        for leader in [min(trials, key=seen.history.cost)]
        if (behind := _behind(best, leader)) is not None and behind < CLEARLY * noise
    ]
    if not close:
        return None
    behind, nearest = min(close, key=lambda pair: pair[0])
    words = (
        f"Trial {best.ordinal} leads trial {nearest.ordinal} by {_percent(behind)}, while results "
        f"of equal settings are {_percent(noise)} apart in this record; "
        f"{len(close)} other configuration{'s'[: len(close) - 1]} cannot be told apart from it."
    )
    return words, (best.ordinal, *(leader.ordinal for _, leader in sorted(close, key=_first)))


def _first(pair: tuple[float, Trial]) -> float:
    return pair[0]


def _behind(best: Trial, other: Trial) -> float | None:
    """How far apart two results are, as the absolute logarithm of their ratio."""
    return abs(math.log(value(other) / value(best))) if value(other) > 0 else None


def same_result(seen: Audited) -> Said | None:
    """Different settings have the same result to the last digit."""
    found: dict[float, set[str]] = {}
    trials: dict[float, list[int]] = {}
    for trial in seen.history.measured:
        result = metric_of(trial, SCORE)
        if result is None or trial.config is None or not is_imported(trial) or not _is_fine(result):
            continue
        found.setdefault(result, set()).add(seen.live(trial.config).digest)
        trials.setdefault(result, []).append(trial.ordinal)
    shared = [result for result, configs in found.items() if len(configs) > 1]
    ordinals = sorted(n for result in shared for n in trials[result])
    if not shared:
        return None
    return (
        f"{len(ordinals)} trials share {len(shared)} result{'s'[: len(shared) - 1]} to the last "
        f"digit though they set something else, as {listed(trials[shared[0]])} with "
        f"{shared[0]:.10g}: an old result may have been read again.",
        tuple(ordinals),
    )


def _is_fine(result: float) -> bool:
    """Whether a result has so many digits that two launches do not agree by chance."""
    return len(f"{result:.15g}".replace(".", "").strip("0")) >= MOST_DIGITS


def few_steps(seen: Audited) -> Said | None:
    """The best was timed over fewer steps than a median needs."""
    best = seen.best
    if best is None or not isinstance(best.outcome, Measured) or is_imported(best):
        return None
    fewest = min(len(one.slowest_rank_s) for one in best.outcome.measurements)
    if not 0 < fewest < MIN_TIMED_STEPS:
        return None
    return (
        f"The best, trial {best.ordinal}, was timed over {fewest} steps; "
        f"a score needs {MIN_TIMED_STEPS} at least.",
        (best.ordinal,),
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
