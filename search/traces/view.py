"""What traces show: sections that the terminal prints, and the report that has all of them."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Final, TypeAlias

from evaluator.traces.analysis.breakdown import StepSplit
from evaluator.traces.analysis.difference import JobDifference, PartChange, TimeTaken
from evaluator.traces.analysis.operators import AttributionRow, Phase
from evaluator.traces.analysis.stragglers import imbalance
from records.errors import StoreError, StudyError
from records.store.rows import StudyRow
from records.store.store import Store
from records.trial import Measured, Trial
from search.traces.merge import clock_words
from search.traces.open import OpenTraces, small_traces
from search.traces.plots import bandwidth_chart, breakdown_chart, timeline_chart
from search.traces.tables import COLUMNS, Row, table_rows
from search.views.document import (
    Block,
    Cell,
    Chart,
    Document,
    Paragraph,
    Section,
    Table,
    TableRow,
    number,
)
from search.views.format import (
    ABSENT,
    format_bandwidth,
    format_count,
    format_decimal_bytes,
    format_duration,
    format_number,
    format_percent,
    format_time_change,
    one_line,
)

MOST_RANKS, MOST_SIZES = 16, 16
MOST_KERNELS: Final = 15
MOST_OPERATORS: Final = 8
MOST_ROWS: Final = 200
"""Of one table of the report; --json and data frames have the rest."""
TEXT_CHARS: Final = 4000
BAR_CELLS = 12
NO_SPLIT = "no step was profiled on every traced rank, so there is no breakdown"
NOT_ATTRIBUTED = (
    "the traces do not say which operators their work belongs to; those of PyTorch's profiler do, "
    "with activities=[CPU, CUDA], and those of Nsight Systems with NVTX ranges"
)
NOT_COMPARABLE = "one of the two has no step that was profiled on every rank; nothing to compare"
NONE_MATCHED = "no collective could be matched across ranks, so ranks cannot be compared"
PARTS: Final = (
    ("compute", "compute_s"),
    ("exposed", "exposed_communication_s"),
    ("copies", "exposed_copy_s"),
    ("fills", "fill_s"),
    ("idle", "idle_s"),
)
"""The parts that add up to a step."""
CAUSES: Final = (
    ("nothing was launched", "host_wait_s"),
    ("the host synchronised", "sync_s"),
    ("launched work waited", "kernel_wait_s"),
    ("unknown", "other_s"),
)


def _time(seconds: float | None) -> Cell:
    return number(seconds, format_duration(seconds))


def _share(share: float | None) -> Cell:
    return number(share, format_percent(share))


def _text(text: str) -> Paragraph:
    return Paragraph(text=text)


HAS_ALL = "; --json has all"
"""Ends a line that says what was left out, for readers at a terminal."""


def _left_out(count: int, words: str) -> list[Block]:
    return [_text(f"{count} {words}")] if count > 0 else []


def breakdown(found: OpenTraces) -> list[Block]:
    """Where the steps of each rank went, and why devices were idle."""
    split = found.evidence.split
    if split is None:
        return []
    shown = [(str(rank), mean) for rank, mean in split.by_rank[:MOST_RANKS]]
    table = Table(
        about="",
        headings=(
            *("rank", "step" if split.step_numbers else "work"),
            *(name for name, _ in PARTS),
            *("hidden", "█ ▒ ·"),
        ),
        rows=tuple(_parts_row(name, of) for name, of in (*shown, ("mean", split.mean))),
    )
    left_out = _left_out(len(split.by_rank) - len(shown), f"more ranks are in the mean{HAS_ALL}")
    return [table, *left_out, *map(_text, (*_sum_words(split.mean), *_idle_words(found)))]


def _parts_row(name: str, of: StepSplit) -> TableRow:
    parts = [getattr(of, part) for _, part in PARTS]
    shares = [part_s / of.window_s if of.window_s else None for part_s in parts]
    hidden = of.hidden_communication_s / of.window_s if of.window_s else None
    return TableRow.of(
        number(None, name), _time(of.window_s), *map(_share, shares), _share(hidden), bar(of)
    )


def bar(split: StepSplit) -> str:
    """A bar of compute, exposed communication and the rest of a step."""
    if not split.window_s:
        return ""
    compute = round(BAR_CELLS * split.compute_s / split.window_s)
    busy_s = split.compute_s + split.exposed_communication_s
    busy = round(BAR_CELLS * busy_s / split.window_s)
    return "█" * compute + "▒" * (busy - compute) + "·" * (BAR_CELLS - busy)


def _sum_words(mean: StepSplit) -> Iterator[str]:
    """The sum of the parts of a step, and what overlaps."""
    parts = ((name, getattr(mean, part)) for name, part in PARTS)
    added = " + ".join(f"{format_number(part_s * 1e3)} {name}" for name, part_s in parts if part_s)
    yield f"ms:     {format_number(mean.window_s * 1e3)} = {added or 0}"
    yield f"hidden: {format_duration(mean.hidden_communication_s)} of communication behind compute"
    if mean.pipeline_bubble_s is not None:
        bubble = format_duration(mean.pipeline_bubble_s)
        yield f"bubble: {bubble} of exposed communication waits for a neighbour"


def _idle_words(found: OpenTraces) -> Iterator[str]:
    """Why devices were idle, over all ranks and steps."""
    rows = table_rows(found, "idle")
    total_s = sum(_numbers(rows, "idle_s"))
    if total_s:
        shares = ((name, sum(_numbers(rows, cause)) / total_s) for name, cause in CAUSES)
        yield "idle:   " + ", ".join(f"{name} {format_percent(s)}" for name, s in shares if s)


def collectives(found: OpenTraces) -> list[Block]:
    """Collectives by kind, size and group with their bandwidths, and what a step sends."""
    instances = table_rows(found, "collectives")
    if not instances:
        return [_text("no collective that can be matched across ranks"), *_traffic(found)]
    alike: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in instances:
        alike[row["kind"], row["group_id"], row["bytes"]].append(row)
    groups = sorted(alike.values(), key=lambda rows: -sum(_numbers(rows, "time_s")))
    headings = ("collective", "ranks", "size", "count", "time", "on the bus", "waited", "group")
    table = Table(
        about="",
        headings=headings,
        rows=tuple(map(_size_row, groups[:MOST_SIZES])),
        yielding=frozenset({len(headings) - 1}),
    )
    left_out = _left_out(len(groups) - MOST_SIZES, f"more kinds and sizes{HAS_ALL}")
    note = "time and bandwidth are medians without waiting; waited is per call and rank"
    return [table, *left_out, _text(note), *_traffic(found)]


def _size_row(rows: Sequence[Row]) -> TableRow:
    first = rows[0]
    return TableRow.of(
        str(first["kind"]),
        number(None, str(first["group_size"] or ABSENT)),
        number(_number(first["bytes"]), format_decimal_bytes(_number(first["bytes"]))),
        number(len(rows)),
        _time(median(_numbers(rows, "time_s"))),
        number(None, _speed_words(rows)),
        _time(_mean_wait(rows)),
        str(first["group"]),
    )


def _mean_wait(rows: Sequence[Row]) -> float | None:
    """The wait per call; None if each call is in one rank's trace only."""
    shown = [row for row in rows if row["last_rank"] is not None]
    return sum(_numbers(shown, "wait_s")) / sum(_numbers(shown, "shown_count")) if shown else None


