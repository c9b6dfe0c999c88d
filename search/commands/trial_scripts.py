"""Writes, or prints, the script that starts the job of a trial on record again."""

import json
from pathlib import Path

import typer

from records.errors import StudyError
from search.commands.options import store_flag
from search.launch_script import launch_script
from search.reading import recorded


def write_script(
    study_id: str,
    ordinal: int,
    output: Path | None,
    context: str | None,
    store: Path | None,
    *,
    as_json: bool,
) -> None:
    """Write the script to a new file, or to standard output."""
    with recorded(store) as records:
        row = records.find(study_id)
        trial = records.trial(row.id, ordinal)
        if trial is None:
            command = f"cclsearch show {row.id}{store_flag(records.root)}"
            raise StudyError(f"study {row.id} has no trial {ordinal}; see `{command}`")
        text = launch_script(trial, row, records, context)
    if output is not None:
        try:
            with output.open("x", encoding="utf-8") as file:
                file.write(text)
            output.chmod(0o755)
        except OSError as error:
            raise StudyError(f"cannot write {output}: {error.strerror}; give another") from error
    if as_json:
        typer.echo(json.dumps({"study_id": row.id, "ordinal": ordinal, "script": text}))
    elif output is None:
        typer.echo(text, nl=False)
    else:
        typer.echo(f"next: sh {output}")
