"""The tables, highlights and JSON of a benchmark analysis."""

import csv
import io
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Final, TypeAlias

from evaluator.timing.bench_csv import ABSENT, BUS_BANDWIDTH
from search.collective_bench.results import DevicePoint, Results, device_point
from search.collective_bench.verdicts import (
    Analysis,
    Limits,
    Names,
    PairVerdicts,
    PointVerdict,
    Standing,
)
from search.views.terminal import TerminalColumn, number_column, table_lines

SIZE: Final = "SendMsgSize(B)"
CSV_ONLY: Final = (SIZE, "ReduceOp")
"""Columns that the text has in other words."""
SHARED: Final = ("DType", "DispatchMode", "SyncInterval")
"""Columns that text has only where rows differ in them."""
ANY_WIDTH: Final = 100_000
UNITS: Final = ("B", "KB", "MB", "GB", "TB")


class Mark(Enum):
    """A cell that holds no value."""

    BASELINE = "baseline"
    """The row is what others are compared with."""
    BLANK = ""


Cell: TypeAlias = str | int | float | Mark | None
"""None is a value that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Columns by name, and rows with a cell for each."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def csv_text(table: Table) -> str:
    """The table with every digit; marks are empty cells."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([_plain(cell) for cell in row] for row in table.rows)
    return text.getvalue()


def text_lines(table: Table) -> list[str]:
    """The table as text: what all rows have in common is above it, once."""
    cells: dict[str, Sequence[Cell]] = {
        name: [row[place] for row in table.rows]
        for place, name in enumerate(table.columns)
        if name not in CSV_ONLY
    }
    common = {
        name: cells.pop(name)[0]
        for name in SHARED
        if name in cells and table.rows and len(set(cells[name])) == 1
    }
    above = [", ".join(f"{name} {value}" for name, value in common.items()), ""] if common else []
    return [*above, *table_lines([_column(*each) for each in cells.items()], ANY_WIDTH)]


def size_words(size_bytes: int) -> str:
    """A size in powers of 1024."""
    size, unit = float(size_bytes), UNITS[0]
    for unit in UNITS:
        if size < 1024 or unit == UNITS[-1]:
            break
        size /= 1024
    return f"{size:.4g}{unit}"


def _plain(cell: Cell) -> str | int | float:
    match cell:
        case None:
            return ABSENT
        case Mark():
            return ""
        case _:
            return cell


def _column(name: str, cells: Sequence[Cell]) -> TerminalColumn:
    texts = [_words(name, cell) for cell in cells]
    if any(isinstance(cell, int | float) for cell in cells) or name.endswith(")"):
        return number_column(name, texts)
    return TerminalColumn(heading=name, cells=texts)


def _words(name: str, cell: Cell) -> str:
    match cell:
        case None:
            return ABSENT
        case Mark():
            return cell.value
        case float():
            # One decimal of GB/s would hide everything that small messages reach.
            return f"{cell:.3g}" if name == BUS_BANDWIDTH and cell < 100 else f"{cell:z.1f}"
        case _:
            return str(cell)


FIGURES: Final = ("LatAvg(us)", "LatMin(us)", "LatMax(us)", "BusBw(GB/s)")
SETTINGS: Final = ("ReduceOp", "DType", "DispatchMode", "SyncInterval")
SUMMARY: Final = (
    *("Collective", "NumRanks", "MsgSize", SIZE, *FIGURES),
    *("DeviceName", "Rows", *SETTINGS),
)
CHANGES: Final = ("LatChange(%)", "BwChange(%)")
VERDICT: Final = (
    *("Verdict", "Reason", "Evidence", "LatChangeLow(%)", "LatChangeHigh(%)", "Rounds"),
)
COMPARISON: Final = (
    *("Collective", "Adapter", "NumRanks", "MsgSize", SIZE),
    *(*FIGURES, *CHANGES, "DeviceName", *VERDICT, *SETTINGS),
)
VERSIONS: Final = ("TorchVersion", "CommBackend", "CommBackendVersion", "TorchCommsVersion")
HISTORY: Final = (
    *("Collective", "NumRanks", "MsgSize", SIZE, "Adapter"),
    *("LatAvg(us)", "BusBw(GB/s)", *VERSIONS, "DeviceName", *SETTINGS),
)


def summary(results: Results, names: Names) -> Table:
    """What was measured under one label."""
    return _table(SUMMARY, (_row(results, point, names) for point in results.rows))


def comparison(found: Analysis) -> Table:
    """Every point of every label, next to the baseline's."""
    names, pairs = found.names, {pair.label: pair for pair in found.pairs}
    rows = (
        _row(results, point, names, pair.points[point] if pair else None)
        for point in found.points()
        for results in sorted(found.results, key=lambda results: results.label)
        for pair in [pairs.get(results.label)]
        if point in results.rows
    )
    return _table(COMPARISON, rows)