def _speed_words(rows: Sequence[Row]) -> str:
    """The median; a lower bound if the last rank may have no trace."""
    speeds = _numbers(rows, "bus_bytes_per_s")
    if not speeds:
        return ABSENT
    least = "≥ " if any(row["partial"] for row in rows) else ""
    return f"{least}{format_bandwidth(median(speeds))}"


def _traffic(found: OpenTraces) -> Iterator[Block]:
    for row in table_rows(found, "traffic")[:MOST_SIZES]:
        count, moved = row["calls_per_step"], _number(row["bytes_per_step"])
        amount = format_decimal_bytes(moved) if moved is not None else "an unknown number of bytes"
        group = row["group"] or "an unnamed group"
        yield _text(f"per step and rank: {amount} in {count:.4g} {row['kind']} of {group}")


def matching_caveats(found: OpenTraces) -> Iterator[str]:
    """Calls that are matched to none, and collectives that are not shown by all their ranks."""
    lacks = found.matches.unmatched()
    if lacks:
        reasons = ", ".join(f"{count} {lack.words}" for lack, count in lacks.items())
        yield f"{sum(lacks.values())} calls have no match on another rank: {reasons}"
    partial = found.matches.count - int(found.matches.complete.sum())
    if partial:
        yield (
            f"{partial} of {found.matches.count} collectives are not shown by all of their ranks: "
            "times may include waiting, bandwidths are lower bounds"
        )


