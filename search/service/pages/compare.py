"""Compare studies, policies.

Studies and trials side by side: what each sets and reached, and who is faster.

The page that compares studies or trials.

What one program changed of another, as rows of two columns or as one list of lines.

Pages about policies: which a study tried, what each changed, what the models took for them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Annotated, Literal, TypeAlias

from fastapi import APIRouter, Query, Request, Response

from records.errors import StudyError
from records.store.queries import PolicyResult
from records.store.rows import StudyRow
from records.store.store import Store
from records.trial import Trial
from search.compare.sides import TrialSide
from search.compare.view import verdict_words, why_words
from search.service.access import Reader, TheService
from search.service.api.studies import Offset, disturbed_in, study_short
from search.service.api.trials import policy_of, side_of
from search.service.data import StudyHistory, compared_trials, disturbed_trials, repeat_spreads
from search.service.pages.base import drawing, page, visible
from search.service.pages.study import result_words
from search.service.pages.trials import remarks_of
from search.service.service import Service
from search.views.charts import Curve, curve_chart
from search.views.study import use_facts

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
    on_record: TrialSide | None
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


def knob_table(sides: Sequence[Side]) -> tuple[Knob, ...]:
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


router = APIRouter(include_in_schema=False)

Name = Annotated[str, Query(max_length=120)]


@router.get("/compare")
def compare(
    request: Request,
    service: TheService,
    _caller: Reader,
    side: Annotated[list[Name] | None, Query(max_length=100)] = None,
) -> Response:
    """Studies or trials side by side; the first is what the others are compared with."""
    names = list(dict.fromkeys(name.strip() for name in side or () if name.strip()))
    if len(names) > MOST_SIDES:
        raise StudyError(f"{len(names)} sides are too many to compare; give at most {MOST_SIDES}")
    sides = [side_named(name, service) for name in names]
    studies = {each.row.id: each.row for each in sides}
    histories = [
        (f"{row.study.name} ({row.id})", service.explored.history(row, service.records))
        for row in studies.values()
    ]
    chart = regret_chart(histories)
    return page(
        request,
        "compare.html",
        sides=sides,
        most=MOST_SIDES,
        knobs=knob_table(sides),
        verdicts=verdicts(sides) if sides else (),
        chart=None if chart is None else drawing(chart),
        study_count=len(studies),
    )


MOST_LINES = 3000
CONTEXT = 4
CUT = "[... the rest is on record ...]"

Kind: TypeAlias = Literal["same", "changed", "added", "removed", "gap"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Lines beside each other with their numbers; None where a side has none.

    A `gap` stands for equal lines that are left out; `before` says how many.
    """

    kind: Kind
    before_number: int | None = None
    before: str | None = None
    after_number: int | None = None
    after: str | None = None


def lines_of(source: str) -> tuple[str, ...]:
    """The lines of a program, as they are shown."""
    lines = tuple(visible(source).splitlines())
    return lines if len(lines) <= MOST_LINES else (*lines[:MOST_LINES], CUT)


def side_by_side(before: str, after: str) -> tuple[Row, ...]:
    """Both programs beside each other, long equal parts left out; nothing where they are equal."""
    old, new = lines_of(before), lines_of(after)
    return () if old == new else tuple(_rows(old, new))


def one_below_the_other(rows: Sequence[Row]) -> Iterator[Row]:
    """The same in one list: what is gone, then what came in its place."""
    taken: list[Row] = []
    for row in rows:
        match row.kind:
            case "same" | "gap":
                yield from taken
                taken = []
                yield row
            case "added":
                taken.append(row)
            case "removed":
                yield row
            case "changed":
                yield Row(kind="removed", before_number=row.before_number, before=row.before)
                taken.append(Row(kind="added", after_number=row.after_number, after=row.after))
    yield from taken


