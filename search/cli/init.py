"""`init` and `try`: one launch of a script shows whether it can be measured, and what it reports.

`init` writes the study file first.
"""

import json
import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from evaluator.evaluate import TrialEvaluator
from evaluator.launchers.cluster.launcher import open_launchers
from evaluator.launchers.cluster.nodes import check_launcher
from evaluator.launchers.watch import py_spy
from evaluator.machine import local_environment, local_gpus
from evaluator.objective import may_vary_work, scoring_of
from evaluator.ports import Job, JobResult, Reading, Recipe
from evaluator.recipes.catalog import FRAMEWORKS, framework_recipe, recipe_of
from evaluator.recipes.command import CommandRecipe
from evaluator.recipes.script_output import ScriptOutput, StepsReport, script_output
from evaluator.traces.model import TraceSet
from records.errors import StudyError
from records.files import read_text
from records.study import Study
from records.trial import Config, Failed, Outcome, Score
from search import settings
from search.cli.options import (
    JsonOption,
    SearchObjectives,
    StudyOptions,
    examples,
    print_result,
    takes_options,
)
from search.study.script_study import (
    THROUGHPUT,
    USE_CPU,
    Script,
    needs_use_cpu,
    read_script,
    study_text,
)
from search.study.spaces import completed, space_of
from search.study.study_file import builtin_study, read_study_file
from search.views.format import format_count, format_number, score_words
from search.views.study import arguments_text

app = typer.Typer(rich_markup_mode=None)

NOTHING_MEASURED = 3


