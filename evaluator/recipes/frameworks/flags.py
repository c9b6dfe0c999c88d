"""Recorded flags of a framework's parser, by version: what a list of arguments must be to pass it.

`schemas/NAME-VERSION.json` is written by `benchmarks/frameworks/record_flags.py` from the parser
itself. The parser has the last word; the recording is there where the framework is not installed.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Self

import msgspec

from records.errors import StudyError, shown
from records.study import Value

SCHEMAS = "schemas"
_NEGATIVE_NUMBER = re.compile(r"-\.?\d")


class Flag(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One flag: what it takes, its default, and `also`, its other spellings.

    `many` values are taken up to the next flag; a switch takes none, and may have a `negative`.
    """

    takes: Literal["int", "float", "text", "switch", "bool", "many"] = "text"
    default: Value | None = None
    choices: tuple[Value, ...] = ()
    also: tuple[str, ...] = ()
    negative: str | None = None


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    framework: str
    version: str
    flags: dict[str, Flag]
    style: Literal["dashes", "pairs"] = "dashes"


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags of one version of a framework; `style` "pairs" is `name=value` without dashes."""

    framework: str
    version: str
    flags: dict[str, Flag]
    style: Literal["dashes", "pairs"] = "dashes"

    @classmethod
    def of(cls, framework: str, version: str | None) -> tuple[Self, str | None]:
        """Return the recording of a version, the newest for None; a caveat if it is another's."""
        known = recorded_versions(framework)
        if not known:
            raise StudyError(f"no flags of {framework} are recorded")
        if version in known:
            return cls._read(framework, version or ""), None
        nearest = known[-1] if version is None else _nearest(version, known)
        flags = cls._read(framework, nearest)
        if version is None:
            return flags, None
        return flags, (
            f"{framework} {version} is not one of the versions whose flags are recorded "
            f"({', '.join(known)}); those of {nearest} are used"
        )

    @classmethod
    def _read(cls, framework: str, version: str) -> Self:
        found = _document(framework, version)
        return cls(found.framework, found.version, found.flags, found.style)

    def named(self, name: str) -> tuple[str, Flag] | None:
        """Return the flag that is spelled this way, with its first spelling."""
        names = _spellings(self.framework, self.version)
        found = names.get(_folded(name))
        return None if found is None else (found, self.flags[found])

    def split(self, words: Sequence[str]) -> Iterator[tuple[str, str | None, tuple[str, ...]]]:
        """Yield each argument as its flag's first spelling, its value and its words.

        The flag is the word itself where it is unknown or no flag; a switch has "true" or "false".
        """
        rest = list(words)
        while rest:
            word = rest.pop(0)
            name, equals, value = word.partition("=")
            is_flag = name.startswith("-") and not _NEGATIVE_NUMBER.match(name)
            is_pair = self.style == "pairs" and bool(equals)
            found = self.named(name) if is_flag or is_pair else None
            if found is None:
                yield name if is_flag or is_pair else word, value if equals else None, (word,)
                continue
            spelling, flag = found
            if equals:
                yield spelling, value, (word,)
            elif flag.takes == "switch":
                off = flag.negative is not None and _folded(name) == _folded(flag.negative)
                yield spelling, "false" if off else "true", (word,)
            else:
                taken = [word]
                most = len(rest) if flag.takes == "many" else 1
                while rest and len(taken) <= most and not self._starts(rest[0]):
                    taken.append(rest.pop(0))
                yield spelling, " ".join(taken[1:]) if len(taken) > 1 else None, tuple(taken)

    def faults(self, words: Sequence[str]) -> Iterator[str]:
        """Yield what the parser would refuse, as far as the recording shows."""
        for name, value, taken in self.split(words):
            found = self.named(name)
            if found is None:
                if taken[0].startswith("-") or (self.style == "pairs" and "=" in taken[0]):
                    close = get_close_matches(name, self.flags, n=1)
                    hint = f"; did you mean {close[0]}?" if close else ""
                    yield f"{self.framework} {self.version} has no {shown(name)}{hint}"
            elif found[1].takes == "switch" and "=" in taken[0]:
                yield f"{name} takes no value"
            elif fault := _value_fault(found[1], value):
                yield f"{name} {fault}"

    def _starts(self, word: str) -> bool:
        """Whether a word begins another argument."""
        return word.startswith("-") and not _NEGATIVE_NUMBER.match(word)


def folder_of(framework: str) -> Path:
    """Return the folder of a framework's module, where everything that is data lies too."""
    found = find_spec(f"evaluator.recipes.frameworks.{framework}")
    if found is None or found.origin is None:
        raise StudyError(f"{framework!r} is no framework")
    return Path(found.origin).parent


def recorded_versions(framework: str) -> list[str]:
    """Return the versions of a framework whose flags are recorded, the oldest first."""
    names = (path.name for path in (folder_of(framework) / SCHEMAS).iterdir())
    found = (re.fullmatch(rf"{re.escape(framework)}-(.+)\.json", name) for name in names)
    return sorted((match[1] for match in found if match), key=_numbers)


def _value_fault(flag: Flag, value: str | None) -> str | None:
    if value is None:
        return None if flag.takes in {"switch", "bool", "many"} else "takes a value"
    if flag.choices and flag.takes != "many" and value not in map(str, flag.choices):
        return f"is one of {', '.join(map(str, flag.choices))}, not {shown(value)}"
    kinds = {"int": int, "float": float}
    if flag.takes in kinds and value not in map(str, flag.choices):
        try:
            kinds[flag.takes](value)
        except ValueError:
            if value.lower() not in {"none", "null", "auto"}:
                return (
                    f"takes {'a whole' if flag.takes == 'int' else 'a'} number, not {shown(value)}"
                )
    return None


@cache
def _document(framework: str, version: str) -> _Document:
    path = folder_of(framework) / SCHEMAS / f"{framework}-{version}.json"
    return msgspec.json.decode(path.read_bytes(), type=_Document)


@cache
def _spellings(framework: str, version: str) -> dict[str, str]:
    """Return the first spelling of each flag by all of its spellings, folded."""
    found: dict[str, str] = {}
    for name, flag in _document(framework, version).flags.items():
        for each in (name, *flag.also, *([flag.negative] if flag.negative else ())):
            found[_folded(each)] = name
    return found


def _folded(name: str) -> str:
    """A flag without the difference between dashes and underscores inside it."""
    bare = name.lstrip("-")
    return "-" * (len(name) - len(bare)) + bare.replace("-", "_")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def _nearest(version: str, known: Sequence[str]) -> str:
    """Return the last known version that is not newer, else the first one."""
    older = [each for each in known if _numbers(each) <= _numbers(version)]
    return older[-1] if older else known[0]


def write_flags(framework: str, version: str, flags: dict[str, Flag], style: str) -> str:
    """Return a recording as text, a line for each flag."""
    lines = (
        f"  {json.dumps(n)}: {msgspec.json.encode(f).decode()}" for n, f in sorted(flags.items())
    )
    head = {"framework": framework, "version": version, "style": style}
    return json.dumps(head)[:-1] + ', "flags": {\n' + ",\n".join(lines) + "\n}}\n"
