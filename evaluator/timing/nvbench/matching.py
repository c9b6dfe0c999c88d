"""Which states of two result files are runs of the same work."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from evaluator.timing.nvbench.devices import DeviceChoice, device
from evaluator.timing.nvbench.document import Benchmark, Device, Document, State
from evaluator.timing.nvbench.errors import NvbenchError
from evaluator.timing.nvbench.filters import Filters
from records.errors import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two runs of the same state; `occurrence` counts equal states from 0."""

    reference: State
    candidate: State
    occurrence: int = 0
    occurrence_count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Pairs of one benchmark on one pair of devices; None for a benchmark that used none."""

    reference: Document
    candidate: Document
    benchmark: str
    axis_names: tuple[str, ...]
    reference_device: Device | None
    candidate_device: Device | None
    pairs: tuple[Pair, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """What two files have in common, and what a reader should know of the rest."""

    groups: tuple[Group, ...]
    warnings: tuple[str, ...]


def match(
    reference: Document, candidate: Document, filters: Filters, devices: DeviceChoice
) -> Matched:
    """Pair the states of two files, in the order of the candidate's.

    Raises NvbenchError where equal states or devices are not as many on both sides.
    """
    warnings = [*devices.warnings(reference, candidate)]
    left = _Side(document=reference, chosen=devices.reference, filters=filters)
    right = _Side(document=candidate, chosen=devices.candidate, filters=filters)
    old, new = left.benchmarks(), right.benchmarks()
    groups = list[Group]()
    for name in {**new, **old}:
        if name not in old or name not in new:
            having = reference if name in old else candidate
            warnings.append(f"{having.path}: benchmark {shown(name)} is in this file only")
            continue
        if len(old[name]) != len(new[name]):
            raise _unequal(left, right, f"benchmark {shown(name)}", len(old[name]), len(new[name]))
        for one, other in zip(old[name], new[name], strict=True):
            groups += _groups(left, right, one, other)
    return Matched(groups=tuple(groups), warnings=tuple(warnings))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """A file, and what of it is to be compared."""

    document: Document
    chosen: tuple[int, ...] | None
    filters: Filters

    def benchmarks(self) -> dict[str, list[Benchmark]]:
        """By name; a file may have several of one name."""
        named = defaultdict[str, list[Benchmark]](list)
        for each in self.document.benchmarks:
            if self.filters.selects(each.name):
                named[each.name].append(each)
        return dict(named)

    def device_ids(self, benchmark: Benchmark) -> Sequence[int | None]:
        """The devices to compare; a benchmark that used none has one place for its states."""
        own = benchmark.device_ids
        if self.chosen is None or not own:
            return own or (None,)
        for number in self.chosen:
            if number not in own:
                what = f"benchmark {shown(benchmark.name)} did not run on device {number}"
                known = ", ".join(map(str, own))
                raise NvbenchError(
                    f"{self.document.path}: {what}; choose of {known}, or leave it out with -b"
                )
        return self.chosen

    def device(self, number: int | None) -> Device | None:
        """What the file says of a device."""
        return None if number is None else device(self.document, number)

    def states(self, benchmark: Benchmark, number: int | None) -> list[State]:
        """Those on a device that were asked for."""
        return [
            state
            for state in benchmark.states
            if state.device == number and self.filters.admits(benchmark.name, state)
        ]


def _groups(left: _Side, right: _Side, one: Benchmark, other: Benchmark) -> list[Group]:
    old_ids, new_ids = left.device_ids(one), right.device_ids(other)
    if len(old_ids) != len(new_ids):
        what = f"a device of benchmark {shown(one.name)}"
        raise _unequal(left, right, what, len(old_ids), len(new_ids))
    groups = list[Group]()
    for old_id, new_id in zip(old_ids, new_ids, strict=True):
        old, new = left.states(one, old_id), right.states(other, new_id)
        _check_counts(left, right, old, new, one.name)
        groups.append(
            Group(
                reference=left.document,
                candidate=right.document,
                benchmark=one.name,
                axis_names=other.axis_names,
                reference_device=left.device(old_id),
                candidate_device=right.device(new_id),
                pairs=_pairs(old, new),
            )
        )
    return groups


def _check_counts(
    left: _Side, right: _Side, old: Sequence[State], new: Sequence[State], benchmark: str
) -> None:
    counts = [Counter(state.key for state in states) for states in (old, new)]
    for state in (*new, *old):
        one, other = (count[state.key] for count in counts)
        if one != other:
            what = f"state {shown(state.name)} of benchmark {shown(benchmark)}"
            raise _unequal(left, right, what, one, other)


def _pairs(old: Sequence[State], new: Sequence[State]) -> tuple[Pair, ...]:
    """States of equal keys by their order, where both sides have as many of each."""
    equals = defaultdict[object, list[State]](list)
    for state in old:
        equals[state.key].append(state)
    seen = Counter[object]()
    pairs = list[Pair]()
    for state in new:
        among, place = equals[state.key], seen[state.key]
        seen[state.key] += 1
        pairs.append(
            Pair(
                reference=among[place],
                candidate=state,
                occurrence=place,
                occurrence_count=len(among),
            )
        )
    return tuple(pairs)


def _unequal(
    left: _Side, right: _Side, what: str, left_count: int, right_count: int
) -> NvbenchError:
    return NvbenchError(
        f"{what} is {left_count} times in {left.document.path} and {right_count} times in "
        f"{right.document.path}; measure the same on both sides, or choose with -b and -a"
    )