def standing_table(found: Analysis, pair: PairVerdicts, standing: Standing) -> Table:
    """The points of one label that stand so against the baseline."""
    results, names = found.named(pair.label), found.names
    points = pair.standing(standing)
    return _table(COMPARISON, (_row(results, each, names, pair.points[each]) for each in points))


def history(found: Analysis) -> Table:
    """Each point over the labels, in the order that they were given in."""
    names = found.names
    versions = [{name: results.text(name) for name in VERSIONS} for results in found.results]
    rows = (
        {**_row(results, point, names), **software}
        for point in found.points()
        for results, software in zip(found.results, versions, strict=True)
        if point in results.rows
    )
    return _table(HISTORY, rows)


def _table(columns: tuple[str, ...], rows: Iterable[Mapping[str, Cell]]) -> Table:
    cells = (tuple(row.get(name, Mark.BLANK) for name in columns) for row in rows)
    return Table(columns=columns, rows=tuple(cells))


def _row(
    results: Results, point: DevicePoint, names: Names, verdict: PointVerdict | None = None
) -> Mapping[str, Cell]:
    """Cells of a point by column; without a verdict it is the baseline's."""
    figures = results.figures[point]
    judged: Mapping[str, Cell] = dict.fromkeys((*CHANGES, "Verdict"), Mark.BASELINE)
    if verdict is not None:
        judged = {
            "LatChange(%)": verdict.latency_change,
            "BwChange(%)": verdict.bandwidth_change,
            "Verdict": verdict.standing.value,
            "Reason": verdict.reason,
            "Evidence": verdict.evidence.value,
            "LatChangeLow(%)": verdict.latency_change_low,
            "LatChangeHigh(%)": verdict.latency_change_high,
            "Rounds": verdict.round_count,
        }
    return {
        "Collective": names[point.collective, point.operation],
        "Adapter": results.label,
        "NumRanks": point.rank_count,
        "MsgSize": size_words(point.size_bytes),
        SIZE: point.size_bytes,
        "LatAvg(us)": figures.latency_us,
        "LatMin(us)": figures.least_us,
        "LatMax(us)": figures.most_us,
        "BusBw(GB/s)": figures.bus_gb_per_s,
        "Rows": figures.row_count,
        "DeviceName": point.device_name,
        "ReduceOp": point.operation,
        "DType": point.dtype,
        "DispatchMode": point.dispatch_mode,
        "SyncInterval": point.sync_interval,
        **judged,
    }


COUNTED_STANDINGS: Final = (Standing.IMPROVEMENT, Standing.REGRESSION, Standing.NEUTRAL)
CATEGORIES: Final = ("improved", "regressed", "neutral")
COLUMNS: Final = (
    *("Collective", "Adapter", "Baseline"),
    *("ImprovedPoints", "RegressedPoints", "NeutralPoints", "TotalPoints"),
    *("Improved(%)", "Regressed(%)", "Neutral(%)"),
    *("AvgLatImp(%)", "AvgLatReg(%)", "AvgLatNeu(%)"),
    *("MedLatImp(%)", "MedLatReg(%)", "MedLatNeu(%)"),
)
ALL: Final = "ALL"
FACTS: Final = (
    *("CommAdapter", "CommBackend", "CommBackendVersion", "TorchVersion", "TorchCommsVersion"),
    *("DeviceType", "DeviceName", "Ranks", "DType", "DispatchMode", "SyncInterval"),
    *("WarmupIters", "MeasureIters"),
)


Statistics: TypeAlias = tuple[int, float | None, float | None, float | None]


def _statistics(verdicts: Iterable[PointVerdict]) -> list[Statistics]:
    """For each standing that counts: points, share, mean and median change of latency, in %."""
    changes: dict[Standing, list[float]] = {standing: [] for standing in COUNTED_STANDINGS}
    for each in verdicts:
        if each.standing in changes and each.latency_change is not None:
            changes[each.standing].append(each.latency_change)
    total = sum(map(len, changes.values()))
    return [
        (
            len(each),
            100 * len(each) / total if total else None,
            statistics.fmean(each) if each else None,
            statistics.median(each) if each else None,
        )
        for each in changes.values()
    ]


def highlights(found: Analysis, pair: PairVerdicts) -> Table:
    """A row for each collective, and one for all of them."""
    names = found.names
    by_name: dict[str, list[PointVerdict]] = {}
    for point, verdict in pair.points.items():
        by_name.setdefault(names[point.collective, point.operation], []).append(verdict)
    rows: list[tuple[Cell, ...]] = []
    for name, verdicts in [*by_name.items(), (ALL, list(pair.points.values()))]:
        counts, shares, means, medians = zip(*_statistics(verdicts), strict=True)
        cells = (*counts, sum(counts), *shares, *means, *medians)
        rows.append((name, pair.label, pair.baseline, *cells))
    return Table(columns=COLUMNS, rows=tuple(rows))


