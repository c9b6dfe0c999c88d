"""Study files (TOML) laid over a base study; unknown keys are errors with a suggestion."""

import difflib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from pydantic import ValidationError

from records.codec import first_problem, from_document
from records.errors import StudyError
from records.study import Study

TABLES = (
    *("workload", "environment", "space", "constraint", "objective"),
    *("budget", "measure", "launch", "llm"),
)
SCALARS = ("name", "seed_policy", "strategy", "random_seed")


def read_study_file(path: Path, base: Study) -> Study:
    """A study from a file; a table that is left out, or a key inside one, keeps the base's value.

    `[space.NAME]` tables and `[[constraint]]` replace the base's as a whole. The file is only read.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"{path}: cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise StudyError(f"{path}: not TOML: {error}") from error
    try:
        return from_document(Study, _laid_over(json.loads(_as_json(base)), document))
    except ValidationError as error:
        raise StudyError(f"{path}: {_explained(error, base)}") from error
    except (StudyError, TypeError, ValueError) as error:
        raise StudyError(f"{path}: {error}") from error


def _laid_over(base: dict[str, object], document: Mapping[str, object]) -> dict[str, object]:
    merged = dict(base)
    for key, value in document.items():
        if key == "space":
            merged["space"] = {
                "dimensions": _dimensions(value),
                "constraints": document.get("constraint", []),
            }
        elif key == "constraint":
            if "space" not in document:
                space = base["space"]
                merged["space"] = {**_table(space, "space"), "constraints": value}
        elif key in TABLES:
            merged[key] = {**_table(base[key], key), **_table(value, key)}
        elif key in SCALARS:
            merged[key] = value
        else:
            raise StudyError(f"unknown key {key!r}; {suggestion(key, [*TABLES, *SCALARS])}")
    return merged


def _dimensions(space: object) -> list[dict[str, object]]:
    return [
        {"name": name, **_table(body, f"space.{name}")}
        for name, body in _table(space, "space").items()
    ]


def _table(value: object, name: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise StudyError(f"[{name}] must be a table, not {value!r}")
    return value


def _explained(error: ValidationError, base: Study) -> str:
    first = error.errors()[0]
    if first["type"] != "unexpected_keyword_argument":
        return first_problem(error)
    *where, key = (str(part) for part in first["loc"])
    table = asdict(base).get(where[0]) if where else None
    known = list(table) if isinstance(table, dict) else []
    if where[:2] == ["space", "dimensions"]:
        known = ["choices", "range", "when", "description"]
    return f"[{'.'.join(where)}] unknown key {key!r}; {suggestion(key, known)}"


def suggestion(name: str, known: list[str]) -> str:
    """The closest known name as a question, or all of them."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"


def _as_json(study: Study) -> str:
    return json.dumps(asdict(study))
