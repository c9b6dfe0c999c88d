"""Analyse folders of benchmark results against a baseline, and write a table, charts and JSON."""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from itertools import cycle
from statistics import median
from typing import Final, TypeAlias

from evaluator.timing.bench_csv import ABSENT
from records.errors import StoreError, StudyError
from search.collective_bench.results import (
    DevicePoint,
    Figures,
    LabelledFolder,
    Results,
    device_point,
    labelled_folders,
    read_results,
    size_words,
)
from search.collective_bench.verdicts import (
    Analysis,
    AnalysisOptions,
    Limits,
    PairVerdicts,
    PointVerdict,
    Standing,
    judge_pairs,
)
from search.views.charts import TONES, Panel, Point, Series, xy_chart
from search.views.document import Column, Table, number_column
from search.views.format import format_count, format_number, one_line
from search.views.study import USELESS_RATIO
from search.views.svg import ChartAxis, Shape, standalone

Value: TypeAlias = str | int | float | None
"""None is a value that does not exist."""
BASELINE: Final = "baseline"
VERSIONS: Final = ("TorchVersion", "CommBackend", "CommBackendVersion", "TorchCommsVersion")


def points_csv(found: Analysis) -> str:
    """Every point of every label with every digit, next to the baseline's."""
    pairs = {pair.own.label: pair for pair in found.pairs}
    versions = {each.label: {n: each.text(n) for n in VERSIONS} for each in found.results}
    rows = [
        {**_row(results, point), **_judged(pairs.get(results.label), point), **software}
        for point in found.points()
        for results in found.results
        for software in [versions[results.label]]
        if point in results.rows
    ]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows[0])
    for row in rows:
        writer.writerow([ABSENT if value is None else value for value in row.values()])
    return text.getvalue()


def _row(results: Results, point: DevicePoint) -> Mapping[str, Value]:
    figures = results.figures[point]
    return {
        "Collective": point.collective,
        "ReduceOp": point.operation,
        "Adapter": results.label,
        "NumRanks": point.rank_count,
        "SendMsgSize(B)": point.size_bytes,
        "LatAvg(us)": figures.latency_us,
        "LatMin(us)": figures.least_us,
        "LatMax(us)": figures.most_us,
        "BusBw(GB/s)": figures.bus_gb_per_s,
        "Rows": figures.row_count,
        "DeviceName": point.device_name,
        "DType": point.dtype,
        "DispatchMode": point.dispatch_mode,
        "SyncInterval": point.sync_interval,
    }


def _judged(pair: PairVerdicts | None, point: DevicePoint) -> Mapping[str, Value]:
    """How a point stands to the baseline's; without a pair it is the baseline's, or alone."""
    verdict = (
        PointVerdict(standing=Standing.ABSENT, reason="") if pair is None else pair.points[point]
    )
    return {
        "LatChange(%)": verdict.latency_change,
        "LatChangeLow(%)": verdict.latency_change_low,
        "LatChangeHigh(%)": verdict.latency_change_high,
        "BwChange(%)": verdict.bandwidth_change,
        "Verdict": BASELINE if pair is None else verdict.standing.value,
        "Reason": verdict.reason,
        "Rounds": verdict.round_count,
    }


def label_table(results: Results) -> Table:
    """What was measured under one label."""
    points = list(results.rows)
    figures = [results.figures[each] for each in points]
    return _table(
        points,
        number_column("LatAvg(us)", [_short(each.latency_us) for each in figures]),
        number_column("LatMin(us)", [_short(each.least_us) for each in figures]),
        number_column("LatMax(us)", [_short(each.most_us) for each in figures]),
        number_column("BusBw(GB/s)", [_short(each.bus_gb_per_s) for each in figures]),
    )


def differing_table(pair: PairVerdicts) -> Table:
    """The points that regressed or improved, the worst first; changes above 0 are better."""
    differing = [
        (point, verdict)
        for point, verdict in pair.points.items()
        if verdict.standing in (Standing.REGRESSION, Standing.IMPROVEMENT)
    ]
    differing.sort(key=lambda each: each[1].latency_change or 0.0)
    points, verdicts = [point for point, _ in differing], [verdict for _, verdict in differing]
    ends = [(_short(x.latency_change_low), _short(x.latency_change_high)) for x in verdicts]
    return _table(
        points,
        *(
            number_column(side.label, [_short(side.figures[each].latency_us) for each in points])
            for side in (pair.base, pair.own)
        ),
        number_column("LatChange(%)", [_short(each.latency_change) for each in verdicts]),
        Column(heading="interval", cells=[f"{low} to {high}" for low, high in ends]),
        Column(heading="verdict", cells=[each.standing for each in verdicts]),
    )


