"""Analyse folders of benchmark results against a baseline, and write tables, plots and JSON."""

import csv
import io
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from statistics import median
from typing import Final, TypeAlias

from evaluator.timing.bench_csv import ABSENT, BUS_BANDWIDTH
from records.errors import StoreError, StudyError
from search.collective_bench.plots import history_charts, pair_charts
from search.collective_bench.results import (
    DevicePoint,
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
    Names,
    PairVerdicts,
    PointVerdict,
    Standing,
    judge_pairs,
)
from search.views.document import Column, Table, number_column
from search.views.format import format_count
from search.views.study import USELESS_RATIO
from search.views.svg import standalone
from search.views.terminal import table_lines

SIZE: Final = "SendMsgSize(B)"
CSV_ONLY: Final = (SIZE, "ReduceOp")
"""Columns that the text has in other words."""
SHARED: Final = ("DType", "DispatchMode", "SyncInterval")
"""Columns that text has only where rows differ in them."""
ANY_WIDTH: Final = 100_000

Value: TypeAlias = str | int | float | None
"""None is a value that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """Rows as a file has them: with every digit for programs, and short for people.

    A row without a value in a column that is judged is the baseline's.
    """

    columns: tuple[str, ...]
    rows: tuple[Mapping[str, Value], ...]

    @property
    def csv(self) -> str:
        """The rows with every digit."""
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        for row in self.rows:
            values = (row.get(name, "") for name in self.columns)
            writer.writerow([ABSENT if value is None else value for value in values])
        return text.getvalue()

    @property
    def lines(self) -> list[str]:
        """The rows as text: what all have in common is above them, once."""
        common = {
            name: self.rows[0][name]
            for name in SHARED
            if name in self.columns and len({row[name] for row in self.rows}) == 1
        }
        shown = [name for name in self.columns if name not in (*CSV_ONLY, *common)]
        above = [", ".join(f"{name} {value}" for name, value in common.items()), ""]
        table = Table.of(*(self._column(name) for name in shown))
        return [*(above if common else []), *table_lines(table, ANY_WIDTH)]

    def _column(self, name: str) -> Column:
        absent = BASELINE if name in JUDGED else ""
        values = [row.get(name, absent) for row in self.rows]
        texts = [_words(name, value) for value in values]
        if any(isinstance(value, int | float) for value in values) or name.endswith(")"):
            return number_column(name, texts)
        return Column(heading=name, cells=texts)


def _words(name: str, value: Value) -> str:
    match value:
        case None:
            return ABSENT
        case float():
            # One decimal of GB/s would hide everything that small messages reach.
            return f"{value:.3g}" if name == BUS_BANDWIDTH and value < 100 else f"{value:z.1f}"
        case _:
            return str(value)


FIGURES: Final = ("LatAvg(us)", "LatMin(us)", "LatMax(us)", "BusBw(GB/s)")
SETTINGS: Final = ("ReduceOp", "DType", "DispatchMode", "SyncInterval")
SUMMARY: Final = (
    *("Collective", "NumRanks", "MsgSize", SIZE, *FIGURES),
    *("DeviceName", "Rows", *SETTINGS),
)
CHANGES: Final = ("LatChange(%)", "BwChange(%)")
JUDGED: Final = (*CHANGES, "Verdict")
BASELINE: Final = "baseline"
COMPARISON: Final = (
    *("Collective", "Adapter", "NumRanks", "MsgSize", SIZE),
    *(*FIGURES, *CHANGES, "DeviceName", "Verdict", "Reason", "Evidence"),
    *("LatChangeLow(%)", "LatChangeHigh(%)", "Rounds", *SETTINGS),
)
VERSIONS: Final = ("TorchVersion", "CommBackend", "CommBackendVersion", "TorchCommsVersion")
HISTORY: Final = (
    *("Collective", "NumRanks", "MsgSize", SIZE, "Adapter"),
    *("LatAvg(us)", "BusBw(GB/s)", *VERSIONS, "DeviceName", *SETTINGS),
)


def summary(results: Results, names: Names) -> Sheet:
    """What was measured under one label."""
    return Sheet(columns=SUMMARY, rows=tuple(_row(results, each, names) for each in results.rows))


def comparison(found: Analysis) -> Sheet:
    """Every point of every label, next to the baseline's."""
    pairs = {pair.own.label: pair for pair in found.pairs}
    rows = (
        _row(results, point, found.names, pair.points[point] if pair else None)
        for point in found.points()
        for results in sorted(found.results, key=lambda results: results.label)
        for pair in [pairs.get(results.label)]
        if point in results.rows
    )
    return Sheet(columns=COMPARISON, rows=tuple(rows))


