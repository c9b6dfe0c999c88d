"""`policy check`: what a policy decides, wherever it may be asked; nothing is launched."""

import json
from typing import Annotated

import typer

from records.trial import Config
from search.commands.options import (
    BandwidthsOption,
    BatchSizeOption,
    CardOption,
    CommandOption,
    ConfigOption,
    GpusOption,
    JsonOption,
    TuningOption,
    card_given,
    chosen_study,
    examples,
)

INVALID = 2

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Look at a policy; nothing is launched."
)


@app.callback()
def group() -> None:
    """Keep the group a group while it has one command."""


@app.command(
    "check",
    epilog=examples(
        "cclsearch policy check my_policy.py -c study.toml",
        "cclsearch policy check sharded --vary global_batch=16,32 --vary world_size=2,4",
    ),
)
def check(
    policy: Annotated[
        str,
        typer.Argument(metavar="FILE", help="Policy file, or a built-in seed.", show_default=False),
    ],
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=A,B",
            help="Ask it for these values of a workload or environment field, too; of several "
            "fields for every combination.",
        ),
    ] = None,
    config: ConfigOption = None,
    card: CardOption = None,
    tuning: TuningOption = None,
    card_bandwidths: BandwidthsOption = None,
    batch_size: BatchSizeOption = None,
    gpus: GpusOption = None,
    command: CommandOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a policy decides in every context of a study, or what is wrong there.

    A line for the study's own workload and environment, for each [[context]] of its file, and for
    each combination of varied values.
    """
    from policies.catalog import seed_policy
    from search.policy_check import check_policy, varied_values
    from search.spaces import completed, space_of

    given = card_given(card_bandwidths, batch_size, gpus)
    study = chosen_study(config, card, tuning, given, command)
    varied = varied_values(vary or [])
    asked = seed_policy(policy, space_of(completed(study)))
    invalid = False
    facts: list[dict[str, object]] = []
    for checked in check_policy(asked, study, varied):
        answer, held_out = checked.answer, " (held out)" if checked.held_out else ""
        valid = isinstance(answer, Config)
        invalid = invalid or not valid
        facts.append(
            {
                "context": checked.name,
                "held_out": checked.held_out,
                "config": dict(answer.values) if isinstance(answer, Config) else None,
                "fault": None if isinstance(answer, Config) else str(answer),
            }
        )
        if not as_json:
            typer.echo(f"{checked.name}{held_out}: {'valid: ' if valid else ''}{answer}")
    if as_json:
        typer.echo(json.dumps(facts))
    if invalid:
        raise typer.Exit(INVALID)
