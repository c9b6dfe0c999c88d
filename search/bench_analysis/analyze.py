"""Analyses folders of benchmark results: reads, judges against the baseline, writes the tree."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from statistics import median

from records.errors import StudyError
from search.bench_analysis.analysis import Analysis
from search.bench_analysis.folders import LabelledFolder, labelled_folders
from search.bench_analysis.results import Results, read_results
from search.bench_analysis.tree import Tree
from search.bench_analysis.verdicts import Limits, PairVerdicts, judge_pair


def _ignore(_: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisAsked:
    """What to analyse, by which limits, and where it goes.

    `warn` is told at once what is left out, `doing` what is under way.
    """

    folders: tuple[str, ...]
    outdir: Path
    baseline: str | None = None
    limits: Limits = field(default_factory=Limits)
    summary_only: bool = False
    fail_on_regression: bool = False
    allow_undecided: bool = False
    warn: Callable[[str], None] = _ignore
    doing: Callable[[str], None] = _ignore


def analyze(asked: AnalysisAsked) -> Analysis:
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
    Tree(root=asked.outdir, doing=asked.doing).write(found, summary_only=asked.summary_only)
    uncompared = [pair for pair in pairs if not pair.judged_count and not pair.broken]
    if asked.fail_on_regression and uncompared:
        raise StudyError(f"--fail-on-regression: {next(_caveats(uncompared, asked.limits))}")
    return found


def _check(asked: AnalysisAsked, folders: Sequence[LabelledFolder]) -> None:
    labels = [folder.label for folder in folders]
    if asked.baseline is not None and asked.baseline not in labels:
        close = get_close_matches(asked.baseline, labels, n=1)
        hint = f"did you mean {close[0]}?" if close else f"give one of {', '.join(labels)}"
        raise StudyError(f"--baseline {asked.baseline} is no label of a --dir; {hint}")
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
