"""Checks of how a search went: what it took for an answer that was none, and where it stopped."""

from collections import defaultdict

from records.trial import Config, Failed, FailureKind, Trial
from search.auditing.audited import Audited, Said, counted, listed
from search.words.trial import one_line

CAUSE_CHARS = 120
LEAST_TRIALS = 3


def infrastructure(seen: Audited) -> Said | None:
    """Failures of the surroundings counted as those of configurations."""
    ordinals = seen.failures(FailureKind.INFRASTRUCTURE)
    if not seen.is_foreign or not ordinals:
        return None
    first = seen.history.find(ordinals[0])
    cause = "" if first is None else one_line(str(first.outcome), CAUSE_CHARS)
    return (
        f"{counted(len(ordinals), 'failure')} of the surroundings counted as told by the "
        f"configuration: {listed(ordinals)} ({cause}).",
        ordinals,
    )


def cache_replays(seen: Audited) -> Said | None:
    """Results that were given again from a cache, as if a launch had told them."""
    ordinals = seen.failures(FailureKind.DUPLICATE)
    if not seen.is_foreign or not ordinals:
        return None
    return (
        f"{listed(ordinals).capitalize()} launched nothing: an earlier result of the same "
        f"configuration was given again, {len(ordinals)} of {len(seen.history)} trials.",
        ordinals,
    )


def dead_knob(seen: Audited) -> Said | None:
    """A knob was searched that did nothing."""
    tried = [t for t in seen.history if t.config is not None and t.reached_launch]
    searched = [
        knob
        for knob in seen.dead_knobs
        if len({t.config.values.get(knob) for t in tried if t.config is not None} - {None}) > 1
    ]
    if not searched:
        return None
    again = _again(seen, tried)
    repeats = (
        f"; {listed(again)} repeat{'s'[len(again) - 1 :]} an earlier trial but for it"
        if again
        else ""
    )
    names = " and ".join(searched)
    return f"{names} had no effect on what was launched, yet it was searched{repeats}.", again


def _again(seen: Audited, tried: list[Trial]) -> tuple[int, ...]:
    """Trials whose settings differ from an earlier one only in what does nothing."""
    earlier: dict[Config, set[Config]] = defaultdict(set)
    found: list[int] = []
    for trial in tried:
        if trial.config is not None:
            before = earlier[seen.live(trial.config)]
            if before and trial.config not in before:
                found.append(trial.ordinal)
            before.add(trial.config)
    return tuple(found)


def failed_seed(seen: Audited) -> Said | None:
    """Nothing tells what a user had before the search."""
    seed = seen.history.find(0)
    if seed is None or not isinstance(seed.outcome, Failed) or seen.best is None:
        return None
    return (
        f"The seed failed ({one_line(str(seed.outcome), CAUSE_CHARS)}), so nothing tells what the "
        "search gained.",
        (0,),
    )


def best_is_last(seen: Audited) -> Said | None:
    """The search stopped while it still got better."""
    best, tried = seen.best, [t for t in seen.history if t.reached_launch]
    if not seen.is_foreign or best is None or len(tried) < LEAST_TRIALS or tried[-1] is not best:
        return None
    return (
        f"The best, trial {best.ordinal}, is the last of {len(seen.history)} trials: the search "
        "stopped while it still got better, so more trials may have found a better one.",
        (best.ordinal,),
    )
