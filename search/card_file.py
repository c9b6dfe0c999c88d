"""A YAML file with named fields: a CCL-Bench card or tuning file, only ever read."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeGuard

import yaml

from records.errors import StudyError, shown

MAX_FILE_BYTES = 1 << 20
MAX_GROWN_BYTES = 4 << 20
MOST_SHARED = 200
"""Scalars of a table that an alias may stand for, and characters of each."""
# Safe constructors raise these for 2024-02-30 or !!bool maybe, which are scalars in no type.
NOT_YAML = (yaml.YAMLError, RecursionError, ValueError, KeyError, AttributeError)
UNSAID = ("", "N/A", "TBD")


class _PlainLoader(yaml.SafeLoader):
    """YAML without aliases: a few lines of them can stand for more than a machine can hold."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not read; write the value out")
        return super().compose_node(parent, index)


class _GrownLoader(_PlainLoader):
    """YAML in which an alias stands for a small flat table, which cannot be made to grow."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if not self.check_event(yaml.AliasEvent):
            return super().compose_node(parent, index)
        node = self.anchors.get(self.peek_event().anchor)  # type: ignore[no-untyped-call]  # the stubs lack its type
        if not isinstance(node, yaml.MappingNode) or not _is_small(node):
            return super().compose_node(parent, index)
        return yaml.SafeLoader.compose_node(self, parent, index)


def _is_small(table: yaml.MappingNode) -> bool:
    scalars = [part for pair in table.value for part in pair]
    return len(scalars) <= MOST_SHARED and all(
        isinstance(part, yaml.ScalarNode) and len(part.value) <= MOST_SHARED for part in scalars
    )


class Card:
    """A YAML file whose fields are looked up by path; `grown` is one that a tool appended runs to.

    Such a card may be larger, and its runs may share tables.
    """

    def __init__(self, path: Path, *, grown: bool = False) -> None:
        self.path = path
        most_bytes = MAX_GROWN_BYTES if grown else MAX_FILE_BYTES
        loader = _GrownLoader if grown else _PlainLoader
        try:
            if path.stat().st_size > most_bytes:
                raise StudyError(f"{path}: over {most_bytes} bytes")
            document = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
        except (OSError, UnicodeDecodeError) as error:
            raise StudyError(f"{path}: cannot be read: {error}") from error
        except NOT_YAML as error:
            raise StudyError(f"{path}: not YAML: {_one_line(error)}") from error
        if not isinstance(document, dict):
            raise StudyError(f"{path}: not a card: expected named fields, got {shown(document)}")
        self.fields: Mapping[object, object] = document

    def get(self, *paths: str) -> object:
        """The first of these dotted paths that is there, or None."""
        for path in paths:
            value: object = self.fields
            for key in path.split("."):
                value = value.get(key) if isinstance(value, Mapping) else None
            if value is not None:
                return value
        return None

    def count(self, *paths: str) -> int:
        """A positive whole number; raises `StudyError` when it is missing or something else."""
        found = self.optional_count(*paths)
        if found is None:
            raise StudyError(f"{self.path}: {paths[0]} is missing; a card must give it")
        return found

    def optional_count(self, *paths: str) -> int | None:
        """A positive whole number, or None where the card does not say."""
        value = self.get(*paths)
        if value is None or value in UNSAID:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise StudyError(
                f"{self.path}: {paths[0]} is {shown(value)}, not a positive whole number"
            )
        return value

    def text(self, *paths: str) -> str | None:
        """A text, or None where the card does not say."""
        value = self.get(*paths)
        return None if value is None else str(value)

    def items(self, path: str) -> Sequence[Mapping[object, object]]:
        """A list of tables; raises `StudyError` when it is missing or something else."""
        value = self.get(path)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise StudyError(f"{self.path}: {path} must be a list of tables")
        return value


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a field is a number that a float can hold, and no truth value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
