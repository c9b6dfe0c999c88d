"""What a study tried as charts need it: configurations as lines over parallel axes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evaluator.objective import scoring_of
from records.outlines import Outline
from records.rows import StudyRow
from records.store import Store
from records.study import Value
from search.finding import leader_of
from search.report_page.knobs import MOST_LINES, varied
from search.service.facts.history import Axis, Ended, axis_of, ended, outline_words
from search.service.facts.repeats import costs_again, outlines_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedKnob:
    """An axis of parallel coordinates: the values that were tried, in their order."""

    name: str
    choices: tuple[Value, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedConfig:
    """A configuration as a line: the place of its choice on each axis, null where it sets none.

    `rank` is its place among all that may lead, 0 for the best and 1 for the worst.
    """

    ordinal: int
    places: tuple[int | None, ...]
    value: float | None
    rank: float | None
    ended: Ended
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyKnobs:
    """What was tried, as parallel coordinates; no lines where nothing was varied."""

    axis: Axis
    knobs: tuple[TriedKnob, ...]
    lines: tuple[TriedConfig, ...]
    best: int | None
    shown: int
    total: int


def study_knobs(row: StudyRow, records: Store) -> StudyKnobs:
    """Configurations as lines through what they set: all, or the best and some of the others."""
    total, leader = records.counts(row.id).trials, leader_of(row, records)
    ordinals = None
    if total > MOST_LINES:
        half = MOST_LINES // 2
        spread = records.telling(row.id, half, limited=bool(row.study.limits))
        ordinals = {*records.leading(row.id, half), *spread}
    found = [each for each in outlines_of(row, records, ordinals) if each.config is not None]
    ranks = records.ranks(row.id, [each.ordinal for each in found], costs_again(row, records))
    last = max(1, max(ranks.values(), default=1))
    tried = varied(row.study, [each.config for each in found if each.config is not None])
    knobs = tuple(TriedKnob(name=name, choices=choices) for name, choices in tried)
    return StudyKnobs(
        axis=axis_of(scoring_of(row.study)),
        knobs=knobs,
        lines=tuple(_tried(each, knobs, ranks, last) for each in found) if knobs else (),
        best=None if leader is None else leader.ordinal,
        shown=len(found) if knobs else 0,
        total=total,
    )


def _tried(
    of: Outline, knobs: Sequence[TriedKnob], ranks: Mapping[int, int], last: int
) -> TriedConfig:
    config = {} if of.config is None else of.config.values
    return TriedConfig(
        ordinal=of.ordinal,
        places=tuple(
            knob.choices.index(config[knob.name]) if knob.name in config else None for knob in knobs
        ),
        value=of.value,
        rank=ranks[of.ordinal] / last if of.ordinal in ranks else None,
        ended=ended(of),
        words=outline_words(of),
    )
