"""How far apart two launches must be to differ, and how close to be the same: presets and TOML."""

import math
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from records.errors import StudyError, shown
from records.files import read_text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

VERSION = 1
SOURCE = "thresholds"  # what errors call text that came from no file

Table = TypeVar("Table", bound="DataclassInstance")


def _ratio(default: float) -> float:
    """A limit of 0 or more."""
    return field(default=default, metadata={"most": math.inf})


def _share(default: float) -> float:
    """A limit from 0 to 1."""
    return field(default=default, metadata={"most": 1.0})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearGap:
    """`relative` is the least distance between two intervals, over the smaller bound."""

    relative: float = _ratio(0.005)


@dataclass(frozen=True, slots=True, kw_only=True)
class Same:
    """How close two centres must be, how much their intervals overlap, how noisy either may be."""

    center_relative: float = _ratio(0.005)
    overlap_fraction: float = _share(0.5)
    relative_dispersion_ceiling: float = _ratio(0.02)


@dataclass(frozen=True, slots=True, kw_only=True)
class RareSupport:
    """When a value is too rare to count as support, and how many samples may be left out so."""

    sample_fraction: float = _share(0.001)
    max_removed_sample_fraction: float = _share(0.01)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bulk:
    """Share of the samples, and of the distinct values, that the other side must have nearby."""

    sample_coverage: float = _share(0.97)
    support_coverage: float = _share(0.80)
    rare_support: RareSupport = field(default_factory=RareSupport)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """All limits of a judgement."""

    clear_gap: ClearGap = field(default_factory=ClearGap)
    same: Same = field(default_factory=Same)
    bulk: Bulk = field(default_factory=Bulk)


PRESETS: Mapping[str, Thresholds] = {
    "default": Thresholds(),
    "strict": Thresholds(
        clear_gap=ClearGap(relative=0.01),
        same=Same(center_relative=0.0025, overlap_fraction=0.75, relative_dispersion_ceiling=0.01),
        bulk=Bulk(
            sample_coverage=0.995,
            support_coverage=0.90,
            rare_support=RareSupport(max_removed_sample_fraction=0.005),
        ),
    ),
    "permissive": Thresholds(
        clear_gap=ClearGap(relative=0.0025),
        same=Same(center_relative=0.01, overlap_fraction=0.25, relative_dispersion_ceiling=0.05),
        bulk=Bulk(
            sample_coverage=0.90,
            support_coverage=0.60,
            rare_support=RareSupport(max_removed_sample_fraction=0.02),
        ),
    ),
}


def read_thresholds(source: Path | str | None = None, preset: str | None = None) -> Thresholds:
    """Thresholds from TOML, a file or the text itself, laid over a preset.

    The preset given here comes before the one that the TOML names; a key in the TOML comes before
    both.
    """
    name = str(source) if isinstance(source, Path) else SOURCE
    document = {"version": VERSION} if source is None else _document(source, name)
    tables = dict(document)
    _check_version(tables.pop("version", None), name)
    named = _preset(tables.pop("preset", {"name": "default"}), name)
    base = named if preset is None else _known_preset(preset, "preset", name)
    return _laid_over(base, tables, (), name)


def to_toml(thresholds: Thresholds) -> str:
    """TOML that `read_thresholds` reads back to the same thresholds, over any preset."""
    return "\n".join((f"version = {VERSION}", *_lines(thresholds, ()))) + "\n"


def _lines(table: "DataclassInstance", path: Sequence[str]) -> list[str]:
    values = {entry.name: getattr(table, entry.name) for entry in fields(table)}
    numbers = {key: value for key, value in values.items() if not is_dataclass(value)}
    lines = ["", f"[{'.'.join(path)}]"] if numbers else []
    lines += [f"{key} = {float(value)!r}" for key, value in numbers.items()]
    for key, value in values.items():
        if key not in numbers:
            lines += _lines(value, (*path, key))
    return lines


def _document(source: Path | str, name: str) -> Mapping[str, object]:
    try:
        text = read_text(source) if isinstance(source, Path) else source
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"{name}: cannot be read: {error}") from error
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise StudyError(f"{name}: not TOML: {error}") from error


def _check_version(version: object, name: str) -> None:
    if version is None:
        raise StudyError(f"{name}: version is missing; write version = {VERSION}")
    if type(version) is not int or version != VERSION:
        raise StudyError(f"{name}: version = {shown(version)} is unknown; write {VERSION}")


def _preset(table: object, name: str) -> Thresholds:
    if not isinstance(table, dict) or table.keys() != {"name"}:
        raise StudyError(f"{name}: preset = {shown(table)}; write [preset] with a name, no more")
    return _known_preset(table["name"], "preset.name", name)


def _known_preset(value: object, key: str, name: str) -> Thresholds:
    if isinstance(value, str) and value in PRESETS:
        return PRESETS[value]
    raise StudyError(f"{name}: {key} = {shown(value)} is unknown; use one of {', '.join(PRESETS)}")


def _laid_over(base: Table, table: Mapping[str, object], path: Sequence[str], name: str) -> Table:
    """The base with the values of a TOML table, and of the tables inside it, in their place."""
    known = {entry.name: entry for entry in fields(base)}
    changes: dict[str, object] = {}
    for key, value in table.items():
        full, current = ".".join((*path, key)), getattr(base, key, None)
        if key not in known:
            allowed = [*known] if path else ["version", "preset", *known]
            raise StudyError(f"{name}: {full} is unknown; use one of {', '.join(allowed)}")
        if not is_dataclass(current) or isinstance(current, type):
            changes[key] = _number(value, known[key], f"{name}: {full}")
        elif isinstance(value, dict):
            changes[key] = _laid_over(current, value, (*path, key), name)
        else:
            raise StudyError(f"{name}: {full} = {shown(value)} is not a table; write [{full}]")
    return replace(base, **changes)


def _number(value: object, entry: "Field[object]", where: str) -> float:
    most = entry.metadata["most"]
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    if 0 <= number <= min(most, sys.float_info.max):  # an integer may be more than a float holds
        return float(number)
    allowed = "from 0 to 1" if most == 1 else "of 0 or more"
    raise StudyError(f"{where} = {shown(value)} is not allowed; give a number {allowed}")
