"""Two trials, or the best of two studies, side by side: what they set, and who is faster."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from evaluator.timing.interval.thresholds import read_thresholds
from records.rows import StudyRow
from records.store import Store
from records.study import Value
from records.trial import Config, Trial
from search.comparing.compared import Comparisons, Terms
from search.comparing.sides import OnRecord, trial_side
from search.comparing.trials import compare_trials
from search.finding import leader_of
from search.service.facts.history import Interval, StudyHistory
from search.words.trial import remarks

HistoryOf: TypeAlias = Callable[[StudyRow, Store], StudyHistory]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingBeside:
    """What a knob is set to on each side, null where a side does not set it."""

    knob: str
    a: Value | None
    b: Value | None
    differs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyBeside:
    """A study as one side: its best trial with what it reached over all its launches.

    `value` is that trial's own launch where it was launched once; null where nothing was measured.
    """

    history: StudyHistory
    best: int | None
    config: Config | None
    value: Interval | None
    unit: str
    caveats: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTrials:
    """Trial B against trial A, as the command line judges them."""

    found: Comparisons
    a: Trial
    b: Trial
    settings: tuple[SettingBeside, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStudies:
    """The best of study B against the best of study A.

    `found` is None where a study has no best, or both are one study; then `why` says so.
    """

    found: Comparisons | None
    why: str | None
    a: StudyBeside
    b: StudyBeside
    settings: tuple[SettingBeside, ...]


def compared_trials(a: OnRecord, b: OnRecord) -> ComparedTrials:
    """Judge trial B against trial A; raises `StudyError` where they are one trial."""
    return ComparedTrials(
        found=compare_trials(a, b, Terms(thresholds=read_thresholds(None, None))),
        a=a.trial,
        b=b.trial,
        settings=settings_beside(a.trial.config, b.trial.config),
    )


def compared_studies(
    a: StudyRow, b: StudyRow, records: Store, history: HistoryOf
) -> ComparedStudies:
    """Judge the best of study B against the best of study A, with how each search went.

    `history` gives the history of a study, or has it already.
    """
    best = leader_of(a, records), leader_of(b, records)
    found, why = None, None
    if a.id == b.id:
        why = "both sides are one study; give two"
    elif best[0] is None or best[1] is None:
        why = f"study {a.id if best[0] is None else b.id} has no trial that may lead"
    else:
        one, other = best[0].ordinal, best[1].ordinal
        found = compared_trials(trial_side(a, one, records), trial_side(b, other, records)).found
    return ComparedStudies(
        found=found,
        why=why,
        a=_beside(best[0], history(a, records)),
        b=_beside(best[1], history(b, records)),
        settings=settings_beside(*(None if one is None else one.config for one in best)),
    )


def settings_beside(a: Config | None, b: Config | None) -> tuple[SettingBeside, ...]:
    """Every knob of either side, in alphabetical order."""
    of_a = {} if a is None else a.values
    of_b = {} if b is None else b.values
    return tuple(
        SettingBeside(
            knob=knob,
            a=of_a.get(knob),
            b=of_b.get(knob),
            differs=(knob in of_a, of_a.get(knob)) != (knob in of_b, of_b.get(knob)),
        )
        for knob in sorted({*of_a, *of_b})
    )


def _beside(best: Trial | None, history: StudyHistory) -> StudyBeside:
    score = None if best is None else best.score
    once = None if score is None else Interval(centre=score.value, low=None, high=None)
    return StudyBeside(
        history=history,
        best=None if best is None else best.ordinal,
        config=None if best is None else best.config,
        value=history.best_again or once,
        unit=history.axis.unit if score is None else score.unit,
        caveats=() if best is None else remarks(best),
    )
