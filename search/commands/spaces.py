"""`space size|check|sample|estimate|explain`: the search space before anything is launched."""

import json
from dataclasses import asdict
from random import Random
from typing import Annotated

import typer

from policies.space import Space
from records.errors import StudyError
from records.rule import told
from records.study import Study
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

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look at a search space; nothing is launched.",
)


@app.command(epilog=examples("cclsearch space size", "cclsearch space size -c study.toml"))
def size(
    config: ConfigOption = None,
    card: CardOption = None,
    tuning: TuningOption = None,
    card_bandwidths: BandwidthsOption = None,
    batch_size: BatchSizeOption = None,
    gpus: GpusOption = None,
    command: CommandOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count the points, and those that satisfy the constraints."""
    given = card_given(card_bandwidths, batch_size, gpus)
    space = _space(chosen_study(config, card, tuning, given, command))
    if as_json:
        typer.echo(json.dumps({"points": space.size, "feasible": len(space.feasible)}))
    else:
        typer.echo(f"{space.size} points, {len(space.feasible)} satisfy the constraints")


@app.command(
    epilog=examples(
        "cclsearch space check dp_replicate=1 dp_shard=2 tp=1 pp=2 micro_batch=4 \\",
        "    activation_checkpointing=none",
    )
)
def check(
    settings: Annotated[
        list[str],
        typer.Argument(
            metavar="KNOB=VALUE",
            help="One for each knob that is not to be what it is if left out.",
            show_default=False,
        ),
    ],
    config: ConfigOption = None,
    card: CardOption = None,
    tuning: TuningOption = None,
    card_bandwidths: BandwidthsOption = None,
    batch_size: BatchSizeOption = None,
    gpus: GpusOption = None,
    command: CommandOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say whether a configuration is valid and what memory it may take, or why it is not."""
    given = card_given(card_bandwidths, batch_size, gpus)
    space = _space(chosen_study(config, card, tuning, given, command))
    answer = space.check(dict(_setting(text) for text in settings))
    if isinstance(answer, Config):
        derived = space.derived(answer)
        if as_json:
            typer.echo(json.dumps({"config": dict(answer.values), **derived}))
        else:
            typer.echo(f"valid: {answer}")
            for name, value in derived.items():
                typer.echo(f"{name}: {told(name, value)}")
        return
    if as_json:
        typer.echo(json.dumps({"faults": answer}))
        raise typer.Exit(2)
    raise StudyError("; ".join(answer))


@app.command(epilog=examples("cclsearch space sample -n 3", "cclsearch space sample --json"))
def sample(
    count: Annotated[int, typer.Option("-n", metavar="N", help="How many.", min=1)] = 5,
    seed: Annotated[int, typer.Option(metavar="N", help="Same seed, same sample.")] = 42,
    config: ConfigOption = None,
    card: CardOption = None,
    tuning: TuningOption = None,
    card_bandwidths: BandwidthsOption = None,
    batch_size: BatchSizeOption = None,
    gpus: GpusOption = None,
    command: CommandOption = None,
    as_json: JsonOption = False,
) -> None:
    """Draw feasible configurations without replacement."""
    given = card_given(card_bandwidths, batch_size, gpus)
    space = _space(chosen_study(config, card, tuning, given, command))
    drawn = space.sample(count, Random(seed))
    if as_json:
        typer.echo(json.dumps([dict(point.values) for point in drawn]))
    else:
        for point in drawn:
            typer.echo(str(point))


@app.command(
    epilog=examples(
        "cclsearch space estimate", "cclsearch space estimate tp=2 pp=2 micro_batch=4 --json"
    )
)
def estimate(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KNOB=VALUE",
            help="The configuration, by each knob that is not to be what it is if left out; "
            "without any, the best of all are listed.",
            show_default=False,
        ),
    ] = None,
    count: Annotated[int, typer.Option("-n", metavar="N", help="How many are listed.", min=1)] = 10,
    config: ConfigOption = None,
    card: CardOption = None,
    tuning: TuningOption = None,
    card_bandwidths: BandwidthsOption = None,
    batch_size: BatchSizeOption = None,
    gpus: GpusOption = None,
    command: CommandOption = None,
    as_json: JsonOption = False,
) -> None:
    """Guess the time of a step from sizes alone; it orders configurations, and is no result."""
    from search.estimated import cheapest, estimated, list_document, list_lines, parts_lines
    from search.spaces import completed, space_of

    given = card_given(card_bandwidths, batch_size, gpus)
    study = completed(chosen_study(config, card, tuning, given, command))
    space = space_of(study)
    if not settings:
        best = cheapest(study, space, count)
        lines = [list_document(best, space)] if as_json else list_lines(best, space)
    else:
        answer = space.check(dict(_setting(text) for text in settings))
        if not isinstance(answer, Config):
            raise StudyError("; ".join(answer))
        told_of = estimated(study, space, answer)
        lines = [json.dumps(told_of.document)] if as_json else parts_lines(told_of)
    for line in lines:
        typer.echo(line)


@app.command(epilog=examples("cclsearch space explain", "cclsearch space explain --card card.yaml"))
def explain(
    config: ConfigOption = None,
    card: CardOption = None,
    tuning: TuningOption = None,
    card_bandwidths: BandwidthsOption = None,
    batch_size: BatchSizeOption = None,
    gpus: GpusOption = None,
    command: CommandOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the knobs and constraints in the words that a model reads."""
    given = card_given(card_bandwidths, batch_size, gpus)
    study = chosen_study(config, card, tuning, given, command)
    space = _space(study)
    facts = {"inferences": study.inferences, **_facts(space)}
    typer.echo(json.dumps(facts) if as_json else space.words())


def _facts(space: Space) -> dict[str, object]:
    """The space for programs, ranges listed as choices."""
    return {
        "knobs": [
            {
                "name": knob.name,
                "choices": knob.choices,
                "when": knob.dimension.when,
                "description": knob.dimension.description,
            }
            for knob in space.knobs
        ],
        "constraints": [asdict(rule.constraint) for rule in space.rules],
    }


def _space(study: Study) -> Space:
    # Imported here: recipes reach for what reads traces, and help does without.
    from search.spaces import completed, space_of

    return space_of(completed(study))


def _setting(text: str) -> tuple[str, object]:
    knob, equals, value = text.partition("=")
    if not equals:
        raise StudyError(f"{text!r} is not KNOB=VALUE")
    try:
        return knob, json.loads(value)
    except json.JSONDecodeError:
        return knob, value
