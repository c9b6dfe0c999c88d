"""Match the benchmarks, devices and states of two nvbench result files and compare them."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self, TypeAlias

from evaluator.timing.nvbench.read import (
    NvbenchBenchmark,
    NvbenchDevice,
    NvbenchDocument,
    NvbenchState,
    read_document,
)
from evaluator.timing.screening.decide import Judgement, judge
from evaluator.timing.screening.estimate import Thresholds
from records.errors import StudyError, shown

_Judge: TypeAlias = Callable[[NvbenchState, NvbenchState], Judgement]
_NAMED: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Benchmarks to compare, all where none is named, and by axis the values of their states."""

    benchmarks: frozenset[str] = frozenset()
    values: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, benchmarks: Iterable[str], axes: Iterable[str]) -> Self:
        """Filters by names and by texts `AXIS=VALUE`; several values of an axis are alternatives.

        Raises StudyError for a text that is none.
        """
        values = defaultdict[str, set[str]](set)
        for text in axes:
            axis, _, value = (part.strip() for part in text.partition("="))
            if not (axis and value):
                raise StudyError(f"-a {shown(text)} is not a filter; write AXIS=VALUE")
            values[axis].add(value)
        return cls(
            benchmarks=frozenset(benchmarks),
            values={axis: frozenset(each) for axis, each in values.items()},
        )

    def selects(self, benchmark: str) -> bool:
        """Whether a benchmark of this name is to be compared."""
        return not self.benchmarks or benchmark in self.benchmarks

    def admits(self, state: NvbenchState) -> bool:
        """Whether a state of such a benchmark is: its values as the file has them, or as shown."""
        own = {axis.name: {axis.value, axis.shown} for axis in state.axes}
        return all(values & own.get(axis, set()) for axis, values in self.values.items())

    def check(self, benchmarks: Sequence[NvbenchBenchmark]) -> None:
        """Raise StudyError for a name or a value that none of these benchmarks has."""
        _check_known("-b", self.benchmarks, dict.fromkeys(each.name for each in benchmarks))
        asked = [each for each in benchmarks if self.selects(each.name)]
        axes = [axis for each in asked for state in each.states for axis in state.axes]
        _check_known("-a", self.values, dict.fromkeys(axis.name for axis in axes))
        for name, values in self.values.items():
            known = [text for a in axes if a.name == name for text in (a.shown, a.value)]
            _check_known(f"-a {name}=", values, dict.fromkeys(known))


