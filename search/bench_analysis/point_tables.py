"""Tables with a row for each point: summaries, comparison, regressions, improvements, history."""

from collections.abc import Iterable, Iterator
from typing import Final

from search.bench_analysis.analysis import Analysis, Names
from search.bench_analysis.points import DevicePoint, Figures
from search.bench_analysis.results import Results
from search.bench_analysis.tables import SIZE, Cell, Mark, Table, size_words
from search.bench_analysis.verdicts import PairVerdicts, PointVerdict, Standing

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
    rows = tuple(
        (
            *(_name(point, names), *_size(point), *_figures(results.figures[point])),
            *(point.device_name, results.figures[point].row_count, *_settings(point)),
        )
        for point in results.rows
    )
    return Table(columns=SUMMARY, rows=rows)


def comparison(found: Analysis) -> Table:
    """Every point of every label beside the baseline's."""
    return Table(columns=COMPARISON, rows=tuple(_comparison_rows(found)))


def standing_table(found: Analysis, pair: PairVerdicts, standing: Standing) -> Table:
    """The points of one label that stand so against the baseline."""
    results, names = found.named(pair.label), found.names
    rows = tuple(
        _comparison_row(results, point, names, pair.points[point])
        for point in pair.standing(standing)
    )
    return Table(columns=COMPARISON, rows=rows)


def history(found: Analysis) -> Table:
    """Each point over the labels, in the order that they were given in."""
    names = found.names
    rows = tuple(
        (
            *(_name(point, names), *_size(point), results.label),
            *(results.figures[point].latency_us, results.figures[point].bus_gb_per_s),
            *(results.told(column) for column in VERSIONS),
            *(point.device_name, *_settings(point)),
        )
        for point in found.points()
        for results in found.results
        if point in results.rows
    )
    return Table(columns=HISTORY, rows=rows)


def _comparison_rows(found: Analysis) -> Iterator[tuple[Cell, ...]]:
    names = found.names
    pairs = {pair.label: pair for pair in found.pairs}
    by_label = sorted(found.results, key=lambda results: results.label)
    for point in found.points():
        for results in by_label:
            if point in results.rows:
                pair = pairs.get(results.label)
                verdict = pair.points[point] if pair else None
                yield _comparison_row(results, point, names, verdict)


def _comparison_row(
    results: Results, point: DevicePoint, names: Names, verdict: PointVerdict | None
) -> tuple[Cell, ...]:
    """A row of a point; without a verdict it is the baseline's."""
    cells: Iterable[Cell]
    if verdict is None:
        changes: tuple[Cell, ...] = (Mark.BASELINE, Mark.BASELINE)
        cells = (Mark.BASELINE, *[Mark.BLANK] * (len(VERDICT) - 1))
    else:
        changes = (verdict.latency_change, verdict.bandwidth_change)
        cells = (
            *(verdict.standing.value, verdict.reason, verdict.evidence.value),
            *(verdict.low, verdict.high, verdict.round_count),
        )
    ranks, *size = _size(point)
    return (
        *(_name(point, names), results.label, ranks, *size, *_figures(results.figures[point])),
        *(*changes, point.device_name, *cells, *_settings(point)),
    )


def _name(point: DevicePoint, names: Names) -> str:
    return names[point.point.collective, point.point.operation]


def _size(point: DevicePoint) -> tuple[Cell, ...]:
    of = point.point
    return (of.rank_count, size_words(of.size_bytes), of.size_bytes)


def _figures(figures: Figures) -> tuple[Cell, ...]:
    return (figures.latency_us, figures.least_us, figures.most_us, figures.bus_gb_per_s)


def _settings(point: DevicePoint) -> tuple[Cell, ...]:
    of = point.point
    return (of.operation, of.dtype, of.dispatch_mode, of.sync_interval)
