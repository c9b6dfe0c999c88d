"""Compare strategies on landscapes: statistics and tables.

A hit is the first trial after which a final would announce one within reach of the best. A run
without a hit is a miss: it counts with all its trials, and ranks behind every hit. An announcement
is what a search with the default budget ends with.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy

from records.errors import StudyError, suggestion
from search.compose import MODEL_TURNS
from search.strategies.catalog import CHOOSERS
from search.strategy_bench.answers import Model
from search.strategy_bench.landscape import Ground, Landscape
from search.strategy_bench.run import Done, Run, Start, Terms, run_all
from search.views.document import (
    Cell,
    Document,
    Facts,
    Paragraph,
    Section,
    Table,
    TableRow,
    number,
)

MARKS: Final = (5, 10, 15, 30)
"""Trials after which success rates are reported."""
REGRET_MARKS: Final = (10, 20, 40)
"""Trials after which the regret is shown."""
USUAL: Final = "offline"
"""The strategy whose launches others get for the same success."""
DRAWS: Final = 2000
CONFIDENCE: Final = 0.95
Counts: TypeAlias = npt.NDArray[np.float64]
"""Trials to a hit, one for each seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quartiles:
    """Trials to a hit; None is a miss, beyond all trials that there were."""

    low: float | None
    median: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Regret after each trial, as a share of the best: 0.05 for 5 % worse.

    None while fewer than all runs had measured anything.
    """

    mean: tuple[float | None, ...]
    low: tuple[float | None, ...]
    median: tuple[float | None, ...]
    high: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcements:
    """What searches with the default budget announce: the share within reach, and means.

    `tokens` and `usd` are those of a model, None where none was asked or its price is unknown.
    """

    success: float
    median_regret: float | None
    trials: float
    launches: float
    tokens: float | None = None
    usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """Trials to a hit less those of another strategy, over the same seeds; below 0 is sooner.

    A miss counts as one trial more than the cap. `p_value` is that of the Wilcoxon signed-rank
    test, None where no pair differs.
    """

    against: str
    mean: float
    low: float
    high: float
    p_value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One strategy on one landscape, over all its seeds.

    Launches and failures are means per run, up to the hit or to the end of a miss; `launches`
    counts those of races too. `running_time` is the expected number of trials to a hit where a
    search that misses is begun again, None where none ever hit. `same_launches` is the share of
    searches that would announce one within reach after as many launches as one of `USUAL` takes
    until it announces; None where that was not searched.
    """

    strategy: str
    trials: Quartiles
    run_count: int
    hit_count: int
    success: Mapping[int, float]
    running_time: float | None
    launches: float
    failures: float
    own_s: float
    """Seconds of a search for each trial, without launches."""
    regret: Curve
    announced: Announcements
    same_launches: float | None
    paired: tuple[Paired, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All strategies on one landscape.

    `random_trials` is how many draws without replacement meet the first target, on average.
    Where it `has_estimates`, knobs have a meaning that cclsearch knows.
    """

    landscape: str
    about: str
    unit: str
    best: float
    size: int
    measurable_count: int
    target_count: int
    random_trials: float
    has_estimates: bool
    seed_excess: float | None
    summaries: tuple[Summary, ...]


def report(
    ground: Ground,
    runs: Mapping[str, Sequence[Run]],
    *,
    reach: float,
    trial_count: int,
    rivals: Sequence[str] = (),
) -> Report:
    """Sum up every strategy; those among `rivals` are what the others are paired with."""
    hits = {name: [hit(run, reach) for run in some] for name, some in runs.items()}
    counted = {
        name: np.array([trial_count + 1 if at is None else at for at in some], dtype=np.float64)
        for name, some in hits.items()
    }
    size, targets = len(ground.space.feasible), len(ground.targets(reach))
    return Report(
        landscape=ground.name,
        about=ground.landscape.about,
        unit=ground.landscape.unit,
        best=ground.best,
        size=size,
        measurable_count=len(ground.truths),
        target_count=targets,
        random_trials=(size + 1) / (targets + 1),
        has_estimates=any(entry.estimate for entry in ground.landscape.entries),
        seed_excess=ground.excess(ground.seed) if ground.seed in ground.truths else None,
        summaries=tuple(
            summary(
                name,
                some,
                hits[name],
                trial_count,
                tuple(
                    paired(rival, counted[name], counted[rival])
                    for rival in rivals
                    if rival in counted and rival != name
                ),
                reach=reach,
                usual=runs.get(USUAL, ()),
            )
            for name, some in runs.items()
        ),
    )


def summary(
    name: str,
    runs: Sequence[Run],
    hits: Sequence[int | None],
    trial_count: int,
    pairs: tuple[Paired, ...],
    *,
    reach: float,
    usual: Sequence[Run] = (),
) -> Summary:
    """Sum up the runs of one strategy, whose first hits are given."""
    used = [len(run.steps) if at is None else at for run, at in zip(runs, hits, strict=True)]
    ends = list(zip(runs, used, strict=True))
    hit_count = sum(at is not None for at in hits)
    return Summary(
        strategy=name,
        trials=quartiles(hits),
        run_count=len(runs),
        hit_count=hit_count,
        success={
            mark: sum(at is not None and at <= mark for at in hits) / len(hits) for mark in MARKS
        },
        running_time=sum(used) / hit_count if hit_count else None,
        launches=fmean(run.steps[end - 1].launch_count for run, end in ends),
        failures=fmean(sum(step.failed for step in run.steps[:end]) for run, end in ends),
        own_s=sum(run.own_s for run in runs) / sum(len(run.steps) for run in runs),
        regret=curve(runs, trial_count),
        announced=announcements(runs, reach),
        same_launches=success_with_launches(runs, usual, reach) if usual else None,
        paired=pairs,
    )


def announcements(runs: Sequence[Run], reach: float) -> Announcements:
    """Sum up what searches with the default budget announce."""
    ends = [run.announced for run in runs]
    excesses = [math.inf if end.excess is None else end.excess for end in ends]
    middle = median(excesses)
    return Announcements(
        success=fmean(excess <= reach for excess in excesses),
        median_regret=middle if math.isfinite(middle) else None,
        trials=fmean(end.trial_count for end in ends),
        launches=fmean(end.launch_count for end in ends),
        tokens=_mean([end.tokens for end in ends]),
        usd=_mean([end.usd for end in ends]),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def success_with_launches(runs: Sequence[Run], usual: Sequence[Run], reach: float) -> float:
    """Return the share that would announce one within reach after as many launches as `usual`."""
    limits = {run.seed: run.announced.launch_count for run in usual}
    shares = []
    for run in runs:
        limit = limits.get(run.seed, 0)
        ended = [step for step in run.steps if step.launch_count <= limit][-1:]
        shares.append(any(step.excess is not None and step.excess <= reach for step in ended))
    return fmean(shares)


def hit(run: Run, reach: float) -> int | None:
    """The number of the first trial, from 1, after which the incumbent is within reach."""
    reached = (
        number
        for number, step in enumerate(run.steps, start=1)
        if step.excess is not None and step.excess <= reach
    )
    return next(reached, None)


def quartiles(hits: Sequence[float | None]) -> Quartiles:
    """Quartiles between neighbours; one that takes a miss into account is a miss."""
    low, median, high = (_quantile(hits, share) for share in (0.25, 0.5, 0.75))
    return Quartiles(low=low, median=median, high=high)


def _quantile(hits: Sequence[float | None], share: float) -> float | None:
    ordered = sorted(at for at in hits if at is not None)
    place = share * (len(hits) - 1)
    below, above = math.floor(place), math.ceil(place)
    if above >= len(ordered):
        return None
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def curve(runs: Sequence[Run], trial_count: int) -> Curve:
    """Mean regret and its quartiles after each trial; a search that ended keeps its incumbent."""
    excess = np.array(
        [
            [run.steps[min(number, len(run.steps) - 1)].excess for run in runs]
            for number in range(trial_count)
        ],
        dtype=np.float64,  # None is NaN
    )
    mean, low, middle, high = (
        tuple(None if math.isnan(value) else value for value in line.tolist())
        for line in (excess.mean(axis=1), *np.quantile(excess, (0.25, 0.5, 0.75), axis=1))
    )
    return Curve(mean=mean, low=low, median=middle, high=high)


def paired(against: str, own: Counts, others: Counts) -> Paired:
    """Compare trials to a hit, in the order of the seeds; the interval is a bootstrap's."""
    differences = own - others
    drawn = np.random.default_rng(0).choice(differences, (DRAWS, len(differences)))
    low, high = np.quantile(drawn.mean(axis=1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    p_value = float(scipy.stats.wilcoxon(differences).pvalue) if differences.any() else None
    return Paired(
        against=against,
        mean=float(differences.mean()),
        low=float(low),
        high=float(high),
        p_value=p_value,
    )


HEADINGS: Final = (
    *("strategy", "trials", "quartiles", "hits", "% by 5/10/15/30", "regret % at 10/20/40"),
    *("launches", "failed", "announced", "in launches", "same", "s each"),
)
OF_A_MODEL: Final = ("tokens", "USD")
LEGEND: Final = (
    ("trials", "median number until a final would announce one within reach; after >, not so soon"),
    ("regret", "median: how much worse than the best is what a final would announce"),
    ("launches, failed", "mean up to the hit, launches with those of races"),
    ("announced", "searches with the default budget that announce one within reach, in %"),
    ("in launches", "mean until then, with self-test, races and final"),
    ("same", f"within reach after the launches that {USUAL} takes until it announces, in %"),
    ("s each", "seconds of the search itself for each trial"),
    ("tokens, USD", "of a model, where one is asked: mean until it announces"),
)


def comparison_document(found: "Comparison") -> Document:
    """Return a table for each landscape, one row a strategy, and what differs seed by seed."""
    sections = [
        Section(
            name=report.landscape,
            heading=head(report),
            lead="",
            blocks=(_table(report, found), *(Paragraph(text=line) for line in pair_lines(report))),
        )
        for report in found.reports
    ]
    if len(found.reports) > 1:
        sections.append(_overall(found))
    legend = Section(name="legend", heading="Columns", lead="", blocks=(Facts(lines=LEGEND),))
    title = f"Trials until within {found.reach:.0%} of the best, {found.seed_count} searches each"
    return Document(title=title, lead="", sections=(*sections, legend))


def head(report: Report) -> str:
    """The landscape in one line: its size, its targets, and what random draws would need."""
    return (
        f"{report.landscape}: {report.size} configurations, {report.measurable_count} measurable, "
        f"{report.target_count} within reach of {report.best:.4g} {report.unit}; "
        f"random draws need {report.random_trials:.1f} on average"
    )


def pair_lines(report: Report) -> Iterator[str]:
    """How the strategies compare with each other, seed by seed, with interval and p-value."""
    for summary in report.summaries:
        for pair in summary.paired:
            p_value = "no pair differs" if pair.p_value is None else f"p = {pair.p_value:.2g}"
            yield (
                f"{summary.strategy} against {pair.against}: {pair.mean:+.1f} trials "
                f"[{pair.low:+.1f}, {pair.high:+.1f}], {p_value}"
            )


def _table(report: Report, found: "Comparison") -> Table:
    def words(trials: float | None) -> str:
        """A number of trials; a miss is more than there were."""
        return f">{found.trial_count}" if trials is None else f"{trials:g}"

    asked = any(each.announced.tokens is not None for each in report.summaries)
    rows = [
        TableRow.of(
            each.strategy,
            number(each.trials.median, words(each.trials.median)),
            number(each.trials.low, f"{words(each.trials.low)}-{words(each.trials.high)}"),
            number(each.hit_count, f"{each.hit_count}/{found.seed_count}"),
            number(None, "/".join(f"{100 * each.success[mark]:.0f}" for mark in MARKS)),
            number(None, regret_words(each.regret)),
            number(each.launches, f"{each.launches:.1f}"),
            number(each.failures, f"{each.failures:.1f}"),
            _percent(each.announced.success),
            number(each.announced.launches, f"{each.announced.launches:.1f}"),
            _percent(each.same_launches),
            number(each.own_s, f"{each.own_s:.2f}"),
            *(_model_cells(each.announced) if asked else ()),
        )
        for each in report.summaries
    ]
    headings = (*HEADINGS, *OF_A_MODEL) if asked else HEADINGS
    return Table(about="", headings=headings, rows=tuple(rows))


def _model_cells(found: Announcements) -> Iterator[Cell]:
    yield number(found.tokens, "-" if found.tokens is None else f"{found.tokens:.0f}")
    yield number(found.usd, "-" if found.usd is None else f"{found.usd:.2f}")


def regret_words(curve: Curve) -> str:
    """Median regret at the marks in percent; - while some search had measured nothing."""
    found = (curve.median[mark - 1] if mark <= len(curve.median) else None for mark in REGRET_MARKS)
    return "/".join("-" if each is None else f"{100 * each:.3g}" for each in found)


def _percent(share: float | None) -> Cell:
    return number(share, "-" if share is None else f"{100 * share:.0f}")


def _overall(found: "Comparison") -> Section:
    """Every landscape counts alike."""
    known = tuple(report for report in found.reports if report.has_estimates)
    groups = [(f"all {len(found.reports)} landscapes", found.reports)]
    if 0 < len(known) < len(found.reports):
        groups.append((f"the {len(known)} whose knobs have a meaning", known))
    rows = [
        TableRow.of(words, strategy, *_means(reports, place))
        for words, reports in groups
        for place, strategy in enumerate(found.strategies)
    ]
    headings = (
        *("landscapes", "strategy", "hits %", "trials", "announced", "trials by default"),
        *("in launches", "same"),
    )
    table = Table(about="", headings=headings, rows=tuple(rows))
    return Section(name="all", heading="Over all landscapes", lead="", blocks=(table,))


def _means(reports: Sequence[Report], place: int) -> Iterator[Cell]:
    """Means over landscapes; of trials to a hit, the median of medians."""
    each = [report.summaries[place] for report in reports]
    runs = [summary.hit_count / summary.run_count for summary in each]
    medians = quartiles([None if s.trials.median is None else s.trials.median for s in each]).median
    yield _percent(fmean(runs))
    yield number(medians, "a miss" if medians is None else f"{medians:g}")
    yield _percent(fmean(summary.announced.success for summary in each))
    for mean in (
        fmean(summary.announced.trials for summary in each),
        fmean(summary.announced.launches for summary in each),
    ):
        yield number(mean, f"{mean:.1f}")
    same = [s.same_launches for s in each if s.same_launches is not None]
    yield _percent(fmean(same) if same else None)


RIVALS: Final = ("tpe", "coordinate")
"""What the other strategies are paired with, seed by seed; those that ask a model, with `USUAL`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What was compared on which terms, and what came of it, one report a landscape."""

    strategies: tuple[str, ...]
    seed_count: int
    trial_count: int
    reach: float
    start: Start
    reports: tuple[Report, ...]


def compare(
    landscapes: Sequence[Landscape],
    strategies: Sequence[str],
    *,
    seed_count: int,
    trial_count: int,
    reach: float,
    start: Start = "seed",
    model: Model | None = None,
    done: Done = lambda *_: None,
) -> Comparison:
    """Search every landscape with every strategy from every seed."""
    seeds = tuple(range(seed_count))
    terms = Terms(seeds=seeds, trial_count=trial_count, start=start, model=model or Model())
    runs = run_all(landscapes, strategies, terms, done=done)
    return compare_runs(landscapes, runs, terms, reach)


def compare_runs(
    landscapes: Sequence[Landscape],
    runs: Mapping[str, Mapping[str, Sequence[Run]]],
    terms: Terms,
    reach: float,
) -> Comparison:
    """Sum up the runs of these landscapes, by landscape and strategy."""
    return Comparison(
        strategies=tuple(runs[landscapes[0].name]),
        seed_count=len(terms.seeds),
        trial_count=terms.trial_count,
        reach=reach,
        start=terms.start,
        reports=tuple(
            report(
                Ground(landscape),
                runs[landscape.name],
                reach=reach,
                trial_count=terms.trial_count,
                rivals=(*RIVALS, USUAL) if runs[landscape.name].keys() & MODEL_TURNS else RIVALS,
            )
            for landscape in landscapes
        ),
    )


def strategies_of(words: str | None) -> tuple[str, ...]:
    """The strategies of a list with commas; without one, all but those that ask a model."""
    names = tuple(CHOOSERS) if words is None else tuple(dict.fromkeys(words.split(",")))
    for name in names:
        if name not in CHOOSERS and name not in MODEL_TURNS:
            known = suggestion(name, [*MODEL_TURNS, *CHOOSERS])
            raise StudyError(f"strategy {name!r} cannot be benchmarked; {known}")
    return names
