"""`doctor` and `version`: what this machine can do for a search, and what is installed."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from evaluator.doctor.finding import Finding, State
from search import settings
from search.commands.options import JsonOption, StoreOption, examples
from search.version import installed_version

app = typer.Typer(rich_markup_mode=None)

CANNOT_RUN = 4


@app.command(epilog=examples("cclsearch doctor", "cclsearch doctor --noise --json"))
def doctor(
    noise: Annotated[
        bool, typer.Option("--noise", help="Take a minute to measure the noise more closely.")
    ] = False,
    rebuild: Annotated[
        bool,
        typer.Option(
            "--rebuild",
            help="Only build the database of the records again, from the journals beside it; the "
            "old one is kept.",
        ),
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Only read every kept file of the records, and compare its digest."
        ),
    ] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell what this machine can do, and what to do about what is missing."""
    if rebuild:
        from search.commands.rebuild_records import print_rebuild

        print_rebuild(store, as_json=as_json)
        return
    if verify:
        from search.commands.verify_records import print_verified

        print_verified(store, as_json=as_json)
        return
    # Imported here: it takes a second, and no other command needs it.
    from search.doctor import findings

    found: list[Finding] = []
    for finding in findings(settings.store_root(store), long_noise=noise):
        found.append(finding)
        if not as_json:
            _print(finding)
    lacking = [x.subject for x in found if x.needed and x.state is State.MISSING]
    if as_json:
        facts = [asdict(finding) for finding in found]
        typer.echo(json.dumps({"can_run": not lacking, "findings": facts}))
    elif lacking:
        typer.echo(f"a search cannot run here: {', '.join(lacking)}")
    else:
        typer.echo("next: cclsearch run --objective step_time")
    if lacking:
        raise typer.Exit(CANNOT_RUN)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(installed_version())


def _print(finding: Finding) -> None:
    # Imported here: help does without.
    from search.tables import echo_words

    echo_words(f"{finding.state:<8}{finding.subject:<14}{finding.told}", indent=22)
    if finding.remedy is not None:
        echo_words(f"{'':<22}{finding.remedy}", indent=22)