def highlights_lines(found: Analysis, pair: PairVerdicts) -> Iterator[str]:
    """What was compared, by which limits, and the result."""
    yield f"{pair.label} against {pair.baseline}"
    yield ""
    yield from _benchmark_lines([found.named(pair.label), found.named(pair.baseline)])
    yield ""
    yield from limit_lines(found.limits)
    yield ""
    categories = zip(CATEGORIES, _statistics(pair.points.values()), strict=True)
    yield from text_lines(
        Table(
            columns=("category", "points", "share(%)", "mean LatChange(%)", "median LatChange(%)"),
            rows=tuple((name, *cells) for name, cells in categories),
        )
    )
    yield ""
    yield from _reason_lines(pair)
    yield ""
    yield "by collective"
    yield from text_lines(highlights(found, pair))


def limit_lines(limits: Limits) -> Iterator[str]:
    """What counts as a difference, as text."""
    yield "LatChange is (baseline - own) / baseline, BwChange (own - baseline) / baseline:"
    yield "above 0 is better in both."
    yield f"regression: LatChange below -{limits.regression_percent:g} %"
    yield f"improvement: LatChange above {limits.improvement_percent:g} %"
    yield (
        f"decided by rounds that both sides share, by the {100 * (1 - limits.alpha):g} % interval "
        "of the change, all of which must be beyond"
    )
    yield (
        "corrected for the number of points (Holm): with no true difference anywhere, any is shown "
        f"in at most {100 * limits.alpha:g} % of analyses; each interval stands for its own point"
    )
    if limits.unreplicated:
        yield (
            "what was measured too seldom for that is judged by the bare change (Evidence: "
            "threshold only), which does not separate a difference from noise"
        )


def _benchmark_lines(sides: Sequence[Results]) -> Iterator[str]:
    rows = [(column, *(side.text(column) for side in sides)) for column in FACTS]
    rows.append(("sizes", *(_sizes(side) for side in sides)))
    heads = ("benchmark", *(side.label for side in sides))
    yield from text_lines(Table(columns=heads, rows=tuple(rows)))


def _sizes(side: Results) -> str:
    sizes = sorted({point.size_bytes for point in side.rows})
    if not sizes:
        return "none measured"
    return " to ".join(dict.fromkeys(size_words(size) for size in (sizes[0], sizes[-1])))


def _reason_lines(pair: PairVerdicts) -> Iterator[str]:
    found = Counter((each.standing, each.reason) for each in pair.points.values())
    for standing in Standing:
        reasons = [f"{count} {reason}" for (of, reason), count in found.items() if of is standing]
        if reasons:
            yield f"{standing}: {', '.join(reasons)}"
    if pair.missing:
        yield f"measured for {pair.baseline} only: {len(pair.missing)}"


def analysis_facts(found: Analysis) -> Mapping[str, object]:
    """Everything, as JSON takes it; what does not exist is null, changes are in percent."""
    return {
        "baseline": found.baseline.label if found.baseline else None,
        "thresholds": asdict(found.limits),
        "labels": [_label_facts(results) for results in found.results],
        "counts": {
            pair.label: {standing.value: count for standing, count in pair.counts.items()}
            for pair in found.pairs
        },
        "correction": "holm",
        "regression_count": found.regression_count,
        "undecided_count": found.open_count,
        "exit": found.exit_status,
        "points": [facts for pair in found.pairs for facts in _pair_facts(found, pair)],
        "baseline_only": {
            pair.label: [asdict(point) for point in pair.missing] for pair in found.pairs
        },
        "broken": {pair.label: [asdict(point) for point in pair.broken] for pair in found.pairs},
        "warnings": found.warnings,
        "caveats": found.caveats,
    }


def _label_facts(results: Results) -> Mapping[str, object]:
    return {
        "label": results.label,
        "folder": str(results.folder),
        "point_count": len(results.rows),
        "torch_version": results.text("TorchVersion"),
        "backend": results.text("CommBackend"),
        "backend_version": results.text("CommBackendVersion"),
        "not_measured": [
            {
                **asdict(device_point(row)),
                "status": row.status,
                "reason": row.columns.get("Reason"),
            }
            for row in results.left_out
        ],
    }


def _pair_facts(found: Analysis, pair: PairVerdicts) -> Iterator[Mapping[str, object]]:
    own = found.named(pair.label).figures
    base = found.named(pair.baseline).figures
    for point, verdict in pair.points.items():
        facts = asdict(verdict)
        yield {
            "label": pair.label,
            "baseline": pair.baseline,
            **asdict(point),
            "verdict": facts.pop("standing"),
            **facts,
            "latency_us": own[point].latency_us,
            "baseline_latency_us": base[point].latency_us if point in base else None,
        }