def stragglers(found: OpenTraces) -> list[Block]:
    """Who waits for whom, the rank that the others wait for, and how unequal compute is."""
    waits, split = found.waits, found.evidence.split
    blocks: list[Block] = [_text(NONE_MATCHED)]
    if waits is not None:
        rows = sorted(
            table_rows(found, "stragglers"), key=lambda row: -(_number(row["caused_wait_s"]) or 0)
        )
        headings = ("rank", "others waited", "it waited", "came last", "by chance", "computes")
        table = Table(about="", headings=headings, rows=tuple(map(_wait_row, rows[:MOST_RANKS])))
        left_out = _left_out(len(rows) - MOST_RANKS, "more ranks with less waiting")
        note = _text("per step; waits in concurrent collectives add up")
        verdict = "no rank waited for another"
        if waits.straggler is not None:
            exposed = format_percent(waits.exposed_share)
            verdict = (
                f"straggler: rank {waits.straggler}; the others wait for it "
                f"{format_percent(waits.waiting_share)} of their steps, {exposed} exposed"
            )
        blocks = [table, *left_out, note, _text(verdict)]
    unequal = imbalance(split) if split is not None else None
    if unequal is not None:
        words = (
            f"compute: rank {unequal.busiest} takes {unequal.max_over_min:.3f} times the quickest "
            f"rank's time, {unequal.max_over_mean:.3f} times the mean"
        )
        blocks.append(_text(words))
    return blocks


def _wait_row(row: Row) -> TableRow:
    times, shares = ("caused_wait_s", "waited_s"), ("last_share", "chance_share")
    return TableRow.of(
        number(_number(row["rank"])),
        *(_time(_number(row[name])) for name in times),
        *(_share(_number(row[name])) for name in shares),
        _time(_number(row["compute_s"])),
    )


def kernels(found: OpenTraces, top: int = MOST_KERNELS) -> list[Block]:
    """The longest kernels, and how work is launched."""
    rows = found.kernels.job.rows
    table = Table(
        about="",
        headings=("share", "total", "count", "mean", "what", "name"),
        rows=tuple(
            TableRow.of(
                _share(row.share),
                _time(row.total_s),
                number(row.count, str(row.count)),
                _time(row.mean_s),
                row.activity.name.lower()[:4],
                row.name.removeprefix("void "),
            )
            for row in rows[:top]
        ),
        yielding=frozenset({5}),
    )
    rest = format_percent(sum(row.share for row in rows[top:]))
    left_out = _left_out(len(rows) - top, f"more names with {rest} of the time{HAS_ALL}")
    return [table, *left_out, *map(_text, _launch_words(found))]


def operators(found: OpenTraces, top: int = MOST_OPERATORS) -> list[Block]:
    """Which phases, operators, modules and named ranges take the time."""
    job = found.attribution
    if job is None or not (job.operators or job.modules or job.ranges):
        return [_text(NOT_ATTRIBUTED)]
    trains = sum(row.name is not None for row in job.phases) > 1
    tables = (
        ("phase", job.phases if trains else (), {"count": _count}),
        ("operator", job.operators, _OPERATOR_COLUMNS),
        ("module", job.modules, _MODULE_COLUMNS),
        ("range", job.ranges, {"count": _count}),
    )
    return [
        block
        for what, rows, more in tables
        if rows
        for block in _attribution_table(what, rows, more, top)
    ]


_More: TypeAlias = Mapping[str, Callable[[AttributionRow], Cell]]
_MODULE_CHARS = 32


