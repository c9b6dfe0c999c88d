"""Submissions in groups of the same work, each ranked by one metric as far as it can be told."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from records.errors import StudyError
from search.leaderboard.published import defect_of
from search.leaderboard.submission import Better, Reading, Submission
from search.leaderboard.work import Work
from search.study_file import suggestion

USUAL: Final = ("step_time", "published_avg_step_time", "bus_bandwidth", "tokens_per_s")
"""What groups are ranked by where nobody says: the first that most of its submissions have."""
FIRST: Final = (
    *USUAL,
    *("mfu", "published_mfu", "peak_memory", "ttft", "tpot", "published_ttft", "published_tpot"),
    *("exposed_communication_fraction", "published_communication_fraction"),
    *("compute_comm_overlap", "published_compute_comm_overlap"),
)
"""Columns that stand before the others."""
BYTES: Final = "bytes"
"""A unit that each value replaces with its own: KiB, MiB, GiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A metric with its unit; `defect` is what is wrong with its definition, as far as is known."""

    name: str
    unit: str
    better: Better
    defect: str | None = None

    @property
    def heading(self) -> str:
        """Name, unit and which way is better."""
        unit = f" [{self.unit}]" if self.unit and self.unit != BYTES else ""
        return f"{self.name}{unit} {self.arrow}"

    @property
    def arrow(self) -> str:
        """Which way is better."""
        return "↑" if self.better == "higher" else "↓"

    def of(self, submission: Submission) -> Reading | None:
        """What a submission has in this column: nothing where its value has another unit."""
        reading = submission.readings.get(self.name)
        return reading if reading is not None and reading.unit == self.unit else None

    def value(self, submission: Submission) -> float | None:
        """Its value that nothing speaks against."""
        reading = self.of(submission)
        return reading.value if reading is not None and reading.doubt is None else None


@dataclass(frozen=True, slots=True)
class Ranked:
    """A submission in its group; `rank` is None where it has no value with an interval.

    It is one more than how many are shown to be better, so that those that nothing tells apart
    share one. Without an interval nothing is shown: such a submission stands where its value is.
    """

    rank: int | None
    submission: Submission


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Submissions that did the same work, best first; `by` is None where nothing ranks them."""

    work: Work
    by: Column | None
    ranked: tuple[Ranked, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaderboard:
    """All groups, the largest first, and every column that any of them has."""

    groups: tuple[Group, ...]
    columns: tuple[Column, ...]
    notes: tuple[str, ...] = ()
    """What was left out, and why."""


def leaderboard(
    submissions: Sequence[Submission],
    by: str | None,
    metrics: Sequence[str],
    notes: Sequence[str] = (),
) -> Leaderboard:
    """Group and rank; `metrics` are the columns to show, all of them where it is empty.

    Raises `StudyError` for a metric that no submission has.
    """
    _check_names((*([by] if by is not None else []), *metrics), submissions)
    columns = _columns(submissions)
    together: dict[tuple[object, ...], list[Submission]] = defaultdict(list)
    for each in submissions:
        together[each.work.key].append(each)
    groups = [_group(found, columns, by) for found in together.values()]
    ranked_by = {group.by.name for group in groups if group.by is not None}
    shown = [each for each in columns if not metrics or each.name in {*metrics, *ranked_by}]
    order = {name: place for place, name in enumerate(metrics)}
    return Leaderboard(
        groups=tuple(sorted(groups, key=lambda group: (-len(group.ranked), group.work.title))),
        columns=tuple(sorted(shown, key=lambda each: order.get(each.name, len(order)))),
        notes=tuple(notes),
    )


def _check_names(names: Iterable[str], submissions: Sequence[Submission]) -> None:
    known = {name for each in submissions for name in each.readings}
    for name in names:
        if name not in known:
            raise StudyError(f"no submission has metric {name!r}; {suggestion(name, list(known))}")


def _columns(submissions: Iterable[Submission]) -> list[Column]:
    """Every metric in each of its units that has a value anywhere, the most told first."""
    count: Counter[tuple[str, str, Better]] = Counter()
    for submission in submissions:
        for name, reading in submission.readings.items():
            if reading.value is not None:
                count[name, reading.unit, reading.better] += 1
    first = {name: place for place, name in enumerate(FIRST)}
    order = sorted(count, key=lambda key: (first.get(key[0], len(first)), -count[key], key))
    seen: dict[tuple[str, str], Column] = {}
    for name, unit, better in order:
        column = Column(name=name, unit=unit, better=better, defect=defect_of(name))
        seen.setdefault((name, unit), column)
    return list(seen.values())


def _group(found: Sequence[Submission], columns: Sequence[Column], by: str | None) -> Group:
    column = _ranking_column(found, columns, by)
    work = _named(found)
    if column is None:
        ranked = [Ranked(None, each) for each in sorted(found, key=lambda each: each.name)]
        return Group(work=work, by=None, ranked=tuple(ranked))
    sign = 1 if column.better == "lower" else -1
    costs = {
        place: sign * value
        for place, each in enumerate(found)
        if (value := column.value(each)) is not None
    }
    ends = {place: _cost_ends(column, found[place], sign) for place in costs}
    places = _ranks(ends)
    ranks = _ranks({place: each for place, each in ends.items() if _is_sure(column, found[place])})
    order = sorted(costs, key=lambda place: (places[place], costs[place], found[place].name))
    rest = sorted((n for n in range(len(found)) if n not in costs), key=lambda n: found[n].name)
    ranked = [Ranked(ranks.get(place), found[place]) for place in order]
    return Group(
        work=work, by=column, ranked=(*ranked, *(Ranked(None, found[place]) for place in rest))
    )


def _ranks(ends: Mapping[int, tuple[float, float]]) -> dict[int, int]:
    """One more than how many end before each begins."""
    worst = sorted(worst for _, worst in ends.values())
    return {place: 1 + bisect_left(worst, best) for place, (best, _) in ends.items()}


def _is_sure(column: Column, submission: Submission) -> bool:
    reading = column.of(submission)
    return reading is not None and reading.has_interval


def _cost_ends(column: Column, submission: Submission, sign: int) -> tuple[float, float]:
    """The best and the worst that a submission may be, where lower is better."""
    reading = column.of(submission)
    low, high = (reading.ends if reading is not None else None) or (0.0, 0.0)
    return (low, high) if sign == 1 else (-high, -low)


def _ranking_column(
    found: Sequence[Submission], columns: Sequence[Column], by: str | None
) -> Column | None:
    """The column asked for, or the usual one that most submissions of the group have."""
    names = (by,) if by is not None else USUAL
    fitting = [column for column in columns if column.name in names]
    counts = {c: sum(c.value(each) is not None for each in found) for c in fitting}
    best = max(fitting, key=lambda c: (counts[c], -names.index(c.name)), default=None)
    return best if best is not None and counts[best] else None


def _named(found: Sequence[Submission]) -> Work:
    """The work of a group, under its standard name where all that tell one agree."""
    standards = {each.work.standard for each in found if each.work.standard is not None}
    told = [each.work for each in found if each.work.standard in standards] if standards else []
    return told[0] if len(standards) == 1 else found[0].work