def standing_sheet(found: Analysis, pair: PairVerdicts, standing: Standing) -> Sheet:
    """The points of one label that stand so against the baseline."""
    points = pair.standing(standing)
    rows = (_row(pair.own, each, found.names, pair.points[each]) for each in points)
    return Sheet(columns=COMPARISON, rows=tuple(rows))


def history(found: Analysis) -> Sheet:
    """Each point over the labels, in the order that they were given in."""
    versions = [{name: results.text(name) for name in VERSIONS} for results in found.results]
    rows = (
        {**_row(results, point, found.names), **software}
        for point in found.points()
        for results, software in zip(found.results, versions, strict=True)
        if point in results.rows
    )
    return Sheet(columns=HISTORY, rows=tuple(rows))


def _row(
    results: Results, point: DevicePoint, names: Names, verdict: PointVerdict | None = None
) -> Mapping[str, Value]:
    """Values of a point by column; without a verdict it is the baseline's."""
    figures = results.figures[point]
    judged: Mapping[str, Value] = {}
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


def highlights(found: Analysis, pair: PairVerdicts) -> Sheet:
    """A row for each collective, and one for all of them."""
    names = found.names
    by_name: dict[str, list[PointVerdict]] = {}
    for point, verdict in pair.points.items():
        by_name.setdefault(names[point.collective, point.operation], []).append(verdict)
    rows = []
    for name, verdicts in [*by_name.items(), (ALL, list(pair.points.values()))]:
        counts, shares, means, medians = zip(*_statistics(verdicts), strict=True)
        values = (*counts, sum(counts), *shares, *means, *medians)
        cells = (name, pair.own.label, pair.base.label, *values)
        rows.append(dict(zip(COLUMNS, cells, strict=True)))
    return Sheet(columns=COLUMNS, rows=tuple(rows))


def highlights_lines(found: Analysis, pair: PairVerdicts) -> Iterator[str]:
    """What was compared, by which limits, and the result."""
    sides = (pair.own, pair.base)
    facts = [(column, *(side.text(column) for side in sides)) for column in FACTS]
    facts.append(("sizes", *map(_sizes, sides)))
    yield from (pair.words, "")
    yield from _table_lines(("benchmark", *(side.label for side in sides)), facts)
    yield from ("", *limit_lines(found.options.limits), "")
    heads = ("category", "points", "share(%)", "mean LatChange(%)", "median LatChange(%)")
    statistics = zip(CATEGORIES, _statistics(pair.points.values()), strict=True)
    yield from _table_lines(heads, [(name, *values) for name, values in statistics])
    yield from ("", *_reason_lines(pair), "", "by collective", *highlights(found, pair).lines)


def _table_lines(columns: tuple[str, ...], rows: Sequence[tuple[Value, ...]]) -> list[str]:
    named = (dict(zip(columns, row, strict=True)) for row in rows)
    return Sheet(columns=columns, rows=tuple(named)).lines


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
        "corrected for the points of all labels (Holm): with no true difference anywhere, any is "
        f"shown in at most {100 * limits.alpha:g} % of analyses; each interval stands for its own "
        "point"
    )
    if limits.unreplicated:
        yield (
            "what was measured too seldom for that is judged by the bare change (Evidence: "
            "threshold only), which does not separate a difference from noise"
        )


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
        yield f"measured for {pair.base.label} only: {len(pair.missing)}"


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
LEAST_HISTORY: Final = 3
"""Labels needed for a history."""
WORDS: Final = {Standing.REGRESSION: "regressed", Standing.IMPROVEMENT: "improved"}
FILES: Final = {Standing.REGRESSION: "perf_regress", Standing.IMPROVEMENT: "perf_improve"}


