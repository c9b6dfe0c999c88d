"""Trials as typed columns: one row each, knobs and metrics beside each other, units in headings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Cell: TypeAlias = bool | int | float | str | None
Document: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """A column with its heading; all cells are of this type or None."""

    heading: str
    kind: type[bool] | type[int] | type[float] | type[str]
    cells: tuple[Cell, ...]


MOST = 2**63
"""What a whole number of 64 bits stays below."""

_PLAIN = ("study_id", "study_name", "ordinal", "author", "status")
_AFTER = (
    *("failure_stage", "failure_kind", "failure_message", "attempts"),
    *("policy_digest", "config_digest", "started_at", "ended_at"),
)


def columns_of(documents: Sequence[Document]) -> list[Typed]:
    """The columns of these trials, in an order that follows from their names alone."""
    plain = [_typed(name, [document[name] for document in documents]) for name in _PLAIN]
    scores = [_object(document, "score") for document in documents]
    return [
        *plain,
        *_valued("score", [_unit_value(score) for score in scores]),
        _typed("caveats", ["; ".join(map(str, _list(d, "caveats"))) or None for d in documents]),
        *_knobs(documents),
        *_metrics(documents),
        *(_typed(name, [document[name] for document in documents]) for name in _AFTER),
    ]


def _knobs(documents: Sequence[Document]) -> list[Typed]:
    configs = [_object(document, "config") for document in documents]
    names = sorted({name for config in configs for name in config})
    return [_typed(f"config.{name}", [config.get(name) for config in configs]) for name in names]


def _metrics(documents: Sequence[Document]) -> list[Typed]:
    told = [
        {str(value["name"]): _unit_value(value) for value in _list(document, "metrics")}
        for document in documents
    ]
    names = sorted({name for values in told for name in values})
    return [
        column
        for name in names
        for column in _valued(f"metric.{name}", [values.get(name) for values in told])
    ]


def _valued(name: str, cells: Sequence[tuple[str, object] | None]) -> list[Typed]:
    """One column for each unit that a number has; a metric may have changed its unit."""
    units = sorted({cell[0] for cell in cells if cell is not None})
    return [
        _typed(
            f"{name} [{unit}]" if unit else name,
            [cell[1] if cell is not None and cell[0] == unit else None for cell in cells],
            float,
        )
        for unit in units
    ]


def _unit_value(value: Mapping[str, object]) -> tuple[str, object] | None:
    return (str(value["unit"]), value["value"]) if value else None


def _typed(
    heading: str, cells: Sequence[object], kind: type[float] | type[str] | None = None
) -> Typed:
    """A column of the narrowest type that holds every cell; texts where types are mixed."""
    wanted = kind or _common([cell for cell in cells if cell is not None])
    convert: Callable[[object], Cell] = _CONVERSIONS[wanted]
    return Typed(
        heading=heading,
        kind=wanted,
        cells=tuple(None if cell is None else convert(cell) for cell in cells),
    )


def _common(cells: Sequence[object]) -> type[bool] | type[int] | type[float] | type[str]:
    found = {type(cell) for cell in cells}
    if found == {bool}:
        return bool
    if found == {int}:
        fits = all(isinstance(cell, int) and -MOST <= cell < MOST for cell in cells)
        return int if fits else str
    return float if found and found <= {int, float} else str


_CONVERSIONS: Mapping[type, Callable[[object], Cell]] = {
    bool: bool,
    int: lambda cell: cell if isinstance(cell, int) else None,
    float: lambda cell: float(cell) if isinstance(cell, int | float) else None,
    str: str,
}


def _object(document: Document, name: str) -> Mapping[str, object]:
    value = document[name]
    return value if isinstance(value, Mapping) else {}


def _list(document: Document, name: str) -> Sequence[Mapping[str, object]]:
    value = document[name]
    return value if isinstance(value, list) else []