def _check_known(option: str, asked: Iterable[str], known: Iterable[str]) -> None:
    there = list(known)
    for each in sorted(asked):
        if each not in there:
            names = ", ".join(map(shown, there[:_NAMED])) or "none"
            raise StudyError(f"{option} {shown(each)} is in neither file; known: {names}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRow:
    """What was found of two runs of the same state; `occurrence` counts equal states from 0."""

    reference: NvbenchState
    candidate: NvbenchState
    occurrence: int
    occurrence_count: int
    judgement: Judgement


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkSection:
    """The rows of one benchmark on one pair of devices; None for a benchmark that used none."""

    reference: NvbenchDocument
    candidate: NvbenchDocument
    benchmark: str
    axis_names: tuple[str, ...]
    reference_device: NvbenchDevice | None
    candidate_device: NvbenchDevice | None
    rows: tuple[StateRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFiles:
    """What was found, in the order of the candidate's files, and what to keep in mind."""

    sections: tuple[BenchmarkSection, ...]
    warnings: tuple[str, ...]

    @property
    def rows(self) -> tuple[StateRow, ...]:
        """The rows of all sections."""
        return tuple(row for section in self.sections for row in section.rows)


def compare_files(
    reference: Path,
    candidate: Path,
    filters: Filters | None = None,
    thresholds: Thresholds | None = None,
) -> ComparedFiles:
    """Judge each state of the candidate against the same state of the reference.

    Both are result files, or folders of them that are paired by name; devices are paired by their
    position. Raises StudyError where nothing can be compared, equal states or devices are not as
    many on both sides, or a filter names what is not there.
    """
    filters, limits = filters or Filters(), thresholds or Thresholds()
    files, warnings = _paired_files(reference, candidate)
    documents = [(read_document(one), read_document(other)) for one, other in files]
    both = [document for pair in documents for document in pair]
    filters.check([benchmark for document in both for benchmark in document.benchmarks])
    warnings += [warning for document in both for warning in document.warnings]

    def judge_states(old: NvbenchState, new: NvbenchState) -> Judgement:
        """Judge one pair; the raw samples of one pair at a time are in memory."""
        (before, wrong), (after, wrong_too) = old.measured(), new.measured()
        warnings.extend((*wrong, *wrong_too))
        return judge(before, after, limits)

    sections = list[BenchmarkSection]()
    for one, other in documents:
        left, right = (_Side(document=each, filters=filters) for each in (one, other))
        warnings += (*_different_devices(one, other), *_one_sided(left, right))
        sections += _sections(left, right, judge_states)
    if not any(section.rows for section in sections):
        raise StudyError(
            f"{reference} and {candidate} have no state in common to compare; give results of the "
            f"same benchmarks, or fewer filters"
        )
    return ComparedFiles(sections=tuple(sections), warnings=tuple(dict.fromkeys(warnings)))


def _different_devices(reference: NvbenchDocument, candidate: NvbenchDocument) -> Iterator[str]:
    """How the devices of two files differ, if they do; raises StudyError for other numbers."""
    left, right = reference.devices, candidate.devices
    if len(left) != len(right):
        raise StudyError(
            f"{reference.path} and {candidate.path}: {len(left)} devices on one side and "
            f"{len(right)} on the other; run both on as many, as with nvbench --devices 0"
        )
    different = {
        key: None
        for one, other in zip(left, right, strict=True)
        for key in sorted({*one.properties, *other.properties})
        if one.properties.get(key) != other.properties.get(key)
    }
    if different:
        yield f"{reference.path} and {candidate.path}: devices differ in {', '.join(different)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """A file, and what of it is to be compared."""

    document: NvbenchDocument
    filters: Filters

    def benchmarks(self) -> dict[str, list[NvbenchBenchmark]]:
        """By name; a file may have several of one name."""
        named = defaultdict[str, list[NvbenchBenchmark]](list)
        for each in self.document.benchmarks:
            if self.filters.selects(each.name):
                named[each.name].append(each)
        return dict(named)

    def device(self, number: int | None) -> NvbenchDevice | None:
        """What the file says of a device; raises StudyError where it does not have it."""
        if number is None:
            return None
        for each in self.document.devices:
            if each.id == number:
                return each
        raise StudyError(
            f"{self.document.path}: a benchmark ran on device {number}, which it lacks"
        )

    def states(self, benchmark: NvbenchBenchmark, number: int | None) -> list[NvbenchState]:
        """Those on a device that were asked for."""
        return [
            state
            for state in benchmark.states
            if state.device == number and self.filters.admits(state)
        ]


def _one_sided(left: _Side, right: _Side) -> list[str]:
    """Benchmarks that only one of the files has."""
    old, new = left.benchmarks(), right.benchmarks()
    return [
        f"{(left if name in old else right).document.path}: "
        f"benchmark {shown(name)} is in this file only"
        for name in {**new, **old}
        if (name in old) is not (name in new)
    ]


def _sections(left: _Side, right: _Side, judge_states: _Judge) -> Iterator[BenchmarkSection]:
    """Pair benchmarks, devices and states of two files, in the order of the candidate's."""
    benchmarks = left.benchmarks()
    for name, new in right.benchmarks().items():
        old = benchmarks.get(name)
        if old is None:
            continue
        _check_equal(left, right, f"benchmark {shown(name)}", len(old), len(new))
        for one, other in zip(old, new, strict=True):
            # A benchmark that used no device has one place for its states.
            ids = one.device_ids or (None,), other.device_ids or (None,)
            _check_equal(left, right, f"a device of benchmark {shown(name)}", *map(len, ids))
            for old_id, new_id in zip(*ids, strict=True):
                sides = left.states(one, old_id), right.states(other, new_id)
                before, after = (Counter(state.key for state in states) for states in sides)
                for state in (*sides[1], *sides[0]):
                    what = f"state {shown(state.name)} of benchmark {shown(name)}"
                    _check_equal(left, right, what, before[state.key], after[state.key])
                yield BenchmarkSection(
                    reference=left.document,
                    candidate=right.document,
                    benchmark=name,
                    axis_names=other.axis_names,
                    reference_device=left.device(old_id),
                    candidate_device=right.device(new_id),
                    rows=tuple(_rows(*sides, judge_states)),
                )


def _check_equal(left: _Side, right: _Side, what: str, left_count: int, right_count: int) -> None:
    if left_count != right_count:
        raise StudyError(
            f"{what} is {left_count} times in {left.document.path} and {right_count} times in "
            f"{right.document.path}; measure the same on both sides, or choose with -b and -a"
        )


def _rows(
    old: list[NvbenchState], new: list[NvbenchState], judge_states: _Judge
) -> Iterator[StateRow]:
    """States of equal keys by their order; both sides have as many of each."""
    alike = defaultdict[object, list[NvbenchState]](list)
    for state in old:
        alike[state.key].append(state)
    paired = Counter[object]()
    for state in new:
        partners, place = alike[state.key], paired[state.key]
        paired[state.key] += 1
        yield StateRow(
            reference=partners[place],
            candidate=state,
            occurrence=place,
            occurrence_count=len(partners),
            judgement=judge_states(partners[place], state),
        )


def _paired_files(reference: Path, candidate: Path) -> tuple[list[tuple[Path, Path]], list[str]]:
    if reference.is_dir() != candidate.is_dir():
        raise StudyError(
            f"{reference} and {candidate}: one is a folder and the other is not; give two files "
            f"or two folders"
        )
    if not reference.is_dir():
        return [(reference, candidate)], []
    names = [_result_names(folder) for folder in (reference, candidate)]
    common = sorted(names[0] & names[1])
    if not common:
        raise StudyError(
            f"{reference} and {candidate} have no .json file of the same name that is not empty; "
            f"give the folders that nvbench wrote into"
        )
    lonely = sorted(names[0] ^ names[1])
    warnings = [f"{name} is in one of the two folders only" for name in lonely]
    return [(reference / name, candidate / name) for name in common], warnings


def _result_names(folder: Path) -> set[str]:
    try:
        return {
            path.name
            for path in folder.iterdir()
            if path.suffix == ".json" and path.is_file() and path.stat().st_size > 0
        }
    except OSError as error:
        raise StudyError(f"{folder} cannot be read: {error}; check its permissions") from error
