"""Compares result files of nvbench, state by state."""

from dataclasses import dataclass
from pathlib import Path

from evaluator.timing.interval.decision import judge
from evaluator.timing.interval.judgement import Judgement
from evaluator.timing.interval.thresholds import Thresholds
from evaluator.timing.nvbench.devices import DeviceChoice
from evaluator.timing.nvbench.errors import NvbenchError
from evaluator.timing.nvbench.filters import Filters
from evaluator.timing.nvbench.matching import Group, Pair, match
from evaluator.timing.nvbench.reader import read_document


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was found of one pair of states."""

    pair: Pair
    judgement: Judgement


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """All that was found of one benchmark on one pair of devices, a row for each of its pairs."""

    group: Group
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFiles:
    """What was found, in the order of the candidate's files, and what to keep in mind."""

    sections: tuple[Section, ...]
    warnings: tuple[str, ...]

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all sections."""
        return tuple(row for section in self.sections for row in section.rows)


def compare_files(
    reference: Path,
    candidate: Path,
    filters: Filters | None = None,
    devices: DeviceChoice | None = None,
    thresholds: Thresholds | None = None,
    *,
    confirmation: bool = True,
) -> ComparedFiles:
    """Judge each state of the candidate against the same state of the reference.

    Both are result files, or folders of them that are paired by name. Raises NvbenchError where
    nothing can be compared, and StudyError where a filter names what is not there.
    """
    filters, devices = filters or Filters(), devices or DeviceChoice()
    files, warnings = _paired_files(reference, candidate)
    documents = [(read_document(one), read_document(other)) for one, other in files]
    both = [document for pair in documents for document in pair]
    filters.check([benchmark for document in both for benchmark in document.benchmarks])
    warnings += [warning for document in both for warning in document.warnings]
    sections = list[Section]()
    for one, other in documents:
        matched = match(one, other, filters, devices)
        warnings += matched.warnings
        for group in matched.groups:
            rows, found = _judged(group, thresholds or Thresholds(), confirmation=confirmation)
            sections.append(Section(group=group, rows=rows))
            warnings += found
    if not any(section.rows for section in sections):
        raise NvbenchError(
            f"{reference} and {candidate} have no state in common to compare; give results of the "
            f"same benchmarks, or fewer filters"
        )
    return ComparedFiles(sections=tuple(sections), warnings=tuple(dict.fromkeys(warnings)))


def _judged(
    group: Group, thresholds: Thresholds, *, confirmation: bool
) -> tuple[tuple[Row, ...], list[str]]:
    """Rows of a group; the raw samples of one pair at a time are in memory."""
    rows, warnings = list[Row](), list[str]()
    for pair in group.pairs:
        reference, wrong = pair.reference.measured()
        candidate, wrong_too = pair.candidate.measured()
        judgement = judge(reference, candidate, thresholds, confirmation=confirmation)
        rows.append(Row(pair=pair, judgement=judgement))
        warnings += [*wrong, *wrong_too]
    return tuple(rows), warnings


def _paired_files(reference: Path, candidate: Path) -> tuple[list[tuple[Path, Path]], list[str]]:
    if reference.is_dir() != candidate.is_dir():
        raise NvbenchError(
            f"{reference} and {candidate}: one is a folder and the other is not; give two files "
            f"or two folders"
        )
    if not reference.is_dir():
        return [(reference, candidate)], []
    names = [_result_names(folder) for folder in (reference, candidate)]
    common = sorted(names[0] & names[1])
    if not common:
        raise NvbenchError(
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
        raise NvbenchError(f"{folder} cannot be read: {error}; check its permissions") from error
