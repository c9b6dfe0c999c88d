"""How many points of a label improved, regressed or did neither, and by how much."""

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from search.bench_analysis.analysis import Analysis
from search.bench_analysis.results import Results
from search.bench_analysis.tables import Cell, Table, size_words, text_lines
from search.bench_analysis.verdicts import Limits, PairVerdicts, PointVerdict, Standing

COUNTED: Final = (Standing.IMPROVEMENT, Standing.REGRESSION, Standing.NEUTRAL)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Changes of latency of the points that count, in percent, by how they stand."""

    changes: dict[Standing, list[float]]

    @classmethod
    def of(cls, verdicts: Iterable[PointVerdict]) -> "Tally":
        """Count these."""
        changes: dict[Standing, list[float]] = {standing: [] for standing in COUNTED}
        for each in verdicts:
            if each.standing in changes and each.latency_change is not None:
                changes[each.standing].append(each.latency_change)
        return cls(changes=changes)

    @property
    def counts(self) -> tuple[int, ...]:
        """Points of each standing that counts."""
        return tuple(len(self.changes[standing]) for standing in COUNTED)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Counts, shares, means and medians."""
        total = sum(self.counts)
        each = [self.changes[standing] for standing in COUNTED]
        return (
            *(*self.counts, total),
            *(100 * count / total if total else None for count in self.counts),
            *(statistics.fmean(changes) if changes else None for changes in each),
            *(statistics.median(changes) if changes else None for changes in each),
        )


def highlights(found: Analysis, pair: PairVerdicts) -> Table:
    """A row for each collective, and one for all of them."""
    names = found.names
    by_name: dict[str, list[PointVerdict]] = {}
    for point, verdict in pair.points.items():
        name = names[point.point.collective, point.point.operation]
        by_name.setdefault(name, []).append(verdict)
    rows = [(name, Tally.of(verdicts)) for name, verdicts in by_name.items()]
    rows.append((ALL, Tally.of(pair.points.values())))
    return Table(
        columns=COLUMNS,
        rows=tuple((name, pair.label, pair.baseline, *tally.cells) for name, tally in rows),
    )


def highlights_lines(found: Analysis, pair: PairVerdicts) -> Iterator[str]:
    """What was compared, by which limits, and what came out."""
    yield f"{pair.label} against {pair.baseline}"
    yield ""
    yield from _benchmark_lines([found.named(pair.label), found.named(pair.baseline)])
    yield ""
    yield from limit_lines(found.limits)
    yield ""
    yield from text_lines(_categories(Tally.of(pair.points.values())))
    yield ""
    yield from _reason_lines(pair)
    yield ""
    yield "by collective"
    yield from text_lines(highlights(found, pair))


def limit_lines(limits: Limits) -> Iterator[str]:
    """What counts as a difference, in words."""
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
            "threshold only), which does not tell a difference from noise"
        )


def _benchmark_lines(sides: Sequence[Results]) -> Iterator[str]:
    rows = [(column, *(side.told(column) for side in sides)) for column in FACTS]
    rows.append(("sizes", *(_sizes(side) for side in sides)))
    heads = ("benchmark", *(side.label for side in sides))
    yield from text_lines(Table(columns=heads, rows=tuple(rows)))


def _sizes(side: Results) -> str:
    sizes = sorted({point.point.size_bytes for point in side.rows})
    if not sizes:
        return "none measured"
    return " to ".join(dict.fromkeys(size_words(size) for size in (sizes[0], sizes[-1])))


def _categories(tally: Tally) -> Table:
    cells, kinds = tally.cells, len(COUNTED)
    counts, shares, means, medians = (
        cells[start : start + kinds] for start in (0, kinds + 1, 2 * kinds + 1, 3 * kinds + 1)
    )
    return Table(
        columns=("category", "points", "share(%)", "mean LatChange(%)", "median LatChange(%)"),
        rows=tuple(
            zip(("improved", "regressed", "neutral"), counts, shares, means, medians, strict=True)
        ),
    )


def _reason_lines(pair: PairVerdicts) -> Iterator[str]:
    found = Counter((each.standing, each.reason) for each in pair.points.values())
    for standing in Standing:
        told = [f"{count} {reason}" for (of, reason), count in found.items() if of is standing]
        if told:
            yield f"{standing}: {', '.join(told)}"
    if pair.missing:
        yield f"measured for {pair.baseline} only: {len(pair.missing)}"