def _table(points: Sequence[DevicePoint], *columns: Column) -> Table:
    """A row for each point; what all points have in common is above them, once."""
    variants = [each.variant_words for each in points]
    several = len(set(variants)) > 1
    return Table.of(
        Column(heading="collective", cells=[each.name for each in points]),
        number_column("size", [size_words(each.size_bytes) for each in points]),
        *([Column(heading="variant", cells=variants, yielding=True)] if several else []),
        *columns,
        about="" if several else "".join(variants[:1]),
    )


def _short(value: float | None) -> str:
    return ABSENT if value is None else format_number(value)


def analysis_facts(found: Analysis) -> Mapping[str, object]:
    """Everything, as JSON takes it; what does not exist is null, changes are in percent."""
    return {
        "baseline": found.baseline.label if found.baseline else None,
        "thresholds": asdict(found.options.limits),
        "labels": [_label_facts(results) for results in found.results],
        "counts": {
            pair.own.label: {standing.value: count for standing, count in pair.counts.items()}
            for pair in found.pairs
        },
        "correction": "holm",
        "regression_count": found.regression_count,
        "undecided_count": found.open_count,
        "exit": found.exit_status,
        "points": [facts for pair in found.pairs for facts in _pair_facts(pair)],
        "baseline_only": {
            pair.own.label: [asdict(point) for point in pair.missing] for pair in found.pairs
        },
        "broken": {
            pair.own.label: [asdict(point) for point in pair.broken] for pair in found.pairs
        },
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


def _pair_facts(pair: PairVerdicts) -> Iterator[Mapping[str, object]]:
    own, base = pair.own.figures, pair.base.figures
    for point, verdict in pair.points.items():
        facts = asdict(verdict)
        yield {
            "label": pair.own.label,
            "baseline": pair.base.label,
            **asdict(point),
            "verdict": facts.pop("standing"),
            **facts,
            "latency_us": own[point].latency_us,
            "baseline_latency_us": base[point].latency_us if point in base else None,
        }


VERDICT: Final = "verdict.json"
POINTS: Final = "points.csv"


def write_files(found: Analysis) -> None:
    """Write table, charts and verdicts; the verdicts come last and stand for the whole.

    Raises `StoreError` for what cannot be written.
    """
    root = found.options.outdir
    try:
        root.mkdir(parents=True, exist_ok=True)
        (root / VERDICT).unlink(missing_ok=True)
        (root / POINTS).write_text(points_csv(found), encoding="utf-8", newline="")
        by_name: dict[str, list[DevicePoint]] = {}
        for point in found.points():
            by_name.setdefault(point.name, []).append(point)
        for name, points in by_name.items():
            found.options.doing(f"drawing {name}")
            for kind, drawn in collective_charts(found, points):
                (root / f"{name}_{kind}.svg").write_text(standalone(drawn), encoding="utf-8")
        facts = json.dumps(analysis_facts(found), indent=1, allow_nan=False)
        (root / VERDICT).write_text(f"{facts}\n", encoding="utf-8")
    except OSError as error:
        raise StoreError(
            f"cannot write {error.filename}: {error.strerror}; give another --outdir"
        ) from error


def analyze(options: AnalysisOptions) -> Analysis:
    """Write the files of an analysis and give what it found.

    Raises `StudyError` for what cannot be analysed as asked, also for a gate that would pass
    because nothing was compared, and `StoreError` for a folder that cannot be written.
    """
    folders = labelled_folders(options.folders)
    _check(options, folders)
    warnings: list[str] = []

    def warn(text: str) -> None:
        warnings.append(text)
        options.warn(text)

    results = read_results(folders, warn)
    baseline = _baseline(options.baseline, results)
    pairs: tuple[PairVerdicts, ...] = ()
    if baseline is not None:
        options.doing("comparing")
        others = [each for each in results if each is not baseline]
        pairs = judge_pairs(others, baseline, options.limits)
    found = Analysis(
        results=results,
        baseline=baseline,
        pairs=pairs,
        options=options,
        warnings=tuple(warnings),
        caveats=(
            *_caveats(pairs, options.limits),
            *(_sensitivity(pairs) if options.fail_on_regression else ()),
        ),
    )
    write_files(found)
    uncompared = [pair for pair in pairs if not pair.judged_count and not pair.broken]
    if options.fail_on_regression and uncompared:
        raise StudyError(f"--fail-on-regression: {next(_caveats(uncompared, options.limits))}")
    return found


def _check(options: AnalysisOptions, folders: Sequence[LabelledFolder]) -> None:
    labels = [folder.label for folder in folders]
    if options.baseline is not None and options.baseline not in labels:
        close = get_close_matches(options.baseline, labels, n=1)
        hint = f"did you mean {close[0]}?" if close else f"give one of {', '.join(labels)}"
        raise StudyError(f"--baseline {options.baseline} is not a label of a --dir; {hint}")
    if options.allow_undecided and not options.fail_on_regression:
        raise StudyError("--allow-undecided is for a gate; add --fail-on-regression")
    if options.fail_on_regression and options.baseline is None:
        raise StudyError("--fail-on-regression needs verdicts; add --baseline LABEL")


def _baseline(label: str | None, results: Sequence[Results]) -> Results | None:
    """The results that others are compared with; a baseline alone would pass for a good end."""
    if label is None:
        return None
    found = next((each for each in results if each.label == label), None)
    if found is None:
        raise StudyError(f"the baseline {label} has no results; give it a folder that has some")
    if len(results) == 1:
        raise StudyError(
            f"nothing but the baseline {label} has results; give another --dir to compare with it"
        )
    return found


def _sensitivity(pairs: Sequence[PairVerdicts]) -> Iterator[str]:
    """What size of regression a gate could have shown, so that passing is not read as proof."""
    for pair in pairs:
        known = [each.detectable_percent for each in pair.points.values()]
        sizes = sorted(size for size in known if size is not None)
        if sizes:
            half, every = slowdown_words(median(sizes)), slowdown_words(sizes[-1])
            yield (
                f"{pair.own.label}: these rounds show a slowdown of {half} at half of the points "
                f"and of {every} at all {len(sizes)} judged by rounds, in four cases of five"
            )
        passed = pair.largest_slowdown_percent(undecided=False)
        if passed is not None and passed > 0:
            yield (
                f"{pair.own.label}: points that pass may be up to {slowdown_words(passed)} slower"
            )


def undecided_words(found: Analysis) -> str:
    """Why a gate cannot pass, and what would help."""
    ends = [pair.largest_slowdown_percent(undecided=True) for pair in found.pairs]
    worst = max((end for end in ends if end is not None), default=None)
    hidden = "" if worst is None else f" of up to {slowdown_words(worst)}"
    excluded = slowdown_words(found.options.limits.passing_percent)
    return (
        f"{format_count(found.open_count, 'point')} may hide a regression{hidden}, so "
        "--fail-on-regression fails (exit code 5): the interval of a point must exclude "
        f"{excluded}, twice the threshold; measure both sides interleaved in more rounds "
        "(cclsearch bench collectives --rounds 8), give a larger --threshold, or add "
        "--allow-undecided"
    )


def slowdown_words(percent: float) -> str:
    """A slowdown in percent, or as a factor where percent are hard to read."""
    if percent <= 100:
        return f"{percent:.3g} %"
    ratio = 1 + percent / 100
    return f"{ratio:.1f}x" if ratio <= USELESS_RATIO else f"over {USELESS_RATIO:g}x"


def _caveats(pairs: Sequence[PairVerdicts], limits: Limits) -> Iterator[str]:
    for pair in pairs:
        if pair.broken:
            yield (
                f"{pair.own.label} failed at {len(pair.broken)} points that {pair.base.label} was "
                "measured at; see not_measured in verdict.json"
            )
        if pair.unmeasured and pair.judged_count:
            yield (
                f"{pair.own.label} has no row at {len(pair.unmeasured)} of the points that "
                f"{pair.base.label} was measured at, so they are undecided; see baseline_only in "
                "verdict.json"
            )
        if not pair.judged_count:
            yield (
                f"{pair.own.label} and {pair.base.label} have no point in common, so nothing was "
                "compared; give results of the same collectives, sizes, ranks and devices"
            )
        elif pair.too_seldom_count:
            yield (
                f"{pair.too_seldom_count} of {pair.judged_count} points of {pair.own.label} were "
                "measured too seldom to decide; measure it and the baseline in turns, "
                f"{limits.slower.min_rounds} rounds or more"
            )


TITLE_CHARS: Final = 110
LEAST_DRAWN: Final = 1e-12
MOST_DRAWN: Final = 1e15
"""What is beyond is not a result, and more than an axis holds."""
MARKS: Final[Mapping[Standing, tuple[str, Shape]]] = {
    Standing.REGRESSION: ("failure", "down"),
    Standing.IMPROVEMENT: ("best", "up"),
}


@dataclass(frozen=True, slots=True)
class Quantity:
    """Latency or bus bandwidth, drawn against the message size."""

    name: str
    words: str
    axis: ChartAxis
    unit: str
    is_latency: bool

    def of(self, results: Results, points: Sequence[DevicePoint]) -> dict[DevicePoint, float]:
        """What a side reached at each point that has a value that a logarithmic axis shows."""
        at = {each: results.figures[each] for each in points if each in results.figures}
        values = {
            each: f.latency_us if self.is_latency else f.bus_gb_per_s for each, f in at.items()
        }
        return {each: drawn for each, value in values.items() if (drawn := _drawable(value))}


QUANTITIES: Final = (
    Quantity(
        "latency", "latency", ChartAxis(label="LatAvg, us", kind="log"), "us", is_latency=True
    ),
    Quantity(
        "busbw",
        "bus bandwidth",
        ChartAxis(label="BusBw, GB/s", kind="zero"),
        "GB/s",
        is_latency=False,
    ),
)


def collective_charts(found: Analysis, points: Sequence[DevicePoint]) -> Iterator[tuple[str, str]]:
    """Charts of one collective over all labels, each with the end of its file's name."""
    for quantity in QUANTITIES:
        by_label = [quantity.of(side, points) for side in found.results]
        drawn = [each for each in points if any(each in side for side in by_label)]
        panels = []
        for variant in dict.fromkeys(point.variant for point in drawn):
            here = [each for each in drawn if each.variant == variant]
            words = one_line(variant.variant_words, TITLE_CHARS)
            panels.append(replace(_panel(found, quantity, here), heading=words))
        if panels:
            title = f"{points[0].name}: {quantity.words}"
            panels[0] = replace(panels[0], heading=f"{title}; {panels[0].heading}")
            yield quantity.name, xy_chart(*panels, title=title)


def _panel(found: Analysis, quantity: Quantity, points: Sequence[DevicePoint]) -> Panel:
    """A curve for each label, with marks where it regressed or improved."""
    kinds = cycle(f"tone{number}" for number in range(TONES))
    series = list[Series]()
    for side, kind in zip(found.results, kinds, strict=False):
        series += _curve(side, quantity, points, kind)
    for pair in found.pairs:
        series += _marked(pair, quantity.of(pair.own, points), quantity.unit)
    return Panel(series=series, x=_size_axis(points), y=quantity.axis)


def _size_axis(points: Sequence[DevicePoint]) -> ChartAxis:
    """Message sizes, by their logarithm where they have one."""
    sizes = sorted({each.size_bytes for each in points})
    return ChartAxis(
        label="message size, bytes (powers of 1024)",
        kind="log" if sizes[0] > 0 else "linear",
        ticks=tuple((float(size), size_words(size)) for size in sizes),
    )


def _curve(
    side: Results, quantity: Quantity, points: Sequence[DevicePoint], kind: str
) -> Iterator[Series]:
    at = quantity.of(side, points)
    reached = [
        Point(
            x=each.size_bytes,
            y=value,
            y_ends=_range(side.figures[each]) if quantity.is_latency else None,
            tip=f"{side.label}, {size_words(each.size_bytes)}: "
            f"{format_number(value)} {quantity.unit}",
        )
        for each, value in at.items()
    ]
    if quantity.is_latency and len(reached) > 1:
        name = f"{side.label}, min to max"
        yield Series(name=name, kind=kind, points=reached, shape=None, path="band")
        reached = [replace(each, y_ends=None) for each in reached]
    yield Series(name=side.label, kind=kind, points=reached, path="line")


def _range(figures: Figures) -> tuple[float, float]:
    """Least and most latency; the average where they are not given or cannot be drawn."""
    low, high = _drawable(figures.least_us), _drawable(figures.most_us)
    return low or figures.latency_us, high or figures.latency_us


def _drawable(value: float | None) -> float | None:
    return value if value is not None and LEAST_DRAWN < value < MOST_DRAWN else None


def _marked(pair: PairVerdicts, values: Mapping[DevicePoint, float], unit: str) -> Iterator[Series]:
    for standing, (kind, shape) in MARKS.items():
        points = [
            Point(
                x=each.size_bytes,
                y=value,
                tip=f"{standing} of {pair.own.label}, {size_words(each.size_bytes)}: "
                f"{format_number(value)} {unit}",
            )
            for each, value in values.items()
            if each in pair.points and pair.points[each].standing is standing
        ]
        yield Series(name=standing, kind=kind, shape=shape, points=points, is_main=True)