def _rows(before: Sequence[str], after: Sequence[str]) -> Iterator[Row]:
    groups = SequenceMatcher(None, before, after).get_grouped_opcodes(CONTEXT)
    shown = 0
    for group in groups:
        if group[0][1] > shown:
            yield _gap(group[0][1] - shown)
        for tag, *ends in group:
            yield from _block(before, after, *ends, equal=tag == "equal")
        shown = group[-1][2]
    if len(before) > shown:
        yield _gap(len(before) - shown)


def _gap(count: int) -> Row:
    return Row(kind="gap", before=f"{count} equal line{'s'[: count - 1]}")


def _block(
    before: Sequence[str],
    after: Sequence[str],
    i: int,
    i_end: int,
    j: int,
    j_end: int,
    *,
    equal: bool,
) -> Iterator[Row]:
    for place in range(max(i_end - i, j_end - j)):
        old = i + place if i + place < i_end else None
        new = j + place if j + place < j_end else None
        kind: Kind = "same" if equal else "changed"
        if old is None or new is None:
            kind = "added" if old is None else "removed"
        yield Row(
            kind=kind,
            before_number=None if old is None else old + 1,
            before=None if old is None else before[old],
            after_number=None if new is None else new + 1,
            after=None if new is None else after[new],
        )


MOST_TRIALS = 8
"""Of each policy in the list; the page of a policy has more."""
MANY_TRIALS = 500

Limit = Annotated[int, Query(ge=1, le=200)]
Against = Annotated[str, Query(max_length=64, pattern="^[0-9a-f]*$")]


@router.get("/studies/{study_id}/policies")
def policies(
    request: Request,
    study_id: str,
    service: TheService,
    _caller: Reader,
    limit: Limit = 50,
    offset: Offset = 0,
    learned: Literal["yes", "no"] = "no",
) -> Response:
    """The policies of a study in the order in which they were tried.

    What failures taught is told when it is asked for: with many knobs it takes seconds.
    """
    row, records = service.study(study_id), service.records
    outlines, total = records.policy_outlines(row.id, limit, offset)
    return page(
        request,
        "policies.html",
        disturbed=disturbed_in(row, service),
        study=study_short(row, service),
        tab="policies",
        outlines=outlines,
        results=_results(row, [each.digest for each in outlines], MOST_TRIALS, records),
        total=total,
        limit=limit,
        offset=offset,
        models=use_facts(records.model_uses(row.id), row.study.llm),
        failed=records.counts(row.id).failed,
        learned=service.writing.learned(service.store, row) if learned == "yes" else None,
    )


@router.get("/studies/{study_id}/policies/{digest}")
def policy(
    request: Request,
    study_id: str,
    digest: str,
    service: TheService,
    _caller: Reader,
    against: Against = "",
    view: Literal["side", "unified"] = "side",
) -> Response:
    """A policy, what it changed of its parent or of the one given, and its trials."""
    row, records = service.study(study_id), service.records
    found = policy_of(service, row.id, digest)
    before = None if found.parent is None else records.policy(row.id, found.parent)
    if against:
        before = policy_of(service, row.id, against)
    rows = () if before is None else side_by_side(before.source, found.source)
    return page(
        request,
        "policy.html",
        disturbed=disturbed_in(row, service),
        study=study_short(row, service),
        tab="policies",
        policy=found,
        digest=digest,
        before=before,
        view=view,
        rows=rows if view == "side" else tuple(one_below_the_other(rows)),
        lines=lines_of(found.source),
        results=_results(row, [digest], MANY_TRIALS, records).get(digest, ()),
    )


def _results(
    row: StudyRow, digests: Sequence[str], most: int, records: Store
) -> Mapping[str, tuple[PolicyResult, ...]]:
    """How the first trials of these policies ended, by all launches that count."""
    again = repeat_spreads(row, records)
    found = records.policy_results(row.id, digests, most)
    return {
        digest: tuple(
            replace(each, value=again[each.ordinal].centre) if each.ordinal in again else each
            for each in results
        )
        for digest, results in found.items()
    }
