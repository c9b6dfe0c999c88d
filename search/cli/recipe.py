"""`recipes` and `recipe show|check`: what is known of frameworks, and whether one takes a line."""

import json
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import typer

from evaluator.machine import local_environment
from evaluator.recipes.catalog import FRAMEWORKS, framework_recipe
from evaluator.recipes.command import CommandRecipe
from evaluator.recipes.frameworks.flags import Flags, recorded_versions
from evaluator.recipes.frameworks.framework import FrameworkKnob, FrameworkRecipe
from evaluator.recipes.frameworks.launch_line import LaunchLine
from records.errors import StudyError
from records.expression import parse
from records.study import Dimension, Study, Value
from records.trial import Config
from search.cli.options import (
    SETTING,
    JsonOption,
    argument,
    examples,
    option,
    print_result,
    setting,
    takes_options,
)
from search.study.framework_study import framework_study, parse_lines
from search.study.spaces import completed, space_of
from search.study.study_file import builtin_study
from search.views.document import Column, number_column
from search.views.terminal import print_table

INVALID = 2

app = typer.Typer(rich_markup_mode=None)
recipe_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Inspect the recipe of a framework, and check a configuration with its parser.",
)


@app.command(name="recipes", epilog=examples("cclsearch recipes"))
def recipes(as_json: JsonOption = False) -> None:
    """List the frameworks whose own launch line can be searched."""
    facts = [_facts(framework_recipe(name)) for name in FRAMEWORKS]
    if as_json:
        typer.echo(json.dumps(facts))
        return
    print_table(
        Column(heading="recipe", cells=[str(each["name"]) for each in facts]),
        Column(heading="flags of", cells=[", ".join(_listed(each["versions"])) for each in facts]),
        *(
            number_column(heading, [str(each[heading]) for each in facts])
            for heading in ("knobs", "rules", "evidence")
        ),
        Column(heading="checked", cells=[str(each["checked"]) for each in facts], yielding=True),
    )
    typer.echo("next: cclsearch recipe show NAME")


def _facts(recipe: FrameworkRecipe) -> dict[str, object]:
    table = recipe.table
    return {
        "name": recipe.name,
        "title": table.title,
        "versions": recorded_versions(recipe.name),
        "knobs": len(table.knobs),
        "rules": len(table.rules),
        "evidence": len(table.evidence),
        "checked": table.checked,
    }


def _listed(found: object) -> list[str]:
    return found if isinstance(found, list) else []


@recipe_app.command(epilog=examples("cclsearch recipe show torchtitan"))
@takes_options
def show(
    *,
    name: str = argument("", "Framework, as `cclsearch recipes` lists it.", metavar="NAME"),
    as_json: JsonOption = False,
) -> None:
    """Show the knobs, rules and evidence of a framework's recipe, and what holds the work equal."""
    recipe = framework_recipe(name)
    facts = {**_facts(recipe), **_known(recipe)}
    print_result(facts, _described(recipe), as_json=as_json)


def _known(recipe: FrameworkRecipe) -> dict[str, object]:
    table = recipe.table
    knobs = {
        name: {
            "flag": knob.flag,
            "description": knob.description,
            "choices": list(knob.choices) or ("divisors of the ranks" if knob.degree else []),
            "default": knob.default,
            "when": knob.when,
            "searched": knob.searched,
        }
        for name, knob in table.knobs.items()
    }
    return {
        "rank_count": table.rank_count,
        "knobs": knobs,
        "rules": {name: list(rule) for name, rule in table.rules.items()},
        "work": list(table.work),
        "dropped": list(table.dropped),
        "evidence": [
            {"when": e.when, "collectives": list(e.collectives), "log": e.log, "reason": e.reason}
            for e in table.evidence
        ],
    }


def _described(recipe: FrameworkRecipe) -> Iterator[str]:
    """What is known of a framework, as lines."""
    table = recipe.table
    yield f"{table.title}: the flags of {', '.join(recorded_versions(recipe.name))} are recorded"
    yield f"ranks: {table.rank_count}; checked: {table.checked}"
    yield "\nKnobs: what a launch line leaves out has the default; those that are fixed are"
    yield "searched only where a study file names them."
    for name, knob in table.knobs.items():
        effect = f"; has an effect where {knob.when}" if knob.when else ""
        values = f"default {_spelled(knob.default)}; {_choices(knob)}"
        yield f"  {name}: {knob.flag}"
        yield f"      {knob.description}; {values}{effect}"
    yield "\nRules: without them a configuration cannot run, or would be another one."
    for name, (expression, reason) in table.rules.items():
        yield f"  {name}: {expression}"
        yield f"      {reason}"
    yield "\nThe work of a step is held equal by:"
    yield f"  {shlex.join(table.work)}" if table.work else "  checks of tokens and losses alone"
    if table.dropped:
        yield f"  and without {', '.join(table.dropped)} of the launch line"
    yield "\nEvidence: a trial fails as invalid_config where a knob did not take hold."
    for each in table.evidence:
        signs = [f"{kind} in the traces" for kind in each.collectives]
        signs += [f"{each.log!r} in the log"] if each.log else []
        yield f"  {each.when}: {' and '.join(signs)}"
        yield f"      {each.reason}"
    if not table.evidence:
        yield "  none"
    yield f"\nnext: cclsearch run --recipe {recipe.name} --baseline train.sh"


def _choices(knob: FrameworkKnob) -> str:
    choices = ", ".join(map(_spelled, knob.choices))
    choices = choices or ("divisors of the ranks" if knob.degree else "false, true")
    return f"choices {choices}" if knob.searched else f"fixed, else {choices}"


