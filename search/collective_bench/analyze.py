"""Analyse folders of benchmark results against a baseline, and write the result folder."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from statistics import median
from typing import Final

from matplotlib.figure import Figure

from records.errors import StoreError, StudyError
from search.collective_bench.output import (
    Table,
    analysis_facts,
    comparison,
    csv_text,
    highlights,
    highlights_lines,
    history,
    limit_lines,
    standing_table,
    summary,
    text_lines,
)
from search.collective_bench.plots import history_figures, pair_figures
from search.collective_bench.results import (
    DevicePoint,
    LabelledFolder,
    Results,
    labelled_folders,
    read_results,
)
from search.collective_bench.verdicts import Analysis, Limits, PairVerdicts, Standing, judge_pair
from search.traces.plots import save

VERDICT: Final = "verdict.json"
LEAST_HISTORY: Final = 3
"""Labels needed for a history."""
WORDS: Final = {Standing.REGRESSION: "regressed", Standing.IMPROVEMENT: "improved"}
FILES: Final = {Standing.REGRESSION: "perf_regress", Standing.IMPROVEMENT: "perf_improve"}


def write_tree(
    found: Analysis, root: Path, *, summary_only: bool, doing: Callable[[str], None]
) -> None:
    """Write everything below `root`; the verdicts come last, so that they stand for a whole tree.

    Raises `StoreError` for what cannot be written.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        (root / VERDICT).unlink(missing_ok=True)
        for name, table, lines in _tables(found, summary_only=summary_only):
            _write(root / f"{name}.csv", csv_text(table))
            _write(root / f"{name}.txt", "".join(f"{line}\n" for line in lines))
        if summary_only:
            return
        for name, figure in _figures(found):
            doing(f"drawing {name}")
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            save(figure, path)
        facts = json.dumps(analysis_facts(found), indent=1, allow_nan=False)
        _write(root / VERDICT, f"{facts}\n")
    except OSError as error:
        raise StoreError(
            f"cannot write {error.filename}: {error.strerror}; give another --outdir"
        ) from error


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="")


def _tables(found: Analysis, *, summary_only: bool) -> Iterator[tuple[str, Table, Iterable[str]]]:
    """Every table with its place in the tree and the lines of its text."""
    for results in found.results:
        table = summary(results, found.names)
        yield f"perf_summary_{results.label}", table, _summary_lines(results, table)
    if summary_only:
        return
    if found.baseline is not None:
        table = comparison(found)
        yield "perf_comparison", table, (*limit_lines(found.limits), "", *text_lines(table))
    for pair in found.pairs:
        for standing, name in FILES.items():
            table = standing_table(found, pair, standing)
            yield f"{pair.name}/{name}", table, _standing_lines(found, pair, standing, table)
        lines = highlights_lines(found, pair)
        yield f"{pair.name}/perf_highlights", highlights(found, pair), lines
    if len(found.results) >= LEAST_HISTORY:
        table = history(found)
        yield "perf_history", table, text_lines(table)


def _summary_lines(results: Results, table: Table) -> list[str]:
    left_out = dict.fromkeys(
        f"not measured: {row.point}, {row.status} ({row.columns.get('Reason', 'no reason')})"
        for row in results.left_out
    )
    return [*text_lines(table), *([""] if left_out else []), *left_out]


def _standing_lines(
    found: Analysis, pair: PairVerdicts, standing: Standing, table: Table
) -> Iterator[str]:
    words = f"{pair.label} against {pair.baseline}"
    if table.rows:
        yield f"{words}: {len(table.rows)} of {pair.judged_count} points {WORDS[standing]}"
    else:
        yield f"{words}: no {standing} in {pair.judged_count} points"
    yield from limit_lines(found.limits)
    if table.rows:
        yield ""
        yield from text_lines(table)