@app.command(
    epilog=examples(
        "cclsearch init train.py",
        "cclsearch init train.py -- --data corpus/ --batch-size 32",
        "cclsearch init train.py --objective tokens_per_s -o throughput.toml",
        "cclsearch init --recipe torchtitan --baseline train.sh",
    )
)
def init(
    script: Annotated[
        Path | None,
        typer.Argument(metavar="SCRIPT", help="Python program to tune.", show_default=False),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ARGUMENTS",
            help="The script's arguments of today, after --; those of knobs become first choices. "
            "With --recipe, the command that you start today.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="File to write. [default: study.toml next to the script]",
        ),
    ] = None,
    objective: Annotated[
        Literal["step_time", "tokens_per_s"],
        typer.Option(help="With tokens_per_s, batch sizes become knobs too."),
    ] = "step_time",
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Framework of your launch line, as `cclsearch recipes` lists it: writes the whole "
            "study, to be edited.",
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --recipe: shell script with your launch line of today."
        ),
    ] = None,
    no_launch: Annotated[bool, typer.Option("--no-launch", help="Only write the file.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a study file for your own script, and launch it once.

    Reads the options of the script (argparse, click, typer, tyro, dataclasses, TrainingArguments)
    without running it. Options that are known to change the speed become knobs, with today's value
    as the first choice. A file that you have edited is never changed.

    With --recipe, the file is the study of a framework's launch line, as its parser reads it.
    """
    if recipe is not None:
        words = ([str(script)] if script else []) + (arguments or [])
        _write_framework(recipe, baseline, words, output or Path("study.toml"), as_json=as_json)
        return
    if script is None:
        raise StudyError("init needs your script, as in `cclsearch init train.py`, or --recipe")
    found = read_script(script, arguments or (), by_throughput=objective == THROUGHPUT)
    if needs_use_cpu(found) and not local_gpus():
        found = replace(found, arguments=(*found.arguments, USE_CPU))
    path = output or script.with_name("study.toml")
    earlier = study_text(replace(found, reports_steps=False))
    _write_new(path, study_text(found), earlier)
    words = ["cclsearch", "init", str(script)]
    words += ["-o", str(output)] if output else []
    words += ["--", *arguments] if arguments else []
    result = _Result(script=found, path=path, words=tuple(words))
    if not as_json:
        _print(result.written)
    if found.reports_steps and found.knobs and not found.missing and not no_launch:
        result = _launched(result)
    if as_json:
        typer.echo(json.dumps(result.document))
    else:
        _print(result.measured)
    if isinstance(result.outcome, Failed):
        raise typer.Exit(NOTHING_MEASURED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """What was written, and how the launch ended.

    `words` are the command that reads the script again, `tokens` those of a step of all ranks.
    """

    script: Script
    path: Path
    words: tuple[str, ...]
    outcome: Outcome | None = None
    tokens: int | None = None

    @property
    def written(self) -> Iterator[str]:
        """What the file holds, as lines."""
        options = format_count(len(self.script.options), "option")
        yield f"wrote {self.path}: {options} found, {len(self.script.knobs)} became knobs"
        for option in self.script.knobs:
            choices = (json.dumps(choice).strip('"') or "(off)" for choice in option.proposed)
            yield f"  {option.knob}: {', '.join(choices)}"

    @property
    def measured(self) -> Iterator[str]:
        """What the launch showed or what is missing for one, and the next command, as lines."""
        if self.script.framework is not None:
            title = framework_recipe(self.script.framework).table.title
            yield f"{self.script.path.name} uses {title}, whose own flags can be searched:"
            yield f"  cclsearch run --recipe {self.script.framework} --baseline train.sh"
        for option in self.script.batch_sizes if not self.script.by_throughput else ():
            yield f"{option.flag} changes the work of a step; to tune it, compare throughput:"
            yield f"  cclsearch init {self.script.path} --objective {THROUGHPUT} -o throughput.toml"
        if isinstance(self.outcome, Failed):
            yield f"the launch failed: {self.outcome}"
            yield f"next: correct the script or {self.path}, then: cclsearch run -c {self.path}"
            return
        if self.outcome is not None:
            ranks = format_count(len(self.outcome.measurement.step_times_s), "rank")
            step_s = format_number(self.outcome.metric("step_time") or 0.0)
            yield f"launched once with today's values: {step_s} s per step on {ranks}"
            yield from (f"caveat: {caveat}" for caveat in self.outcome.measurement.caveats)
        if self.tokens is not None:
            yield f"tokens per step: {self.tokens}, as the script reported; written to the file"
        missing = list(self._missing)
        yield from missing
        yield f"next: {shlex.join(self.words) if missing else f'cclsearch run -c {self.path}'}"

    @property
    def _missing(self) -> Iterator[str]:
        """What to change before the script can be launched, as lines."""
        script = self.script
        if script.missing:
            yield f"missing: {', '.join(script.missing)} must be given; add the arguments of today:"
            yield f"  cclsearch init {script.path} -- {script.missing[0]} ..."
        if script.arguments_line is not None:
            yield f"missing: TrainingArguments in line {script.arguments_line} are fixed. Instead:"
            yield "  args = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()[0]"
            yield "and give today's values as arguments:"
            yield f"  cclsearch init {script.path} -- --output_dir out ..."
        elif not script.knobs:
            yield f"missing: no option that is known to change the speed; add knobs to {self.path}"
        if not script.reports_steps:
            yield f"missing: {script.path} does not report its steps. Add to it:"
            yield "  import cclsearch"
            yield from self._reporting
            yield f"or, if it prints step times, set step_time in {self.path} and run it"

    @property
    def _reporting(self) -> Iterator[str]:
        """How the script would report its steps, as lines."""
        loop, callback, line = self.script.loop, self.script.callback, self.script.trainer_line
        if callback:
            where = f"   # line {line}" if line else ""
            yield f"  Trainer(..., callbacks=[cclsearch.{callback}()]){where}"
        elif loop is not None:
            yield f"  {loop.head}   # line {loop.line}"
            yield f"      {loop.body}"
        else:
            yield "  for batch in cclsearch.steps(loader):   # as its training loop"
            yield "      cclsearch.log(tokens=batch.numel())"

    @property
    def document(self) -> dict[str, object]:
        """The same as JSON."""
        measured = None if isinstance(self.outcome, Failed) else self.outcome
        return {
            "study": str(self.path),
            "options": [option.flag for option in self.script.options],
            "knobs": {option.knob: option.proposed for option in self.script.knobs},
            "reports_steps": self.script.reports_steps,
            "step_time": measured and measured.metric("step_time"),
            "tokens_per_step": self.tokens,
            "caveats": list(measured.measurement.caveats) if measured else [],
            "failure": str(self.outcome) if isinstance(self.outcome, Failed) else None,
        }


def _print(lines: Iterator[str]) -> None:
    for line in lines:
        typer.echo(line)


def _write_framework(
    name: str, baseline: Path | None, words: Sequence[str], path: Path, *, as_json: bool
) -> None:
    """Write the study of a launch line, unless there is a file that somebody has changed."""
    from search.study import framework_study as frameworks

    found = frameworks.framework_study(
        name,
        baseline,
        words,
        builtin_study(local_environment()),
        lambda note: typer.echo(f"{name}: {note}", err=True),
    )
    text = frameworks.study_text(found.study)
    _write_new(path, text)
    knobs = {d.name: list(d.choices or ()) for d in found.study.space.dimensions}
    lines = [f"wrote {path}: {format_count(len(knobs), 'knob')} searched"]
    lines += [f"  {knob}: {', '.join(map(str, choices))}" for knob, choices in knobs.items()]
    lines += [f"next: cclsearch try -c {path}"]
    print_result({"study": str(path), "knobs": knobs}, lines, as_json=as_json)


def _write_new(path: Path, text: str, *earlier: str) -> None:
    """Write a study file, unless there is one that somebody has changed."""
    try:
        if path.exists() and read_text(path) not in (text, *earlier):
            raise StudyError(f"{path} exists and is not changed; name another file with -o")
        path.write_text(text, encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"{path} cannot be written: {error}") from error


class _Probe:
    """Remembers all that a script left; it may process any number of tokens if `any_work`."""

    def __init__(self, recipe: Recipe, *, any_work: bool = False) -> None:
        self.recipe = recipe
        self.any_work = any_work
        self.output: ScriptOutput | None = None

    @property
    def tokens(self) -> int | None:
        """The tokens of a step of all ranks, where the script reported them."""
        report = self.output and self.output.report
        return report.tokens_per_step if isinstance(report, StepsReport) else None

    def job(self, study: Study, config: Config) -> Job:
        """Return the job of the recipe."""
        return self.recipe.job(study, config)

    def read(self, study: Study, job: Job, result: JobResult, launched_ns: int) -> Reading | Failed:
        """Read what the script left."""
        if study.command is not None:
            self.output = script_output(study, study.command, job, result, launched_ns)
        if self.any_work and self.tokens is not None:
            workload = replace(study.workload, global_batch=self.tokens, sequence_length=1)
            study = replace(study, workload=workload)
        return self.recipe.read(study, job, result, launched_ns)


def _launch_once(study: Study, probe: _Probe) -> Outcome:
    """Launch the first configuration of a study, outside of any store."""
    from search.compose import new_study_id, require_feasible

    check_launcher(study)
    probe.recipe.check(study)
    require_feasible(space_of(study))
    ours, root = settings.trial_environment(), settings.store_root(None).absolute()
    environment = probe.recipe.inherited(study, ours)
    with (
        open_launchers(study, f"try-{new_study_id()}", root, environment, ours=ours) as make,
        tempfile.TemporaryDirectory(prefix="cclsearch-try-") as folder,
        closing(make()) as launcher,
    ):
        evaluator = TrialEvaluator(probe, launcher, lambda _phase: None)
        return evaluator.evaluate(study, space_of(study).candidates[0], Path(folder))


def _launched(result: _Result) -> _Result:
    """Launch the seed once; write the tokens that the script reported into the study file."""
    study = completed(read_study_file(result.path, builtin_study(local_environment())))
    probe = _Probe(CommandRecipe(), any_work=True)
    outcome = _launch_once(study, probe)
    if probe.tokens is not None:
        text = study_text(result.script, probe.tokens)
        result.path.write_text(text, encoding="utf-8")
    return replace(result, outcome=outcome, tokens=probe.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Check:
    """One thing that a script may report; `words` say what was found, or what to add."""

    name: str
    is_there: bool
    words: str


@app.command(
    name="try",
    epilog=examples(
        "cclsearch try -c study.toml",
        "cclsearch try --recipe torchtitan --baseline train.sh",
        "cclsearch try --recipe vllm --objective output_tokens_per_s -- vllm serve MODEL",
    ),
)
@takes_options
def try_script(
    *, objectives: SearchObjectives, options: StudyOptions, as_json: JsonOption = False
) -> None:
    """Launch your script once, and check all that it may report.

    Launches the first configuration of the study, which with --recipe is your launch line as it is
    today; nothing is recorded. Checks step times, tokens, losses, memory, the traces of all ranks
    and what stacks of a hang need, and says what to add where one is missing. Shows what the launch
    is worth by the objectives, and the limits that it breaks.
    """
    study = completed(objectives.of(options.study()))
    if study.command is None:
        raise StudyError(
            "try launches a script of yours, and this study has no [command] table; write one "
            "with `cclsearch init SCRIPT`"
        )
    tried = _tried(study)
    words, failed = f"{objectives.flags}{options.words}", tried.failed
    step = f"correct {options.written}, then: cclsearch try" if failed else "cclsearch run"
    print_result(tried.facts, [*tried.lines, f"next: {step}{words}"], as_json=as_json)
    if failed is not None:
        raise typer.Exit(NOTHING_MEASURED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """How the one launch ended, what it is worth by each objective, and what was checked."""

    study: Study
    config: Config
    outcome: Outcome
    scores: Mapping[str, Score | Failed]
    checks: Sequence[_Check]

    @property
    def failed(self) -> Failed | None:
        """The failure of the launch, or of the first objective that it does not answer."""
        each = (self.outcome, *self.scores.values())
        return next((found for found in each if isinstance(found, Failed)), None)

    @property
    def facts(self) -> Mapping[str, object]:
        """The same for programs."""
        measured = None if isinstance(self.outcome, Failed) else self.outcome
        known = {n: score for n, score in self.scores.items() if isinstance(score, Score)}
        return {
            "config": dict(self.config.values),
            "failure": self.failed and str(self.failed),
            "step_time": measured and measured.metric("step_time"),
            "objectives": {name: score.value for name, score in known.items()},
            "broken_limits": [words for score in known.values() for words in score.broken],
            "caveats": list(measured.measurement.caveats) if measured else [],
            "checks": [asdict(check) for check in self.checks],
        }

    @property
    def lines(self) -> Iterator[str]:
        """The same for people."""
        yield f"launched once: {arguments_text(self.study, self.config)}"
        for check in self.checks:
            yield f"{'ok' if check.is_there else 'missing':<8} {check.name}: {check.words}"
        if not isinstance(self.outcome, Failed):
            for caveat in self.outcome.measurement.caveats:
                yield f"caveat   {caveat}"
            yield f"measured {format_number(self.outcome.metric('step_time') or 0.0)} s per step"
        for name, score in self.scores.items():
            if isinstance(score, Score):
                if name != "step_time":
                    yield f"measured {name}: {score_words(score)}"
                yield from (f"limit    {words}" for words in score.broken)
        if self.failed is not None:
            yield f"failed   {self.failed}"


def _tried(study: Study) -> _Tried:
    """Launch the first configuration of a study, and check what it reports."""
    recipe, scoring = recipe_of(study), scoring_of(study)
    probe = _Probe(recipe)
    outcome = _launch_once(study, probe)
    checks = list(_checks(study, probe.output)) if probe.output else []
    scores: dict[str, Score | Failed] = {}
    if not isinstance(outcome, Failed):
        objectives = scoring.against([outcome]).objectives
        scores = {one.expression.text: one.of(outcome) for one in objectives}
    return _Tried(
        study=study,
        config=space_of(study).candidates[0],
        outcome=outcome,
        scores=scores,
        checks=[*checks, _stacks(study, recipe)],
    )


def _checks(study: Study, output: ScriptOutput) -> Iterator[_Check]:
    """Check times, tokens, losses and memory, then the traces of all ranks."""
    report = output.report
    if isinstance(report, str):
        yield _Check(name="steps", is_there=False, words=report)
    elif report is not None:
        yield _times(study, report)
        yield _tokens(study, report)
        yield _check(
            "losses",
            f"of {format_count(len(report.losses), 'step')}" if report.losses else None,
            "trials that compute something else are not found: "
            + _to_add(study, "cclsearch.log(loss=loss)"),
        )
        yield _check(
            "memory",
            f"peak of {format_count(len(report.peak_memory_bytes), 'rank')}"
            if report.peak_memory_bytes
            else None,
            "no limit on it can be set: " + _to_add(study, "peak_memory_bytes in steps.json"),
        )
    if output.traces is not None:
        yield from _traces(output.traces)


def _stacks(study: Study, recipe: Recipe) -> _Check:
    """Check whether a rank that hangs can be looked into."""
    ours = recipe.inherited(study, settings.trial_environment())
    own = study.command.environment if study.command else {}
    spy = py_spy(own.get("PATH", ours.get("PATH", os.defpath)))
    return _check(
        "stacks of a hang",
        f"by {spy}" if spy else None,
        "a rank that hangs does not show where: pip install py-spy, beside cclsearch or the job",
    )


def _check(name: str, found: str | None, missing: str) -> _Check:
    return _Check(name=name, is_there=found is not None, words=found or missing)


def _to_add(study: Study, lines: str) -> str:
    """What to add to a script; frameworks are reported on by their recipe, not by the script."""
    return lines if study.launch.recipe not in FRAMEWORKS else "its recipe reports none"


def _steps_of(step_count: int, rank_count: int) -> str:
    return f"{format_count(step_count, 'step')} of {format_count(rank_count, 'rank')}"


def _times(study: Study, report: StepsReport) -> _Check:
    steps = report.step_times_s
    words = _steps_of(len(steps[0]), len(steps)) if steps else None
    instead = "profiled steps are timed instead" if study.measure.profiled_steps else "none"
    lines = "write `for batch in cclsearch.steps(batches)` in the training loop"
    missing = f"{instead}; {_to_add(study, lines)}"
    return _check("times", words, missing)


def _tokens(study: Study, report: StepsReport) -> _Check:
    asked, found = study.workload.tokens_per_step, report.tokens_per_step
    if found is not None and found != asked and not may_vary_work(study):
        words = f"{found} per step, but global_batch * sequence_length of the study is {asked}"
        return _Check(name="tokens", is_there=False, words=words)
    asks = "as the study asks" if found == asked else "compared per token"
    same = f"{found} per step, {asks}" if found is not None else None
    lines = _to_add(study, "cclsearch.log(tokens=batch.numel())")
    missing = f"equal work is declared, not verified: {lines}"
    return _check("tokens", same, missing)


def _traces(traces: TraceSet | str) -> Iterator[_Check]:
    if isinstance(traces, str):
        yield _Check(name="traces", is_there=False, words=traces)
        return
    ranks, steps = len(traces.ranks), len(traces.common_steps)
    found = _steps_of(steps, ranks) if steps else None
    yield _check("traces", found, "no step is marked: call the profiler's step() after each")
    if ranks > 1:
        count = sum(len(trace.collectives.span) for trace in traces.ranks)
        yield _check(
            "communication",
            f"{format_count(count, 'collective')} on all ranks" if count else None,
            "the traces show no collective, so time in communication is not known",
        )