def _spelled(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checked:
    """A configuration as arguments of a framework, and what refuses it, and why."""

    config: Mapping[str, Value]
    argv: Sequence[str]
    refused_by: str | None = None
    faults: Sequence[str] = ()
    asked: str | None = None


@recipe_app.command(
    epilog=examples(
        "cclsearch recipe check torchtitan tp=8 dp_shard=2 --ranks 16",
        "cclsearch recipe check torchtitan tp=2 --baseline train.sh",
    )
)
@takes_options
def check(
    *,
    name: str = argument("", "Framework, as `cclsearch recipes` lists it.", metavar="NAME"),
    words: list[str] | None = argument(
        None,
        "Settings of knobs; the others are as the launch line has them. After --, the command "
        "that you start today.",
        metavar="KNOB=VALUE",
    ),
    baseline: Path | None = option(
        None, "Shell script with your launch line of today.", metavar="FILE"
    ),
    ranks: int | None = option(
        None, "Number of ranks to check for. [default: this machine's]", metavar="N", min=1
    ),
    as_json: JsonOption = False,
) -> None:
    """Check whether a framework takes a configuration; nothing is launched.

    Prints the command that the configuration gets. The recorded flags and the rules are checked
    first; with a launch line, the framework's own parser is then asked in the Python of the job.
    """
    count = next((n for n, word in enumerate(words or ()) if not SETTING.fullmatch(word)), None)
    given, line = (words or [])[:count], (words or [])[count:] if count is not None else []
    base = builtin_study(local_environment())
    if ranks is not None:
        machine = replace(base.environment, world_size=ranks, ranks_per_node=ranks)
        base = replace(base, environment=machine)
    found = _check(framework_recipe(name), base, dict(map(setting, given)), baseline, line)
    print_result(asdict(found), _checked_lines(found), as_json=as_json)
    if found.faults:
        if not as_json:
            raise StudyError("; ".join(found.faults))
        raise typer.Exit(INVALID)


def _check(
    recipe: FrameworkRecipe,
    base: Study,
    given: Mapping[str, object],
    baseline: Path | None,
    words: Sequence[str],
) -> _Checked:
    """Return what a configuration gets as arguments, and what refuses it."""
    line = None
    if baseline is None and not words:
        study = recipe.study(LaunchLine(program=("-",), arguments=(), folder=Path.cwd()), base)
    else:
        said = framework_study(
            recipe.name, baseline, words, base, lambda note: typer.echo(note, err=True)
        )
        study, line = said.study, said.line
    knobs = recipe.knobs(study)
    values = {name: knob.default for name, knob in knobs.items()} | dict(given)
    dimensions = tuple(Dimension(name=n, choices=(v,)) for n, v in values.items())  # type: ignore[arg-type]  # checked as a study's are
    config = Config(values)  # type: ignore[arg-type]
    searched = replace(study, space=replace(study.space, dimensions=dimensions))
    try:
        study = completed(searched)
        if line is None:
            study = _without_rules_of_work(study)
        answer = space_of(study).check(values)
        broken = () if isinstance(answer, Config) else answer
    except StudyError as error:
        broken = (str(error),)
    if broken:
        return _Checked(config=config.values, argv=(), refused_by="rules", faults=broken)
    flags = recipe.flags(study, config)
    if line is None:
        return _of_recording(recipe, config, flags, None)
    recorded = _of_recording(
        recipe, config, flags, said.answer.versions.get(recipe.table.packages[0])
    )
    return recorded if recorded.faults else _ask(recipe, study, config, line)


def _without_rules_of_work(study: Study) -> Study:
    """Return a study without the rules that name its workload, which is not known."""
    unknown = {each.name for each in fields(study.workload)} | {"tokens_per_step"}
    kept = (rule for rule in study.space.constraints if not parse(rule.expression).names & unknown)
    return replace(study, space=replace(study.space, constraints=tuple(kept)))


def _of_recording(
    recipe: FrameworkRecipe, config: Config, argv: Sequence[str], version: str | None
) -> _Checked:
    """Return what the recorded flags say of arguments; nothing where another version's are used."""
    flags, caveat = Flags.of(recipe.name, version)
    faults = tuple(flags.faults(argv))
    if caveat is not None or not faults:
        return _Checked(config=config.values, argv=argv)
    return _Checked(config=config.values, argv=argv, refused_by="flags", faults=faults)


def _ask(recipe: FrameworkRecipe, study: Study, config: Config, line: LaunchLine) -> _Checked:
    """Ask the framework's parser in the job's Python, with the files that a trial would have."""
    argv = CommandRecipe.job(recipe, study, config).argv
    own = LaunchLine.of(argv, line.folder)
    with tempfile.TemporaryDirectory(prefix="cclsearch-check-") as folder:
        for name, text in recipe.files(study, config).items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        asked = replace(line, program=own.program, folder=Path(folder))
        answer = parse_lines(recipe, asked, [own.arguments], recipe.rank_count(study, config))
    error = answer.parsed[0].error if answer.parsed else None
    return _Checked(
        config=config.values,
        argv=argv,
        refused_by="parser" if error else None,
        faults=(f"the parser of {recipe.name} refuses it: {error}",) if error else (),
        asked=", ".join(f"{name} {version}" for name, version in answer.versions.items()),
    )


def _checked_lines(found: _Checked) -> Iterator[str]:
    if found.argv:
        yield shlex.join(found.argv)
    if found.faults:
        return
    if found.asked is None:
        yield "taken by the recorded flags and the rules; to ask the framework's own parser, and to"
        yield "check rules of the workload, add your launch line: --baseline train.sh, or after --"
    else:
        yield f"taken by the rules and by the parser of {found.asked}; nothing was launched"
