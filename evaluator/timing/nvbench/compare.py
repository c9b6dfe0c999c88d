"""Match the benchmarks, devices and states of two nvbench result files and compare them."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, Self, TypeAlias

from evaluator.timing.nvbench.read import (
    AxisValue,
    NvbenchBenchmark,
    NvbenchDevice,
    NvbenchDocument,
    NvbenchState,
    read_document,
)
from evaluator.timing.screening.decide import Judgement, judge
from evaluator.timing.screening.estimate import Thresholds
from records.errors import StudyError, shown

FilterOption: TypeAlias = tuple[Literal["benchmark", "axis"], str]
"""One option of a command line: which, and what follows it."""
_Judge: TypeAlias = Callable[[NvbenchState, NvbenchState], Judgement]

_EXPONENT: Final = re.compile(r"[0-9]{1,2}", re.ASCII)
_POW2: Final = "[pow2]"
_LARGEST_EXPONENT: Final = 62
_NAMED: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisFilter:
    """States whose value on an axis is one of these; `text` is how it was asked for."""

    text: str
    axis: str
    values: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Self:
        """The filter that `AXIS=V`, `AXIS=[V,...]` or `AXIS[pow2]=EXPONENT` means."""
        axis, equals, wanted = (part.strip() for part in text.partition("="))
        listed = wanted.startswith("[") and wanted.endswith("]")
        values = [each.strip() for each in (wanted[1:-1].split(",") if listed else [wanted])]
        if axis.endswith(_POW2):
            axis = axis.removesuffix(_POW2).strip()
            values = [_power(each, text) for each in values]
        if not (axis and equals and all(values)):
            raise StudyError(f"-a {shown(text)} is not a filter; write AXIS=VALUE or AXIS=[A,B]")
        return cls(text=text, axis=axis, values=tuple(values))

    def admits(self, axes: Iterable[AxisValue]) -> bool:
        """Whether one of the values is there, as the file has it or as a table shows it."""
        return any(
            each.name == self.axis and not {each.value, each.shown}.isdisjoint(self.values)
            for each in axes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkFilter:
    """A benchmark asked for, None for all, and what all its states must meet."""

    benchmark: str | None = None
    axes: tuple[AxisFilter, ...] = ()

    def admits(self, benchmark: str, state: NvbenchState) -> bool:
        """Whether this state of this benchmark was asked for."""
        return self.benchmark in (None, benchmark) and all(
            each.admits(state.axes) for each in self.axes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Alternatives of which a state must meet one."""

    scopes: tuple[BenchmarkFilter, ...] = (BenchmarkFilter(),)

    @classmethod
    def of(cls, words: Sequence[FilterOption]) -> Self:
        """The filters that these options mean in their order.

        An axis before any benchmark is for all, one after a benchmark for that benchmark only.
        Raises StudyError for an option that means nothing or contradicts another.
        """
        everywhere, scopes = BenchmarkFilter(), list[BenchmarkFilter]()
        for kind, text in words:
            if kind == "benchmark":
                scopes.append(replace(everywhere, benchmark=text))
            elif scopes:
                scopes[-1] = _narrowed(scopes[-1], text)
            else:
                everywhere = _narrowed(everywhere, text)
        return cls(scopes=tuple(scopes) or (everywhere,))

    def admits(self, benchmark: str, state: NvbenchState) -> bool:
        """Whether this state of this benchmark is to be compared."""
        return any(scope.admits(benchmark, state) for scope in self.scopes)

    def selects(self, benchmark: str) -> bool:
        """Whether any state of this benchmark could be."""
        return any(scope.benchmark in (None, benchmark) for scope in self.scopes)

    def check(self, benchmarks: Sequence[NvbenchBenchmark]) -> None:
        """Raise StudyError for a name or a value that none of these benchmarks has."""
        for scope in self.scopes:
            asked = [each for each in benchmarks if scope.benchmark in (None, each.name)]
            if scope.benchmark is not None and not asked:
                raise _unknown(
                    f"-b {shown(scope.benchmark)}: there is no such benchmark",
                    (each.name for each in benchmarks),
                )
            for each in scope.axes:
                _check_axis(each, asked)


def _power(exponent: str, text: str) -> str:
    if not _EXPONENT.fullmatch(exponent) or int(exponent) > _LARGEST_EXPONENT:
        raise StudyError(
            f"-a {shown(text)}: an exponent of two is a number from 0 to {_LARGEST_EXPONENT}"
        )
    return str(2 ** int(exponent))


def _narrowed(scope: BenchmarkFilter, text: str) -> BenchmarkFilter:
    """The scope with one more filter, unless no value could meet it and those it has."""
    new = AxisFilter.of(text)
    for old in scope.axes:
        if old.axis == new.axis and set(old.values).isdisjoint(new.values):
            raise StudyError(
                f"-a {shown(old.text)} and -a {shown(new.text)} exclude each other; for both "
                f"values write AXIS=[A,B]"
            )
    return replace(scope, axes=(*scope.axes, new))


def _check_axis(wanted: AxisFilter, benchmarks: Sequence[NvbenchBenchmark]) -> None:
    axes = [axis for each in benchmarks for state in each.states for axis in state.axes]
    own = [axis for axis in axes if axis.name == wanted.axis]
    if not own:
        raise _unknown(
            f"-a {shown(wanted.text)}: there is no such axis", (axis.name for axis in axes)
        )
    for value in wanted.values:
        if not replace(wanted, values=(value,)).admits(own):
            raise _unknown(
                f"-a {shown(wanted.text)}: no state is at {shown(value)}",
                (axis.shown for axis in own),
            )


