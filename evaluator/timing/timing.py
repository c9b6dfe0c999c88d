"""Timings of a statement: blocks of calls by launch, what they show, and how they are written.

Samples of one launch share its luck, so with several launches only their medians count as
independent; merging therefore keeps launches separate.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pydantic import ConfigDict

from evaluator.timing.decision import Spread, order_interval, spread


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of time."""

    symbol: str
    word: str
    size_s: float


UNITS = (
    Unit("s", "seconds", 1.0),
    Unit("ms", "milliseconds", 1e-3),
    Unit("us", "microseconds", 1e-6),
    Unit("ns", "nanoseconds", 1e-9),
)


def select_unit(seconds: float) -> Unit:
    """Give the largest unit of which a time holds one or more, nanoseconds for what is shorter."""
    return next((unit for unit in UNITS if abs(seconds) >= unit.size_s), UNITS[-1])


class Stored:
    """Base of what files of timings hold: no other key, no other type, and no infinite number."""

    __slots__ = ()
    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


FLUCTUATION, DISTURBANCE = 0.10, 0.25
"""Interquartile range over median from which samples deserve a warning, and a strong one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Stored):
    """What was timed, and how it is called in tables; equal tasks are replicates."""

    stmt: str
    setup: str = "pass"
    global_setup: str = ""
    label: str | None = None
    sub_label: str | None = None
    description: str | None = None
    env: str | None = None
    num_threads: int = 1

    def __post_init__(self) -> None:
        if self.num_threads < 1:
            raise ValueError(f"num_threads is {self.num_threads}; give 1 or more")

    @property
    def row_name(self) -> str:
        """Name of its row in a table."""
        return self.sub_label or self.stmt


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchTimes(Stored):
    """Seconds of the blocks that were timed in one launch.

    Different tasks timed under one launch name were timed in the same round.
    """

    launch: str
    raw_times_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.raw_times_s:
            raise ValueError(f"launch {self.launch!r} has no raw_times_s; leave it out")
        wrong = [time for time in self.raw_times_s if not 0 < time < math.inf]
        if wrong:
            raise ValueError(f"raw_times_s holds {wrong[0]}; times are finite and above zero")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing(Stored):
    """Block times of one task; times are seconds of one call.

    `unmet_threshold` is the interquartile range over median that was asked for and not reached
    before the time was used up.
    """

    task: Task
    number_per_run: int
    launches: tuple[LaunchTimes, ...]
    unmet_threshold: float | None = None

    def __post_init__(self) -> None:
        if self.number_per_run < 1:
            raise ValueError(f"number_per_run is {self.number_per_run}; give 1 or more")
        names = {group.launch for group in self.launches}
        if not names or len(names) < len(self.launches):
            raise ValueError("launches are none or share a name; give one or more, each once")

    @property
    def times(self) -> tuple[float, ...]:
        """Time of a call in every block, launch after launch."""
        return tuple(time for group in self.launches for time in self._times(group))

    @property
    def median(self) -> float:
        """Median over all blocks."""
        return statistics.median(self.times)

    @property
    def mean(self) -> float:
        """Mean over all blocks."""
        return statistics.fmean(self.times)

    @property
    def iqr(self) -> float:
        """Interquartile range of all blocks."""
        if len(self.times) == 1:
            return 0.0
        low, _, high = statistics.quantiles(self.times, n=4, method="inclusive")
        return high - low

    @property
    def relative_iqr(self) -> float:
        """Interquartile range over median."""
        return self.iqr / self.median

    @property
    def launch_medians(self) -> dict[str, float]:
        """Median of each launch."""
        return {group.launch: statistics.median(self._times(group)) for group in self.launches}

    @property
    def estimate(self) -> Spread:
        """Median with its 95 % interval, each launch counting once.

        Three launches or more give an interval of their medians. That of a single launch is from
        the order of its samples, and says nothing about other launches. Where all values are equal,
        or too few, nothing is known and there is none.
        """
        if len(self.launches) > 1:
            over = spread(tuple(self.launch_medians.values()))
            return over if over.low != over.high else replace(over, low=None, high=None)
        low, high = order_interval(self.times) or (None, None)
        if low == high:
            low, high = None, None
        return Spread(centre=self.median, low=low, high=high, launch_count=1)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to keep in mind about these times, as text."""
        said = []
        share = f"the interquartile range is {self.relative_iqr:.1%} of the median"
        if self.relative_iqr >= DISTURBANCE:
            said.append(f"{share}: something else keeps this machine busy")
        elif self.relative_iqr >= FLUCTUATION:
            said.append(f"{share}: times fluctuate")
        if self.unmet_threshold is not None:
            limit = f"{self.unmet_threshold:.1%} of the median"
            said.append(f"time was up before the interquartile range fell below {limit}")
        return tuple(said)

    def __str__(self) -> str:
        told = self.estimate
        unit = select_unit(told.centre)
        words = [f"median {told.centre / unit.size_s:.4g} {unit.symbol}"]
        if told.low is not None and told.high is not None:
            where = "within one launch" if told.launch_count == 1 else "over launches"
            low, high = told.low / unit.size_s, told.high / unit.size_s
            words.append(f"95 % interval {where} {low:.4g} to {high:.4g} {unit.symbol}")
        words += [
            f"launches {told.launch_count}",
            f"blocks {len(self.times)}",
            f"calls per block {self.number_per_run}",
            f"threads {self.task.num_threads}",
        ]
        return "\n  ".join((self.task.row_name, ", ".join(words), *self.warnings))

    def _times(self, group: LaunchTimes) -> tuple[float, ...]:
        return tuple(time / self.number_per_run for time in group.raw_times_s)


def merge(timings: Iterable[Timing]) -> list[Timing]:
    """Bring replicates of a task together, first seen first; launches of one name become one."""
    replicates: dict[Task, list[Timing]] = {}
    for timing in timings:
        replicates.setdefault(timing.task, []).append(timing)
    return [_merged(group) if len(group) > 1 else group[0] for group in replicates.values()]


def _merged(replicates: Sequence[Timing]) -> Timing:
    by_launch: dict[str, list[float]] = defaultdict(list)
    for timing in replicates:
        for group in timing.launches:
            by_launch[group.launch] += [time / timing.number_per_run for time in group.raw_times_s]
    unmet = [t.unmet_threshold for t in replicates if t.unmet_threshold is not None]
    return Timing(
        task=replicates[0].task,
        number_per_run=1,
        launches=tuple(
            LaunchTimes(launch=name, raw_times_s=tuple(times)) for name, times in by_launch.items()
        ),
        unmet_threshold=max(unmet, default=None),
    )
