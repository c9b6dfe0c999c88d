"""Writes the report of a study into a file."""

import json
import os
import webbrowser
from pathlib import Path
from typing import Literal, TypeAlias

import typer

from records.errors import StoreError, StudyError
from search.commands.options import store_flag
from search.reading import recorded
from search.report_page.html_page import html_page
from search.report_page.markdown_page import markdown_page
from search.report_page.report import study_report

Form: TypeAlias = Literal["html", "markdown"]

ENDINGS: dict[Form, str] = {"html": ".html", "markdown": ".md"}


def write_report(
    study_id: str,
    to: Path | None,
    form: Form | None,
    store: Path | None,
    *,
    opened: bool,
    force: bool = False,
    as_json: bool,
) -> None:
    """Write the report and say where it is; a file that was named is not replaced without force."""
    if form is None:
        form = "markdown" if to is not None and to.suffix == ENDINGS["markdown"] else "html"
    with recorded(store) as records:
        row = records.find(study_id)
        page = study_report(row, records, store_flag(records.root))
    path = to or Path()
    if not path.is_dir() and os.path.lexists(path) and not force:
        raise StudyError(f"{path} is there already; give --force to replace it, or another with -o")
    if path.is_dir():
        path /= f"{row.id}{ENDINGS[form]}"
    _write(path, html_page(page) if form == "html" else markdown_page(page))
    if as_json:
        sections = [section.name for section in page.sections]
        facts = {"study_id": row.id, "path": str(path), "format": form, "sections": sections}
        typer.echo(json.dumps(facts))
    else:
        typer.echo(f"written: {path}")
    if opened and not webbrowser.open(path.absolute().as_uri()):
        typer.echo(f"no browser could be started; open {path} in one", err=True)


def _write(path: Path, text: str) -> None:
    """Write it whole or not at all."""
    draft = path.with_name(f".{path.name}.part")
    try:
        try:
            draft.write_text(text, encoding="utf-8")
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}; give another with -o") from error