def _unknown(what: str, names: Iterable[str]) -> StudyError:
    known = ", ".join(shown(name) for name in [*dict.fromkeys(names)][:_NAMED]) or "none"
    return StudyError(f"{what}; known: {known}")


_NUMBER: Final = re.compile(r"\s*[0-9]{1,9}\s*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChoice:
    """Ids of both sides, paired by position, None for all; one may be there several times."""

    reference: tuple[int, ...] | None = None
    candidate: tuple[int, ...] | None = None
    ignore_difference: bool = False

    @classmethod
    def of(
        cls, reference: str = "all", candidate: str = "all", *, ignore_difference: bool = False
    ) -> Self:
        """The choice that `all` or numbers with commas between them mean for each side."""
        return cls(
            reference=_ids("--reference-devices", reference),
            candidate=_ids("--candidate-devices", candidate),
            ignore_difference=ignore_difference,
        )

    def warnings(self, reference: NvbenchDocument, candidate: NvbenchDocument) -> tuple[str, ...]:
        """How the devices of two files differ, if they may.

        Raises StudyError where they may not: unless they were chosen, or it is to be ignored.
        """
        left = _chosen(reference, self.reference)
        right = _chosen(candidate, self.candidate)
        if len(left) != len(right):
            raise StudyError(
                f"{reference.path} and {candidate.path}: {len(left)} devices on one side and "
                f"{len(right)} on the other; choose as many with --reference-devices and "
                f"--candidate-devices"
            )
        different = {
            key: None
            for one, other in zip(left, right, strict=True)
            for key in sorted({*one.properties, *other.properties})
            if one.properties.get(key) != other.properties.get(key)
        }
        if not different:
            return ()
        which = ", ".join(different)
        warning = f"{reference.path} and {candidate.path}: devices differ in {which}"
        if self.ignore_difference or (self.reference, self.candidate) != (None, None):
            return (warning,)
        raise StudyError(
            f"{warning}; compare them all the same with --ignore-devices, or choose some with "
            f"--reference-devices and --candidate-devices"
        )


def device(document: NvbenchDocument, number: int) -> NvbenchDevice:
    """The device of this id. Raises StudyError where the file does not have it."""
    for each in document.devices:
        if each.id == number:
            return each
    known = ", ".join(str(each.id) for each in document.devices) or "none"
    raise StudyError(f"{document.path}: there is no device {number}; choose of {known}")


def _ids(option: str, text: str) -> tuple[int, ...] | None:
    if text.strip().lower() == "all":
        return None
    items = text.split(",")
    if not all(_NUMBER.fullmatch(each) for each in items):
        raise StudyError(f"{option} {shown(text)}: give `all`, or numbers such as 0 or 0,2")
    return tuple(int(each) for each in items)


def _chosen(document: NvbenchDocument, ids: tuple[int, ...] | None) -> Sequence[NvbenchDevice]:
    return document.devices if ids is None else [device(document, number) for number in ids]


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
    devices: DeviceChoice | None = None,
    thresholds: Thresholds | None = None,
) -> ComparedFiles:
    """Judge each state of the candidate against the same state of the reference.

    Both are result files, or folders of them that are paired by name. Raises StudyError where
    nothing can be compared, equal states or devices are not as many on both sides, or a filter
    names what is not there.
    """
    filters, devices = filters or Filters(), devices or DeviceChoice()
    limits = thresholds or Thresholds()
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
        warnings += devices.warnings(one, other)
        left = _Side(document=one, chosen=devices.reference, filters=filters)
        right = _Side(document=other, chosen=devices.candidate, filters=filters)
        warnings += _one_sided(left, right)
        sections += _sections(left, right, judge_states)
    if not any(section.rows for section in sections):
        raise StudyError(
            f"{reference} and {candidate} have no state in common to compare; give results of the "
            f"same benchmarks, or fewer filters"
        )
    return ComparedFiles(sections=tuple(sections), warnings=tuple(dict.fromkeys(warnings)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """A file, and what of it is to be compared."""

    document: NvbenchDocument
    chosen: tuple[int, ...] | None
    filters: Filters

    def benchmarks(self) -> dict[str, list[NvbenchBenchmark]]:
        """By name; a file may have several of one name."""
        named = defaultdict[str, list[NvbenchBenchmark]](list)
        for each in self.document.benchmarks:
            if self.filters.selects(each.name):
                named[each.name].append(each)
        return dict(named)

    def device_ids(self, benchmark: NvbenchBenchmark) -> Sequence[int | None]:
        """The devices to compare; a benchmark that used none has one place for its states."""
        own = benchmark.device_ids
        if self.chosen is None or not own:
            return own or (None,)
        for number in self.chosen:
            if number not in own:
                what = f"benchmark {shown(benchmark.name)} did not run on device {number}"
                known = ", ".join(map(str, own))
                raise StudyError(
                    f"{self.document.path}: {what}; choose of {known}, or leave it out with -b"
                )
        return self.chosen

    def device(self, number: int | None) -> NvbenchDevice | None:
        """What the file says of a device."""
        return None if number is None else device(self.document, number)

    def states(self, benchmark: NvbenchBenchmark, number: int | None) -> list[NvbenchState]:
        """Those on a device that were asked for."""
        return [
            state
            for state in benchmark.states
            if state.device == number and self.filters.admits(benchmark.name, state)
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
            ids = left.device_ids(one), right.device_ids(other)
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
