"""Files that a rank leaves behind: whole or absent, never half written."""

import json
from collections.abc import Mapping
from pathlib import Path


def error_name(rank: int) -> str:
    """What the file is called in which a rank says why it failed."""
    return f"rank{rank}.error.json"


def write_json(path: Path, document: Mapping[str, object]) -> None:
    """Write one JSON document in a single rename."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(document, allow_nan=False), encoding="utf-8")
    partial.replace(path)
