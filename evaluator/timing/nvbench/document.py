"""What a result file of nvbench tells, as values to compare."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from evaluator.timing.interval.summary import Channel, Samples, Summary, Unusable
from evaluator.timing.nvbench.samples import SampleFile, Unread


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class AxisValue:
    """Where a state stands on one axis: as the file has it, and as people are shown it."""

    name: str
    type: str
    value: str
    shown: str = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One run of a benchmark; `name` is without its device, `summary` without raw samples."""

    name: str
    device: int | None
    axes: tuple[AxisValue, ...]
    summary: Summary
    times: SampleFile | None = None
    clocks: SampleFile | None = None

    @property
    def key(self) -> tuple[str, tuple[AxisValue, ...]]:
        """What another run of the same state has too."""
        return self.name, tuple(sorted(self.axes))

    def measured(self) -> tuple[Summary, tuple[str, ...]]:
        """The summary with the raw samples, read now, and what is wrong with their files."""
        times, clocks = (
            None if file is None else file.read() for file in (self.times, self.clocks)
        )
        unread = {
            channel: read
            for channel, read in ((Channel.TIMES, times), (Channel.CLOCKS, clocks))
            if isinstance(read, Unread)
        }
        summary = replace(
            self.summary,
            times_s=_samples(times),
            clocks_hz=_samples(clocks),
            unusable=tuple(
                Unusable(channel=channel, why=each.why, is_gone=not each.present)
                for channel, each in unread.items()
            ),
        )
        return summary, tuple(each.warning for each in unread.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A benchmark with all its states, in the order of the file."""

    name: str
    device_ids: tuple[int, ...]
    axis_names: tuple[str, ...]
    states: tuple[State, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An accelerator; `properties` has all that the file says of it, each value as JSON."""

    id: int
    name: str
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A result file; `warnings` is what a reader of its comparison should know."""

    path: Path
    devices: tuple[Device, ...]
    benchmarks: tuple[Benchmark, ...]
    warnings: tuple[str, ...] = ()


def _samples(read: Samples | Unread | None) -> Samples | None:
    return None if isinstance(read, Unread) else read