def _figures(found: Analysis) -> Iterator[tuple[str, Figure]]:
    """Every plot with its place in the tree."""
    by_name: dict[tuple[str, str], list[DevicePoint]] = {}
    for point in found.points():
        by_name.setdefault((point.collective, point.operation), []).append(point)
    for key, points in by_name.items():
        folder, name = f"plots/{key[0]}", found.names[key]
        for pair in found.pairs:
            for kind, figure in pair_figures(found, pair, name, points):
                yield f"{folder}/{name}_{pair.name}_{kind}.png", figure
        if len(found.results) >= LEAST_HISTORY:
            for kind, figure in history_figures(found, name, points):
                yield f"{folder}/history_{name}_{kind}.png", figure


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisOptions:
    """What to analyse, by which limits, and where it goes.

    `warn` receives what is left out, `doing` what is under way.
    """

    folders: tuple[str, ...]
    outdir: Path
    baseline: str | None = None
    limits: Limits = field(default_factory=Limits)
    summary_only: bool = False
    fail_on_regression: bool = False
    allow_undecided: bool = False
    warn: Callable[[str], None] = lambda _: None
    doing: Callable[[str], None] = lambda _: None


def analyze(asked: AnalysisOptions) -> Analysis:
    """Write the tree of an analysis and give what it found.

    Raises `StudyError` for what cannot be analysed as asked, also for a gate that would pass
    because nothing was compared, and `StoreError` for a folder that cannot be written.
    """
    folders = labelled_folders(asked.folders)
    _check(asked, folders)
    warnings: list[str] = []

    def warn(text: str) -> None:
        warnings.append(text)
        asked.warn(text)

    results = read_results(folders, warn)
    baseline = _baseline(asked.baseline, results)
    pairs: tuple[PairVerdicts, ...] = ()
    if baseline is not None and not asked.summary_only:
        asked.doing("comparing")
        others = [each for each in results if each is not baseline]
        pairs = tuple(judge_pair(each, baseline, asked.limits) for each in others)
    found = Analysis(
        results=results,
        baseline=baseline,
        pairs=pairs,
        limits=asked.limits,
        warnings=tuple(warnings),
        caveats=(
            *_caveats(pairs, asked.limits),
            *(_sensitivity(pairs) if asked.fail_on_regression else ()),
        ),
        fail_on_regression=asked.fail_on_regression,
        allow_undecided=asked.allow_undecided,
    )
    write_tree(found, asked.outdir, summary_only=asked.summary_only, doing=asked.doing)
    uncompared = [pair for pair in pairs if not pair.judged_count and not pair.broken]
    if asked.fail_on_regression and uncompared:
        raise StudyError(f"--fail-on-regression: {next(_caveats(uncompared, asked.limits))}")
    return found


def _check(asked: AnalysisOptions, folders: Sequence[LabelledFolder]) -> None:
    labels = [folder.label for folder in folders]
    if asked.baseline is not None and asked.baseline not in labels:
        close = get_close_matches(asked.baseline, labels, n=1)
        hint = f"did you mean {close[0]}?" if close else f"give one of {', '.join(labels)}"
        raise StudyError(f"--baseline {asked.baseline} is not a label of a --dir; {hint}")
    if asked.allow_undecided and not asked.fail_on_regression:
        raise StudyError("--allow-undecided is for a gate; add --fail-on-regression")
    if asked.fail_on_regression and (asked.baseline is None or asked.summary_only):
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
            yield (
                f"{pair.label}: these rounds show a slowdown of {median(sizes):.3g} % at half of "
                f"the points and of {sizes[-1]:.3g} % at all {len(sizes)} judged by rounds, in "
                "four cases of five; a smaller one can pass the gate"
            )


def _caveats(pairs: Sequence[PairVerdicts], limits: Limits) -> Iterator[str]:
    for pair in pairs:
        if pair.broken:
            yield (
                f"{pair.label} failed at {len(pair.broken)} points that {pair.baseline} was "
                "measured at; see not_measured in verdict.json"
            )
        if pair.unmeasured and pair.judged_count:
            yield (
                f"{pair.label} has no row at {len(pair.unmeasured)} of the points that "
                f"{pair.baseline} was measured at, so they are undecided; see baseline_only in "
                "verdict.json"
            )
        if not pair.judged_count:
            yield (
                f"{pair.label} and {pair.baseline} have no point in common, so nothing was "
                "compared; give results of the same collectives, sizes, ranks and devices"
            )
        elif pair.too_seldom_count:
            yield (
                f"{pair.too_seldom_count} of {pair.judged_count} points of {pair.label} were "
                "measured too seldom to decide; measure it and the baseline in turns, "
                f"{limits.slower.min_rounds} rounds or more, or judge by the bare change with "
                "--unreplicated"
            )