def _count(row: AttributionRow) -> Cell:
    return number(row.count, str(row.count))


def _scaled(value: float | None, unit: float) -> Cell:
    return number(value, ABSENT if value is None else format_number(value / unit))


def _roofline(row: AttributionRow) -> Cell:
    share = row.roofline_share
    return number(share, ABSENT if share is None else f"{format_percent(share)} {row.bound}")


_OPERATOR_COLUMNS: Final[_More] = {
    "count": _count,
    "TFLOP/s": lambda row: _scaled(row.flops_per_s, 1e12),
    "GB/s": lambda row: _scaled(row.bytes_per_s, 1e9),
    "of roofline": _roofline,
}
_MODULE_COLUMNS: Final[_More] = {
    "forward": lambda row: _time(row.phase_s[Phase.FORWARD] or None),
    "backward": lambda row: _time(row.phase_s[Phase.BACKWARD] or None),
    "recomputed": lambda row: _time(row.phase_s[Phase.RECOMPUTATION] or None),
}


def _attribution_table(
    what: str, rows: Sequence[AttributionRow], more: _More, top: int
) -> list[Block]:
    shown = rows[:top]
    columns = {heading: [of(row) for row in shown] for heading, of in more.items()}
    known = {
        heading: cells
        for heading, cells in columns.items()
        if any(cell.value is not None for cell in cells)
    }
    table = Table(
        about="",
        headings=("share", "total", *known, what),
        rows=tuple(
            TableRow.of(_share(row.share), _time(row.total_s), *cells, _attribution_name(row, what))
            for row, *cells in zip(shown, *known.values(), strict=True)
        ),
        yielding=frozenset({2 + len(known)}),
    )
    rest = format_percent(sum(row.share for row in rows[top:]))
    return [
        table,
        *_left_out(len(rows) - top, f"more rows with {rest} of the time{HAS_ALL}"),
    ]


def _attribution_name(row: AttributionRow, what: str) -> str:
    """Return the name; of a long module path, only its last two parts."""
    if row.name is None:
        return f"(no {what} known)"
    if what != "module" or len(row.name) <= _MODULE_CHARS:
        return row.name
    return ".../" + "/".join(row.name.split("/")[-2:])


def _launch_words(found: OpenTraces) -> Iterator[str]:
    if found.evidence.launches is None:
        return
    job = found.evidence.launches.job
    per_step = f", {job.launches_per_step:.0f} per step" if job.launches_per_step else ""
    median_s, p90_s = format_duration(job.delay_median_s), format_duration(job.delay_p90_s)
    yield f"launches: {job.launch_count}{per_step}, {format_duration(job.call_median_s)} each"
    yield f"work starts {median_s} after its launch, 90 % within {p90_s}"
    if job.short_kernel_share is not None:
        yield f"kernels shorter than 10 us: {format_percent(job.short_kernel_share)}"


def changes(found: JobDifference, top: int) -> Iterator[list[Block]]:
    """What differs between two jobs: parts of the step, kernels and collectives."""
    named = (
        ("part", found.parts, len(found.parts)),
        ("kernel", found.kernels, top),
        ("collective, with waiting", found.collectives, top),
    )
    for heading, all_changes, most in named:
        moved = [each for each in all_changes if each.change_s] or all_changes[:1]
        if moved:
            rest = format_time_change(sum(each.change_s for each in moved[most:]))
            table = _change_table(heading, moved[:most])
            more = len(moved) - most
            words = f"{rest} by {more} more{HAS_ALL}"
            yield [table, *([_text(words)] if more > 0 else [])]


def _change_table(heading: str, shown: Sequence[PartChange]) -> Table:
    rows = (
        TableRow.of(
            number(each.change_s, format_time_change(each.change_s)),
            _taken(each.before),
            _taken(each.after),
            number(None, _counts(each)),
            each.name.replace("_", " ") if heading == "part" else each.name,
        )
        for each in shown
    )
    headings = ("change", "before", "after", "count", heading)
    return Table(about="", headings=headings, rows=tuple(rows), yielding=frozenset({4})).dense


def _taken(taken: TimeTaken | None) -> Cell:
    return _time(None if taken is None else taken.time_s)


