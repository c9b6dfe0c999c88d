"""A YAML file with named fields: a CCL-Bench card or tuning file, only ever read."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeGuard

import yaml

from records.errors import StudyError, shown
from records.files import read_text

MAX_FILE_BYTES = 4 << 20
MAX_NODES = 100_000
MAX_DEPTH = 64
"""How many values a file may hold and how deep, once every alias (*name) is what it stands for."""
MOST_REPEATED = 5
"""Keys stated twice that are named, of all there are."""
# Safe constructors raise these for 2024-02-30 or !!bool maybe, which are scalars in no type.
NOT_YAML = (yaml.YAMLError, RecursionError, ValueError, KeyError, AttributeError)
UNSAID = ("", "N/A", "TBD")
_MERGE = "<<"
_NESTED_VALUE = "mapping values are not allowed"
_TAB = "found character '\\t'"


class _BoundedLoader(yaml.SafeLoader):
    """YAML in which aliases stand for what they name, within bounds.

    A few lines of aliases can stand for more than a machine can hold.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._node_count = 0
        self.repeated: list[str] = []
        """Keys that a table has twice, of which the last counts, with their lines."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._node_count += 1
        if self._node_count > MAX_NODES:
            raise yaml.YAMLError(f"over {MAX_NODES} values")
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.MappingNode):
            self._note_repeated(node)
        return node

    def _note_repeated(self, table: yaml.MappingNode) -> None:
        known: set[str] = set()
        for key, _ in table.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
            words = f"line {key.start_mark.line + 1} states {shown(name)} again"
            is_new = words not in self.repeated and len(self.repeated) < MOST_REPEATED
            if name in known and name != _MERGE and is_new:
                self.repeated.append(words)
            known.add(name)

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None:
            _check_size(node)
        return node


def _check_size(root: yaml.Node) -> None:
    """Refuse a document that is too large once its aliases are written out, or has no end."""
    sizes: dict[int, tuple[int, int]] = {}
    unfinished: set[int] = set()

    def measured(node: yaml.Node) -> tuple[int, int]:
        """Values in a node and how deep they go, with its aliases written out."""
        if id(node) in unfinished:
            raise yaml.YAMLError("an alias (*name) stands for something that holds the alias")
        if id(node) not in sizes:
            unfinished.add(id(node))
            inside = [measured(part) for part in _parts(node)]
            unfinished.discard(id(node))
            count = 1 + sum(count for count, _ in inside)
            depth = 1 + max((depth for _, depth in inside), default=0)
            if count > MAX_NODES:
                raise yaml.YAMLError(
                    f"over {MAX_NODES} values once its aliases (*name) are written out"
                )
            if depth > MAX_DEPTH:
                raise yaml.YAMLError(f"nested over {MAX_DEPTH} deep")
            sizes[id(node)] = count, depth
        return sizes[id(node)]

    measured(root)


def _parts(node: yaml.Node) -> Sequence[yaml.Node]:
    match node:
        case yaml.MappingNode(value=pairs):
            return [part for pair in pairs for part in pair]
        case yaml.SequenceNode(value=children):
            return [*children]
        case _:
            return []


class Card:
    """A YAML file whose fields are looked up by path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            text = read_text(path, MAX_FILE_BYTES)
        except (OSError, UnicodeDecodeError) as error:
            raise StudyError(f"{path}: cannot be read: {error}") from error
        try:
            loader = _BoundedLoader(text)
            document = loader.get_single_data()
        except NOT_YAML as error:
            raise StudyError(f"{path}: {_fault(error, text)}") from error
        if not isinstance(document, dict):
            raise StudyError(f"{path}: not a card: expected named fields, got {shown(document)}")
        self.fields: Mapping[object, object] = document
        self.repeated = tuple(loader.repeated)

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


def _fault(error: Exception, text: str) -> str:
    """What is wrong, in which line, and what to write instead where that is known."""
    problem = " ".join(str(getattr(error, "problem", None) or error).split())[:200]
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return f"not YAML: {problem}"
    line = text.splitlines()[mark.line] if mark.line < len(text.splitlines()) else ""
    advice = ""
    if problem.startswith(_NESTED_VALUE):
        name, _, value = line.partition(":")
        quoted = f"{name.strip()}: '{value.strip().replace(chr(39), 2 * chr(39))}'"
        advice = f"; a value that holds ': ' must be quoted, as in {shown(quoted)}"
    elif problem.startswith(_TAB) or "\t" in line[: len(line) - len(line.lstrip())]:
        advice = "; indent with spaces instead of tabs"
    return f"not YAML: line {mark.line + 1}: {problem}{advice}"
