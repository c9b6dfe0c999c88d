"""Studies and trials side by side: what each sets and reached, and who is faster."""

from collections.abc import Sequence
from dataclasses import dataclass

from records.errors import StudyError, shown
from records.rows import StudyRow
from records.trial import Trial
from search.charts.curves import Curve, curve_chart
from search.comparing.verdicts import verdict_words, why_words
from search.finding import leader_of
from search.service.facts.compared import compared_trials, side_of
from search.service.facts.history import StudyHistory
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
    """A trial, or the best of a study; `trial` is None where a study has none."""

    name: str
    row: StudyRow
    is_study: bool
    trial: Trial | None
    result: str
    remarks: str


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
    study_id, colon, number = name.strip().partition(":")
    row = service.study(study_id)
    if not colon:
        trial = leader_of(row, service.records)
    elif number.isascii() and number.isdecimal() and len(number) < 10:
        trial = side_of(row, int(number), service.records).trial
    else:
        raise StudyError(f"{shown(name)} names no trial; write STUDY or STUDY:3")
    return Side(
        name=name.strip(),
        row=row,
        is_study=not colon,
        trial=trial,
        result="none" if trial is None else result_words(row, trial, service.records),
        remarks="no trial of it may lead" if trial is None else remarks_of(trial),
    )


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


def verdicts(sides: Sequence[Side], service: Service) -> tuple[Verdict, ...]:
    """Each side against the first, as `cclsearch compare` judges them."""
    first, *others = sides
    return tuple(_verdict(first, other, service) for other in others)


def _verdict(first: Side, other: Side, service: Service) -> Verdict:
    for side in (first, other):
        if side.trial is None:
            return Verdict(
                name=other.name, words=f"unknown: {side.name} has no trial that may lead"
            )
    try:
        a, b = (
            side_of(side.row, side.trial.ordinal, service.records)
            for side in (first, other)
            if side.trial is not None
        )
        found = compared_trials(a, b).found
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
