"""The study of a framework's launch line, as its own parser reads it."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from evaluator.recipes.catalog import FRAMEWORKS, framework_recipe
from evaluator.recipes.frameworks.flags import Flags
from evaluator.recipes.frameworks.framework import FrameworkRecipe
from evaluator.recipes.frameworks.launch_line import LaunchLine, read_script_lines
from evaluator.recipes.frameworks.parser import Answer, ask_parser
from records.errors import StudyError, shown
from records.study import Study
from records.workload import Workload
from search import settings
from search.study.study_file import with_machine_of


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkStudy:
    """A study around a launch line, and what a person should know of how it was read."""

    study: Study
    line: LaunchLine
    recipe: FrameworkRecipe
    answer: Answer
    notes: tuple[str, ...]


def framework_study(
    name: str,
    baseline: Path | None,
    words: Sequence[str],
    base: Study,
    notice: Callable[[str], None] = lambda _: None,
    config: Path | None = None,
) -> FrameworkStudy:
    """Return the study of a launch line, given as words or in a shell script.

    Asks the framework's parser in the job's Python; nothing is launched. The study file `config`
    may state the machine. `notice` is given what a person should know while that takes its time.
    Raises `StudyError` for a line that does not start the framework or that its parser refuses.
    """
    recipe = framework_recipe(name)
    line, left_out = recipe.without_secrets(launch_line(recipe, baseline, words))
    for note in left_out:
        notice(note)
    base = _on_machine(base, recipe.started_ranks(line), config)
    notice(f"asking its parser, which may take a minute ({line.python})")
    answer = parse_lines(recipe, line, [line.arguments], base.environment.world_size)
    error = answer.parsed[0].error if answer.parsed else None
    if error is not None:
        raise StudyError(f"the parser of {name} refuses the launch line: {error}")
    study = recipe.study(line, base, answer)
    seeds = study.space.defaults
    broken = next(recipe.broken(study, seeds), None)
    if broken is not None:
        raise StudyError(f"the launch line cannot be the seed of a search: {broken}")
    inert = (f"of the launch line, {words}" for words in recipe.inert(study, seeds))
    notes = (*_notes(recipe, answer, study), *inert)
    return FrameworkStudy(study=study, line=line, recipe=recipe, answer=answer, notes=notes)


def parse_lines(
    recipe: FrameworkRecipe, line: LaunchLine, lines: Sequence[Sequence[str]], world_size: int
) -> Answer:
    """Return what the framework's parser says of arguments, in the Python of the job of a line."""
    return ask_parser(
        recipe.name,
        line.python,
        lines,
        folder=line.folder,
        environment={**settings.trial_environment(), **line.environment},
        world_size=world_size,
        program=line.program,
        launcher=line.launcher,
    )


def _on_machine(base: Study, rank_count: int | None, config: Path | None) -> Study:
    """Return a study for as many ranks as a launch line starts; a study file may say otherwise."""
    if rank_count is not None:
        machine = replace(base.environment, world_size=rank_count, ranks_per_node=rank_count)
        base = replace(base, environment=machine)
    return base if config is None else with_machine_of(config, base)


def launch_line(recipe: FrameworkRecipe, baseline: Path | None, words: Sequence[str]) -> LaunchLine:
    """Return the line that starts the framework; raises `StudyError` where there is no such one."""
    if (baseline is None) == (not words):
        raise StudyError(
            f"--recipe {recipe.name} needs your launch line of today: in a shell script, "
            "--baseline train.sh, or the command itself after --"
        )
    ours = settings.trial_environment()
    if baseline is None:
        line = LaunchLine.of(words, Path.cwd(), search_path=ours.get("PATH", os.defpath))
        script = _shell_script(line)
        lines = [line]
        if script:
            found = read_script_lines(*script, {**line.environment, **ours})
            own = line.environment
            lines = [replace(each, environment={**own, **each.environment}) for each in found]
        where = shown(" ".join(words))
    else:
        lines, where = read_script_lines(baseline, (), ours), f"--baseline {baseline}"
    chosen = next((line for line in reversed(lines) if recipe.starts(line)), None)
    if chosen is None:
        raise StudyError(f"{where} starts {_other(lines[-1], recipe)}")
    if chosen.node_count > 1:
        raise StudyError(
            f"{where} starts {chosen.node_count} nodes; a recipe searches on this machine "
            "alone and does not support clusters yet; give the line for one node"
        )
    return chosen


