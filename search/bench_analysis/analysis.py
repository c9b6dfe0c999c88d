"""What an analysis found, as one value."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from search.bench_analysis.points import DevicePoint, base_names
from search.bench_analysis.results import Results
from search.bench_analysis.verdicts import Limits, PairVerdicts

REGRESSED, UNDECIDED = 3, 5
Names: TypeAlias = Mapping[tuple[str, str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """Results in the order given, and the verdicts on each against the baseline, if there is one.

    `warnings` tell what was left out, `caveats` what the verdicts cannot say.
    """

    results: tuple[Results, ...]
    baseline: Results | None
    pairs: tuple[PairVerdicts, ...]
    limits: Limits
    warnings: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    fail_on_regression: bool = False
    allow_undecided: bool = False

    @property
    def regression_count(self) -> int:
        """Regressions of all labels."""
        return sum(pair.regression_count for pair in self.pairs)

    @property
    def broken_count(self) -> int:
        """Points of the baseline that went wrong, of all labels."""
        return sum(len(pair.broken) for pair in self.pairs)

    @property
    def open_count(self) -> int:
        """Points of all labels at which a regression may hide."""
        return sum(pair.open_count for pair in self.pairs)

    @property
    def exit_status(self) -> int:
        """What the command ends with: what broke is no better than what became slower."""
        if not self.fail_on_regression:
            return 0
        if self._worse:
            return REGRESSED
        return UNDECIDED if self.open_count and not self.allow_undecided else 0

    @property
    def _worse(self) -> bool:
        return self.regression_count > 0 or self.broken_count > 0

    @property
    def names(self) -> Names:
        """What each collective with its operation is called in tables and files."""
        return base_names(point for results in self.results for point in results.rows)

    def points(self) -> Iterator[DevicePoint]:
        """Every point of any label, by collective and size."""
        found = {point for results in self.results for point in results.rows}
        yield from sorted(found, key=lambda point: point.place)

    def named(self, label: str) -> Results:
        """The results of a label."""
        return next(each for each in self.results if each.label == label)