def write_tree(found: Analysis) -> None:
    """Write everything below the output folder; the verdicts come last and stand for a whole tree.

    Raises `StoreError` for what cannot be written.
    """
    root = found.options.outdir
    try:
        root.mkdir(parents=True, exist_ok=True)
        (root / VERDICT).unlink(missing_ok=True)
        for name, sheet, lines in _sheets(found):
            _write(root / f"{name}.csv", sheet.csv)
            _write(root / f"{name}.txt", "".join(f"{line}\n" for line in lines))
        if found.options.summary_only:
            return
        for name, drawn in _charts(found):
            found.options.doing(f"drawing {name}")
            _write(root / name, standalone(drawn))
        facts = json.dumps(analysis_facts(found), indent=1, allow_nan=False)
        _write(root / VERDICT, f"{facts}\n")
    except OSError as error:
        raise StoreError(
            f"cannot write {error.filename}: {error.strerror}; give another --outdir"
        ) from error


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="")


def _sheets(found: Analysis) -> Iterator[tuple[str, Sheet, Iterable[str]]]:
    """Every table with its place in the tree and the lines of its text."""
    for results in found.results:
        sheet = summary(results, found.names)
        yield f"perf_summary_{results.label}", sheet, _summary_lines(results, sheet)
    if found.options.summary_only:
        return
    if found.baseline is not None:
        sheet = comparison(found)
        yield "perf_comparison", sheet, (*limit_lines(found.options.limits), "", *sheet.lines)
    for pair in found.pairs:
        for standing, name in FILES.items():
            sheet = standing_sheet(found, pair, standing)
            yield f"{pair.name}/{name}", sheet, _standing_lines(found, pair, standing, sheet)
        lines = highlights_lines(found, pair)
        yield f"{pair.name}/perf_highlights", highlights(found, pair), lines
    if len(found.results) >= LEAST_HISTORY:
        sheet = history(found)
        yield "perf_history", sheet, sheet.lines


def _summary_lines(results: Results, sheet: Sheet) -> list[str]:
    left_out = dict.fromkeys(
        f"not measured: {row.point}, {row.status} ({row.columns.get('Reason', 'no reason')})"
        for row in results.left_out
    )
    return [*sheet.lines, *([""] if left_out else []), *left_out]


def _standing_lines(
    found: Analysis, pair: PairVerdicts, standing: Standing, sheet: Sheet
) -> Iterator[str]:
    if sheet.rows:
        yield f"{pair.words}: {len(sheet.rows)} of {pair.judged_count} points {WORDS[standing]}"
    else:
        yield f"{pair.words}: no {standing} in {pair.judged_count} points"
    yield from limit_lines(found.options.limits)
    if sheet.rows:
        yield from ("", *sheet.lines)


def _charts(found: Analysis) -> Iterator[tuple[str, str]]:
    """Every chart with its place in the tree."""
    by_name: dict[tuple[str, str], list[DevicePoint]] = {}
    for point in found.points():
        by_name.setdefault((point.collective, point.operation), []).append(point)
    for key, points in by_name.items():
        folder, name = f"plots/{key[0]}", found.names[key]
        for pair in found.pairs:
            for kind, drawn in pair_charts(found, pair, name, points):
                yield f"{folder}/{name}_{pair.name}_{kind}.svg", drawn
        if len(found.results) >= LEAST_HISTORY:
            for kind, drawn in history_charts(found, name, points):
                yield f"{folder}/history_{name}_{kind}.svg", drawn


def analyze(options: AnalysisOptions) -> Analysis:
    """Write the tree of an analysis and give what it found.

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
    if baseline is not None and not options.summary_only:
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
    write_tree(found)
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
    if options.fail_on_regression and (options.baseline is None or options.summary_only):
        raise StudyError(
            "--fail-on-regression needs verdicts; add --baseline LABEL and leave out --summary-only"
        )


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
        "(cclsearch bench collectives --rounds 8), give a larger --regression-threshold, or add "
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
                f"{limits.slower.min_rounds} rounds or more, or judge by the bare change with "
                "--unreplicated"
            )