def _shell_script(line: LaunchLine) -> tuple[Path, tuple[str, ...]] | None:
    """Return the shell script that a line starts, with its arguments; None where it starts none."""
    words = line.words
    if Path(words[0]).name in {"bash", "sh"}:
        words = words[1:]
    path = Path(words[0]) if words else Path()
    is_script = path.suffix in {".sh", ".bash"} and path.is_file()
    return (path, words[1:]) if is_script else None


def _other(line: LaunchLine, recipe: FrameworkRecipe) -> str:
    """Return what a line starts instead of the framework, and what to do about it."""
    started = f"{shown(' '.join(line.program))}, which is not {recipe.table.title}"
    if Path(line.program[0]).name in {"srun", "mpirun", "sbatch"}:
        return f"{started}; recipes do not support clusters yet: give the line of one node"
    any_script = LaunchLine(program=("script.py",), arguments=(), folder=Path())
    for name in FRAMEWORKS:
        other = framework_recipe(name)
        if other.starts(line) and not other.starts(any_script):
            return f"{started}; it looks like {other.table.title}: --recipe {name}"
    return f"{started}; give the line that starts it, or use another of `cclsearch recipes`"


def study_text(study: Study) -> str:
    """Return the study of a launch line as a file, which is read without the framework."""
    return "\n".join(_tables(study)) + "\n"


def _tables(study: Study) -> Iterator[str]:
    command, work = study.command, study.workload
    if command is None:
        raise StudyError("the study has no command")
    yield "# cclsearch run -c FILE; written from a launch line, as its framework's parser read it."
    yield f"name = {_toml(study.name)}\n"
    yield "[workload]                       # the work of one step, the same in every trial"
    unset = Workload(name="", global_batch=1, sequence_length=1)
    needed = ("name", "global_batch", "sequence_length")
    for each in fields(work):
        value = getattr(work, each.name)
        if each.name in needed or (value != getattr(unset, each.name) and value is not None):
            yield f"{each.name} = {_toml(value)}"
    yield f"\n[launch]\nrecipe = {_toml(study.launch.recipe)}\n\n[command]"
    yield f"run = {_toml(command.run)}"
    yield f"trace_files = {_toml(command.trace_files)}"
    yield f"rank_count = {_toml(command.rank_count or '')}"
    if command.step_time is not None:
        yield f"step_time = {_toml(command.step_time)}"
    yield "[command.environment]"
    yield from (f"{name} = {_toml(value)}" for name, value in command.environment.items())
    yield "\n# The first choice of each knob is today's value; together they are the seed."
    searched = {dimension.name: dimension for dimension in study.space.dimensions}
    for name, dimension in searched.items():
        yield f"[space.{name}]\nchoices = {_toml(dimension.choices or ())}"
    fixed = {n: v for n, v in study.space.defaults.items() if n not in searched}
    if fixed:
        yield "\n# Not searched, but as the launch line has them; add choices to search them too."
    for name, value in fixed.items():
        yield f"[space.{name}]\nchoices = {_toml([value])}"
    yield f"\n[measure]\ntimeout_s = {study.measure.timeout_s}                # of one launch"
    yield f"profiled_steps = {study.measure.profiled_steps}\n\n[budget]\ntrials = 12"


def _toml(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _notes(recipe: FrameworkRecipe, answer: Answer, study: Study) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in answer.versions.items())
    yield versions
    _, caveat = Flags.of(recipe.name, answer.versions.get(recipe.table.packages[0]))
    if caveat is not None:
        yield caveat
    knobs = ", ".join(
        f"{d.name}={study.space.defaults.get(d.name, (d.choices or ('',))[0])}"
        for d in study.space.dimensions
    )
    yield f"knobs, with today's values as the seed: {knobs}"
    for name, reason in answer.fixed.items():
        yield f"{name} stays as it is: {reason}"
