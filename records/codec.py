"""Convert values to JSON and back; read the clock in UTC."""

import json
from collections.abc import Callable, Hashable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, NoReturn, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from records.errors import CodecError

T = TypeVar("T")
_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False)


@cache
def _adapter(kind: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast(Any, kind))


def to_json(value: object, *, indent: int | None = None) -> str:
    """JSON text of a value; refuses NaN and infinities, which are never results."""
    data = _adapter(cast(Hashable, type(value))).dump_python(value, mode="json")
    try:
        if indent is None:
            return _ENCODER.encode(data)
        return json.dumps(data, allow_nan=False, indent=indent, ensure_ascii=False)
    except ValueError as error:
        raise CodecError(f"{type(value).__name__} holds a number that is not finite") from error


def from_json(kind: type[T], text: str) -> T:
    """Value of `kind` from its text; raises `CodecError` naming the first field that is wrong."""
    return _checked(kind, lambda adapter: adapter.validate_json(text))


def from_fields(kind: type[T], fields: Mapping[str, object]) -> T:
    """Value of `kind` from fields by name, such as columns of a row; others are ignored.

    Raises `CodecError` naming the first field that is wrong.
    """
    return _checked(kind, lambda adapter: adapter.validate_python(fields))


def _checked(kind: type[T], validate: Callable[[TypeAdapter[T]], T]) -> T:
    try:
        return validate(_adapter(cast(Hashable, kind)))
    except ValidationError as error:
        name = getattr(kind, "__name__", "value")  # a union has none
        raise CodecError(f"{name}: {first_problem(error)}") from error


def from_document(kind: type[T], data: object) -> T:
    """Value of `kind` from parsed TOML or YAML, without type coercion.

    Raises `ValidationError`, or `TypeError` for a value that JSON does not have, such as a date.
    """
    text = json.dumps(data, default=_refuse)
    value: T = _adapter(cast(Hashable, kind)).validate_json(text, strict=True)
    return value


def _refuse(value: object) -> NoReturn:
    raise TypeError(f"{value} is a {type(value).__name__}, which no key accepts; quote it")


def with_texts(value: T, change: Callable[[str], str]) -> T:
    """The value with every text in it changed, names of mappings too; itself where none is.

    Raises `CodecError` where a text may not be what it was changed to.
    """
    data = _adapter(cast(Hashable, type(value))).dump_python(value, mode="json")
    changed = _with_texts(data, change)
    return value if changed == data else from_json(type(value), json.dumps(changed))


def _with_texts(data: Any, change: Callable[[str], str]) -> Any:
    match data:
        case str():
            return change(data)
        case list():
            return [_with_texts(each, change) for each in data]
        case dict():
            return {change(name): _with_texts(each, change) for name, each in data.items()}
        case _:
            return data


def first_problem(error: ValidationError) -> str:
    """Where and why the first field failed, in one line."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "value"
    return f"{where}: {first['msg']}"


def utc_now() -> str:
    """UTC instant in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
