"""Shows what a study learnt from its failures, and takes single constraints back."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer

from records.errors import StudyError
from records.rows import StudyRow
from records.store import Store
from search.commands.options import store_flag
from search.learnt import Learnt, learnt
from search.reading import recorded
from search.spaces import space_of
from search.study_file import suggestion


def print_constraints(
    study_id: str, revoke: str | None, store: Path | None, *, as_json: bool
) -> None:
    """Print the constraints that hold, those that were learnt and those that were taken back."""
    with recorded(store) as records:
        row = records.find(study_id)
        if revoke is not None:
            row = _without(row, revoke, records)
        found = _learnt(row, records)
        if as_json:
            typer.echo(json.dumps(_facts(row, found)))
            return
        for rule in space_of(row.study).rules:
            typer.echo(f"given: {rule.words}")
        for each in found:
            words = each.constraint
            typer.echo(f"{words.name} ({words.reason})")
        for name in row.study.revoked:
            typer.echo(f"taken back: {name}")
        if not found:
            typer.echo("nothing was learnt from failures")
            return
        name = shlex.quote(found[0].constraint.name)
        again = f"cclsearch show {row.id} --constraints --revoke {name}"
        typer.echo(f"next: {again}{store_flag(records.root)}")


def _without(row: StudyRow, name: str, records: Store) -> StudyRow:
    """The study without a constraint that it learnt, as it is now on record."""
    with records.lock(row.id):
        names = [each.constraint.name for each in _learnt(row, records)]
        if name not in names:
            known = suggestion(name, names) if names else "nothing was learnt from failures"
            raise StudyError(f"no learnt constraint is called {name!r}; {known}")
        study = replace(row.study, revoked=(*row.study.revoked, name))
        records.replace_study(row.id, study)
    return replace(row, study=study)


def _learnt(row: StudyRow, records: Store) -> Sequence[Learnt]:
    return learnt(space_of(row.study), records.history(row.id), row.study.revoked)


def _facts(row: StudyRow, found: Sequence[Learnt]) -> dict[str, object]:
    return {
        "study_id": row.id,
        "given": [rule.words for rule in space_of(row.study).rules],
        "learnt": [
            {
                "name": each.constraint.name,
                "expression": each.constraint.expression,
                "kind": each.kind,
                "trials": each.ordinals,
            }
            for each in found
        ],
        "taken_back": row.study.revoked,
    }
