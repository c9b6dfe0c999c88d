"""JSON texts into frozen values, by the types of their fields, with the standard library alone."""

import json
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from typing import TypeVar, get_args, get_origin, get_type_hints

_Value = TypeVar("_Value")


class JobError(ValueError):
    """A job that cannot be run as written; the message is one line that says which part."""


def parse(kind: type[_Value], text: str) -> _Value:
    """Read a value of a frozen class from JSON; raises `JobError` for any departure from it.

    Of tuples those of any length and one kind are known. Whole numbers are at least 1 unless the
    field's metadata has another `least`.
    """
    try:
        document: object = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise JobError(f"not JSON: {error}") from error
    return _build(kind, document, "job")


def _build(kind: type[_Value], document: object, name: str) -> _Value:
    if not isinstance(document, dict):
        raise _wrong(name, "an object", document)
    known = _known(kind)
    unknown = sorted(document.keys() - known.keys())
    if unknown:
        raise JobError(f"{name}: unknown {', '.join(unknown)}")
    missing = [f.name for f in known.values() if f.default is MISSING and f.name not in document]
    if missing:
        raise JobError(f"{name}: {missing[0]} is missing")
    hints = get_type_hints(kind)
    given = {
        key: _convert(hints[key], value, f"{name}: {key}", known[key].metadata.get("least", 1))
        for key, value in document.items()
    }
    return kind(**given)


def _known(kind: type) -> Mapping[str, Field[object]]:
    if not is_dataclass(kind):
        raise TypeError(f"{kind} has no fields")
    return {field.name: field for field in fields(kind)}


def _convert(hint: object, value: object, name: str, least: int) -> object:
    if isinstance(hint, types.UnionType):
        if value is None:
            return None
        hint = next(option for option in get_args(hint) if option is not types.NoneType)
    if get_origin(hint) is tuple:
        return _convert_all(get_args(hint)[0], value, name, least)
    if hint is bool:
        return _expected(isinstance(value, bool), name, "true or false", value)
    if hint is int:
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
        return _expected(whole, name, f"a whole number of at least {least}", value)
    if hint is float:
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else 0
        return _expected(0 < number < math.inf, name, "a number above 0", value)
    if hint is str:
        return _expected(isinstance(value, str) and value != "", name, "a text", value)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        choices = list(hint)
        _expected(value in choices, name, " or ".join(choices), value)
        return hint(str(value))
    if isinstance(hint, type):
        return _build(hint, value, name.rpartition(": ")[2])
    raise TypeError(f"{name}: no JSON for {hint}")


def _convert_all(hint: object, value: object, name: str, least: int) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise _wrong(name, "a list", value)
    return tuple(_convert(hint, each, f"{name}[{i}]", least) for i, each in enumerate(value))


def _expected(holds: bool, name: str, expected: str, value: object) -> object:
    if not holds:
        raise _wrong(name, expected, value)
    return value


def _wrong(name: str, expected: str, value: object) -> JobError:
    return JobError(f"{name} must be {expected}, got {json.dumps(value)}")
