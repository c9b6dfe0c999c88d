"""Studies and trials side by side: what each sets and reached, and who is faster."""

from collections.abc import Sequence
from dataclasses import dataclass

from records.errors import StudyError
from records.rows import StudyRow
from records.trial import Trial
from search.charts.curves import Curve, curve_chart
from search.comparing.sides import OnRecord
from search.comparing.verdicts import verdict_words, why_words
from search.service.facts.compared import compared_trials
from search.service.facts.history import StudyHistory
from search.service.facts.repeats import disturbed_trials
from search.service.lookups import side_of
from search.service.pages.decisions import result_words
from search.service.pages.trial_table import remarks_of
from search.service.state import Service

MOST_SIDES = 6
NONE_SET = "not set"
OTHER_STUDY = "not_comparable:study"
UNPROVEN = (
    "Nothing is proven: only trials of one study are launched in turns. Read below what each "
    "reached, and keep in mind that machine, load and software may have differed."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A trial, or the best of a study; `on_record` is None where a study has none."""

    name: str
    row: StudyRow
    is_study: bool
    on_record: OnRecord | None
    result: str
    remarks: str

    @property
    def trial(self) -> Trial | None:
        """The trial itself."""
        return None if self.on_record is None else self.on_record.trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """What a knob is set to on each side; `differs` marks those that are not as on the first."""

    name: str
    values: tuple[str, ...]
    differs: tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is known of a side against the first, in words."""

    name: str
    words: str
    why: str = ""
    caveats: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()


def side_named(name: str, service: Service) -> Side:
    """The side that `STUDY` or `STUDY:TRIAL` stands for; raises `StudyError`, `MissingError`."""
    row, found = side_of(service, name)
    trial = None if found is None else found.trial
    return Side(
        name=name,
        row=row,
        is_study=":" not in name,
        on_record=found,
        result="none" if trial is None else result_words(row, trial, service.records),
        remarks="no trial of it may lead" if trial is None else _remarks(row, trial, service),
    )


def _remarks(row: StudyRow, trial: Trial, service: Service) -> str:
    disturbed = disturbed_trials((trial,), row, service.records)
    return remarks_of(trial, disturbed.get(trial.ordinal))


def knobs_beside(sides: Sequence[Side]) -> tuple[Knob, ...]:
    """Every knob of any side, in alphabetical order."""
    configs = [
        {} if side.trial is None or side.trial.config is None else side.trial.config.values
        for side in sides
    ]
    found: list[Knob] = []
    for name in sorted({name for config in configs for name in config}):
        values = tuple(str(config.get(name, NONE_SET)) for config in configs)
        differs = tuple(value != values[0] for value in values)
        found.append(Knob(name=name, values=values, differs=differs))
    return tuple(found)


def verdicts(sides: Sequence[Side]) -> tuple[Verdict, ...]:
    """Each side against the first, as `cclsearch compare` judges them."""
    first, *others = sides
    return tuple(_verdict(first, other) for other in others)


def _verdict(first: Side, other: Side) -> Verdict:
    if first.on_record is None or other.on_record is None:
        lacking = first if first.on_record is None else other
        return Verdict(name=other.name, words=f"unknown: {lacking.name} has no trial that may lead")
    try:
        found = compared_trials(first.on_record, other.on_record).found
    except StudyError as error:
        return Verdict(name=other.name, words=str(error))
    (line,) = found.lines
    if line.comparison.reason == OTHER_STUDY:
        return Verdict(name=other.name, words=UNPROVEN)
    words, why = verdict_words(line, found), why_words(line, found)
    return Verdict(
        name=other.name,
        words=words,
        why="" if why in words else why,
        caveats=found.caveats,
        next_steps=found.next_steps,
    )


def regret_chart(histories: Sequence[tuple[str, StudyHistory]]) -> str | None:
    """How far each search was from the best of all, by trials; None where that says nothing."""
    if len({history.axis for _, history in histories}) != 1 or len(histories) < 2:
        return None
    sign = 1 if histories[0][1].axis.lower_is_better else -1
    ends = [sign * each.best_so_far[-1].value for _, each in histories if each.best_so_far]
    if not ends or min(ends) == 0:
        return None
    best = min(ends)
    curves = [
        Curve(
            name=name,
            points=tuple(
                (point.ordinal + 1, 100 * (sign * point.value - best) / abs(best))
                for point in history.best_so_far
            ),
            end=max(1, history.total),
        )
        for name, history in histories
    ]
    return curve_chart(
        curves,
        title="How far each search was from the best of all",
        x_label="trials tried",
        y_label="% from the best of all",
    )