def _counts(each: PartChange) -> str:
    """The counts before and after, or one if equal; empty where nothing is counted."""
    if each.before is not None and each.before.count is None:
        return ""
    counts = [
        ABSENT if taken is None or taken.count is None else format_number(taken.count)
        for taken in (each.before, each.after)
    ]
    return counts[0] if counts[0] == counts[1] else " > ".join(counts)


def _numbers(rows: Sequence[Row], name: str) -> list[float]:
    values = (_number(row[name]) for row in rows)
    return [value for value in values if value is not None]


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def trace_report(found: OpenTraces) -> Document:
    """All sections with charts and whole tables."""
    metrics, split, name = table_rows(found, "metrics"), found.evidence.split, found.name
    present = [row for row in metrics if row["value"] is not None]
    missing = [row for row in metrics if row["value"] is None]
    caveats = (*(split.caveats if split else ()), *found.traces.caveats)
    parts = _plot(lambda: breakdown_chart(split, name))
    timeline = _plot(lambda: timeline_chart(found.traces, name))
    bandwidth = _plot(lambda: bandwidth_chart(table_rows(found, "collectives"), name))
    sections: dict[str, list[Block]] = {
        "Caveats": [_text(each) for each in caveats],
        "Metrics": [_whole(present, ("name", "label", "value", "unit", "better"))],
        "Metrics without a value": [_whole(missing, ("name", "absent"))],
        "Breakdown of the mean step": [parts, *breakdown(found), _all(found, "breakdown")],
        "Steps": [timeline, _all(found, "steps")],
        "Why devices were idle": [_all(found, "idle")],
        "Traffic of a step": [bandwidth, *collectives(found), _all(found, "traffic")],
        "Who waits for whom": [*stragglers(found), _all(found, "stragglers")],
        "Kernels": [*kernels(found), _all(found, "kernels")],
        "Operators, modules and ranges": operators(found),
        "Launches": [_all(found, "launches")],
        "Ranks": [_all(found, "ranks")],
    }
    return Document(
        title=name,
        lead="",
        sections=tuple(
            Section(
                name=heading.lower().replace(" ", "-"),
                heading=heading,
                lead="",
                blocks=tuple(blocks),
            )
            for heading, blocks in sections.items()
            if blocks
        ),
    )


def _all(found: OpenTraces, table: str) -> Block:
    return _whole(table_rows(found, table), tuple(COLUMNS[table]))


def _whole(rows: Sequence[Row], columns: tuple[str, ...]) -> Block:
    """The first rows with all of these columns."""
    if not rows:
        return _text("nothing")
    left_out = len(rows) - MOST_ROWS
    return Table(
        about=f"{format_count(left_out, 'more row')} left out" if left_out > 0 else "",
        headings=columns,
        rows=tuple(
            TableRow.of(*(_plain_cell(row[name]) for name in columns)) for row in rows[:MOST_ROWS]
        ),
    )


def _plain_cell(value: object) -> Cell | str:
    """A number with four digits, a name without control characters, nothing where it is missing."""
    match value:
        case None:
            return ""
        case bool() | str() | list():
            return one_line(str(value), TEXT_CHARS)
        case int() | float():
            return number(value, str(value) if isinstance(value, int) else format_number(value))
        case _:
            return str(value)


def trial_timeline(row: StudyRow, trial: Trial, records: Store) -> list[Block]:
    """What each rank did in one step of a trial, or why not; nothing where none was profiled."""
    outcome = trial.outcome
    if not isinstance(outcome, Measured) or outcome.breakdown is None:
        return []
    try:
        traces = small_traces(row, trial, records).traces
        drawn = timeline_chart(traces, f"trial {trial.ordinal}")
    except (StudyError, StoreError) as error:
        return [_text(str(error))]
    about = f"One profiled step of trial {trial.ordinal}, rank by rank; {clock_words(traces)}"
    return [Chart(drawn=drawn, about=about)]


def _plot(draw: Callable[[], str]) -> Block:
    """The chart, or why there is none."""
    try:
        return Chart(drawn=draw(), about="")
    except StudyError as error:
        return _text(str(error))
