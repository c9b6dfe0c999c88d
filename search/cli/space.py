"""`space size|check|sample|estimate|explain` and `policy check`: inspection without launching."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from random import Random
from typing import Annotated

import typer

from policies.space import Space
from records.errors import StudyError
from records.expression import format_value
from records.trial import Config
from search.cli.options import (
    JsonOption,
    StudyOptions,
    argument,
    examples,
    option,
    print_result,
    setting,
    takes_options,
)
from search.study.spaces import Estimated, estimate_words, estimated
from search.views.document import Column, Table, number_column
from search.views.format import format_duration, format_percent
from search.views.terminal import page_cells, table_lines

INVALID = 2

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Inspect a search space without launching anything.",
)


@app.command(epilog=examples("cclsearch space size", "cclsearch space size -c study.toml"))
@takes_options
def size(
    options: StudyOptions,
    as_json: JsonOption = False,
) -> None:
    """Count all configurations and the feasible ones."""
    _, space = options.completed()
    feasible = len(space.feasible)
    words = f"{space.size} points, {feasible} satisfy the constraints"
    print_result({"points": space.size, "feasible": feasible}, [words], as_json=as_json)


@app.command(
    epilog=examples(
        "cclsearch space check dp_replicate=1 dp_shard=2 tp=1 pp=2 micro_batch=4 \\",
        "    activation_checkpointing=none",
    )
)
@takes_options
def check(
    settings: Annotated[
        list[str],
        typer.Argument(
            metavar="KNOB=VALUE",
            help="Settings; omitted knobs have their defaults.",
            show_default=False,
        ),
    ],
    options: StudyOptions,
    as_json: JsonOption = False,
) -> None:
    """Check whether a configuration is valid, and estimate its memory."""
    _, space = options.completed()
    answer = space.check(dict(map(setting, settings)))
    if isinstance(answer, Config):
        derived = space.derived(answer)
        lines = (f"{name}: {format_value(name, value)}" for name, value in derived.items())
        facts = {"config": dict(answer.values), **derived}
        print_result(facts, [f"valid: {answer}", *lines], as_json=as_json)
    elif as_json:
        typer.echo(json.dumps({"faults": answer}))
        raise typer.Exit(INVALID)
    else:
        raise StudyError("; ".join(answer))


@app.command(epilog=examples("cclsearch space sample -n 3", "cclsearch space sample --json"))
@takes_options
def sample(
    *,
    count: int = option(5, "Number of configurations.", "-n", metavar="N", min=1),
    seed: int = option(42, "Random seed.", metavar="N"),
    options: StudyOptions,
    as_json: JsonOption = False,
) -> None:
    """Draw feasible configurations without replacement."""
    _, space = options.completed()
    drawn = space.sample(count, Random(seed))
    print_result([dict(point.values) for point in drawn], map(str, drawn), as_json=as_json)


@app.command(
    epilog=examples(
        "cclsearch space estimate", "cclsearch space estimate tp=2 pp=2 micro_batch=4 --json"
    )
)
@takes_options
def estimate(
    *,
    settings: list[str] | None = argument(
        None,
        "Settings; omitted knobs have their defaults. Without any, the best "
        "configurations are listed.",
        metavar="KNOB=VALUE",
    ),
    count: int = option(10, "Number to list.", "-n", metavar="N", min=1),
    options: StudyOptions,
    as_json: JsonOption = False,
) -> None:
    """Estimate the step time without a launch; good for ranking, not a measurement.

    Of a server on GPUs, aiconfigurator estimates it where it is installed; else sizes alone count.
    """
    from search.study.prior import with_prior

    study, space = options.completed()
    study = with_prior(study, lambda note: typer.echo(note, err=True))
    if settings:
        answer = space.check(dict(map(setting, settings)))
        if not isinstance(answer, Config):
            raise StudyError("; ".join(answer))
        one = estimated(study, space, answer)
        facts, lines = one.facts, parts_lines(one)
    else:
        every = [estimated(study, space, config) for config in space.feasible]
        best = sorted(every, key=lambda each: each.step_s)[:count]
        configurations = [each.facts for each in best]
        words = estimate_words(study)
        about = {"estimate": words, "feasible": len(space.feasible)}
        facts, lines = {**about, "configurations": configurations}, list_lines(best, space, words)
    print_result(facts, lines, as_json=as_json)


@app.command(epilog=examples("cclsearch space explain", "cclsearch space explain --card card.yaml"))
@takes_options
def explain(
    options: StudyOptions,
    as_json: JsonOption = False,
) -> None:
    """Print knobs and constraints as an LLM reads them."""
    study, space = options.completed()
    knobs = [
        {
            "name": knob.name,
            "choices": knob.choices,
            "when": knob.dimension.when,
            "description": knob.dimension.description,
        }
        for knob in space.knobs
    ]
    constraints = [asdict(rule.constraint) for rule in space.rules]
    facts = {"inferences": study.inferences, "knobs": knobs, "constraints": constraints}
    print_result(facts, [space.words()], as_json=as_json)


policy_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Check a policy without launching anything."
)


@policy_app.callback()
def group() -> None:
    """Make Typer treat this as a group although it has one command."""


@policy_app.command(
    "check",
    epilog=examples(
        "cclsearch policy check my_policy.py -c study.toml",
        "cclsearch policy check sharded --vary global_batch=16,32 --vary world_size=2,4",
    ),
)
@takes_options
def check_policy_file(
    *,
    policy: Annotated[
        str,
        typer.Argument(metavar="FILE", help="Policy file, or a built-in seed.", show_default=False),
    ],
    vary: list[str] | None = option(
        None,
        "Also check these values of a workload or environment field; several fields are "
        "combined. Repeatable.",
        metavar="FIELD=A,B",
    ),
    options: StudyOptions,
    as_json: JsonOption = False,
) -> None:
    """Show what a policy decides in every context of a study, or why it is invalid.

    Prints a line for the study's own workload and environment, for each [[context]] of its file,
    and for each combination of varied values.
    """
    from policies.contract import seed_policy
    from search.study.spaces import completed, policy_contexts, space_of, varied_values

    study = options.study()
    varied = varied_values(vary or [])
    asked = seed_policy(policy, space_of(completed(study)))
    facts: list[dict[str, object]] = []
    lines = []
    for context in policy_contexts(study, varied):
        answer, held_out = context.decide(asked), " (held out)" if context.held_out else ""
        config = dict(answer.values) if isinstance(answer, Config) else None
        fault = str(answer) if config is None else None
        place = {"context": context.name, "held_out": context.held_out}
        facts.append({**place, "config": config, "fault": fault})
        lines.append(f"{context.name}{held_out}: {'' if config is None else 'valid: '}{answer}")
    print_result(facts, lines, as_json=as_json)
    if any(each["fault"] is not None for each in facts):
        raise typer.Exit(INVALID)


def parts_lines(one: Estimated) -> Iterator[str]:
    """Yield the parts of one estimate, the largest first, and the memory."""
    yield f"{format_duration(one.step_s)} a step of {one.config}: {one.words}"
    parts = sorted(one.parts_s.items(), key=lambda part: -part[1])
    shown = [(name, seconds) for name, seconds in parts if seconds]
    table = Table.of(
        Column(heading="part", cells=[name for name, _ in shown]),
        number_column("time", [format_duration(s) for _, s in shown]),
        number_column("share", [format_percent(s / one.step_s) for _, s in shown]),
    )
    yield from table_lines(table, page_cells())
    yield from (f"{name}: {format_value(name, value)}" for name, value in one.derived.items())


def list_lines(best: Sequence[Estimated], space: Space, words: str) -> Iterator[str]:
    """Yield configurations in the order of their estimates."""
    yield f"the first {len(best)} of {len(space.feasible)} configurations by {words}"
    table = Table.of(
        number_column("step", [format_duration(each.step_s) for each in best]),
        Column(heading="configuration", cells=[str(each.config) for each in best]),
    )
    yield from table_lines(table, page_cells())
