"""The user's own script as a recipe: knobs go in as variables, traces and step times come out."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from evaluator.estimate.script import estimated_script
from evaluator.job import Job, JobResult
from evaluator.ports import Reading
from evaluator.recipes.script_files import check_program, check_unchanged
from evaluator.recipes.script_results import read_script
from evaluator.recipes.variables import (
    TRACE_DIR,
    arguments,
    check_variables,
    inherited,
    settings,
    told,
)
from records.errors import StudyError, shown
from records.expression import Expression, parse
from records.rule import facts
from records.scrub import expanded
from records.study import Command, Constraint, Study, Value
from records.trial import Config, Failed

TRACE_FOLDER = "trace"
DEGREES = ("dp", "dp_replicate", "dp_shard", "tp", "pp", "cp")
RANKS_RULE = "rank_count"


class CommandRecipe:
    """Starts a script as CCL-Search does, and believes nothing that it leaves unread."""

    def complete(self, study: Study) -> Study:
        """Write out how many ranks a configuration takes, and allow no more than there are."""
        command = _command(study)
        expression = command.rank_count or _product_of_degrees(study)
        rule = Constraint(
            name=RANKS_RULE,
            expression=f"1 <= ({expression}) <= world_size",
            reason="the script starts this many ranks",
        )
        space = study.space
        if rule.name not in [constraint.name for constraint in space.constraints]:
            space = replace(space, constraints=(*space.constraints, rule))
        return replace(study, space=space, command=replace(command, rank_count=expression))

    def derived(self, study: Study) -> Mapping[str, Callable[[Mapping[str, Value]], Value]]:  # noqa: ARG002 - the port
        """Give none: what a script's knobs mean is not known."""
        return {}

    def estimate(self, study: Study, config: Config) -> Mapping[str, float] | None:
        """Give what a trainer of ours would take, where knobs and sizes have names that tell."""
        return estimated_script(
            study.workload,
            study.environment,
            {**study.space.defaults, **config.values},
            int(_ranks(study, _command(study), config)),
        )

    def check(self, study: Study) -> None:
        """Raise `StudyError` when the script cannot be started or told its configuration."""
        command = _command(study)
        check_variables(study, command)
        _check_ranks(study, _ranks_expression(study, command))
        _check_patterns(command)
        check_program(command)
        check_unchanged(command)

    def inherited(self, study: Study, ours: Mapping[str, str]) -> Mapping[str, str]:
        """Show a script where programs are, and what the study lets through; nothing else."""
        return inherited(study, _command(study), ours)

    def job(self, study: Study, config: Config) -> Job:
        """Give the job of one configuration.

        Raises `StudyError` when the script is not the one that the study began with: its trials
        could not be compared.
        """
        command = _command(study)
        check_unchanged(command)
        rank_count = _rank_count(study, command, config)
        return Job(
            argv=arguments(study, command, config, rank_count),
            world_size=rank_count,
            files={},
            folders={TRACE_DIR: TRACE_FOLDER},
            timeout_s=study.measure.timeout_s,
            maps_freely=study.environment.device != "cpu",
            threads_per_rank=study.launch.threads_per_rank,
            environment={
                **{name: expanded(text) for name, text in command.environment.items()},
                **told(study, rank_count),
                **settings(study, command, config),
            },
        )

    def read(self, study: Study, job: Job, result: JobResult, launched_ns: int) -> Reading | Failed:
        """Read what the script left in TRACE_DIR."""
        return read_script(study, _command(study), job, result, launched_ns)


def _command(study: Study) -> Command:
    if study.command is None:
        raise StudyError(
            "[launch] recipe 'command' needs a [command] table; give at least "
            'run = ["bash", "run.sh"]'
        )
    return study.command


def _check_patterns(command: Command) -> None:
    for pattern in command.trace_files:
        if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
            raise StudyError(
                f"[command] trace_files {shown(pattern)} leads out of TRACE_DIR; "
                "patterns are relative to it"
            )


def _product_of_degrees(study: Study) -> str:
    knobs = {*(d.name for d in study.space.dimensions), *study.space.defaults}
    degrees = [knob for knob in DEGREES if knob in knobs]
    if not degrees:
        raise StudyError(
            f"[command] rank_count is not given, and no knob is called {', '.join(DEGREES)}; "
            'give an expression over knobs, or "world_size"'
        )
    return " * ".join(degrees)


def _ranks_expression(study: Study, command: Command) -> Expression:
    return parse(command.rank_count or _product_of_degrees(study))


def _check_ranks(study: Study, expression: Expression) -> None:
    space = study.space
    knobs = {dimension.name: dimension.when for dimension in space.dimensions}
    given = _given(study)
    known = (*knobs, *given)
    for name in sorted(expression.names):
        if name not in known:
            raise StudyError(
                f"[command] rank_count: {name} is unknown; known are {', '.join(known)}"
            )
        if knobs.get(name) and name not in given:
            raise StudyError(
                f"[command] rank_count: {name} is left out of configurations where it has no "
                "effect; write the expression without it"
            )


def _rank_count(study: Study, command: Command, config: Config) -> int:
    count = _ranks(study, command, config)
    if not count.is_integer() or count < 1:
        text = _ranks_expression(study, command).text
        raise StudyError(f"[command] rank_count {text!r} is {count:g} for {config}")
    return int(count)


def _ranks(study: Study, command: Command, config: Config) -> float:
    """What the expression comes to, which may be no whole number."""
    expression = _ranks_expression(study, command)
    return expression.number({**_given(study), **config.values})


def _given(study: Study) -> dict[str, Value | None]:
    """What an expression may name beside the knobs."""
    return {**facts(study.workload, study.usable_environment), **study.space.defaults}
