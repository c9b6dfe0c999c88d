"""A user's own script as a recipe: knobs go in as variables, traces and step times come out.

The variables are those of CCL-Search: every knob in upper case, TRACE_DIR and WORKLOAD_NAME, and
besides these the work of one step, the number of ranks and the number of steps. In `steps.json`
the script reports what it did; without step times there, they come from the profiled steps in its
traces, and are marked as such. Nothing is taken from another trial.
"""

import hashlib
import math
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from evaluator.estimate.step_time import estimate_script
from evaluator.job import Job, JobResult, Reading
from evaluator.samples import RANK_FILE_LIMITS, no_samples, unequal_work
from evaluator.traces.errors import TraceError
from evaluator.traces.readers.files import read_bytes
from records.errors import StudyError, shown
from records.expression import Expression, facts, parse
from records.files import open_regular
from records.scrub import expanded
from records.study import Command, Constraint, SearchSpace, Study, Value
from records.trial import Config, Failed, FailureKind, Measurement, Stage

if TYPE_CHECKING:
    from evaluator.traces.model import RankTrace, TraceSet


def locate(command: Command, folder: Path) -> Command:
    """The command with the files of `run` found in `folder`, and their digests.

    Raises `StudyError` for a word that can only be a file and is none.
    """
    program, *words = command.run
    has_path = os.sep in program
    run = (
        (_locate_word(program, folder) if has_path else program),
        *(_locate_word(w, folder) for w in words),
    )
    paths = [Path(word) for word in run if Path(word).is_absolute() and Path(word).is_file()]
    return replace(command, run=run, file_digests={str(path): _digest(path) for path in paths})


def check_unchanged(command: Command) -> None:
    """Raise `StudyError` when a file is no longer what it was when the study was read."""
    for path, digest in command.file_digests.items():
        if _digest(Path(expanded(path))) != digest:
            raise StudyError(
                f"[command] {path} is not what it was when the study began, so its trials could "
                "not be compared; start a new study"
            )


def check_program(command: Command) -> None:
    """Raise `StudyError` when the program is not there or may not be executed."""
    program = expanded(command.run[0])
    if shutil.which(program) is None:
        instead = f'make it executable, or run = ["bash", {program!r}]'
        hint = instead if Path(program).is_file() else "give a program that is on the PATH"
        raise StudyError(f"[command] run: {shown(program)} cannot be started; {hint}")


def _locate_word(word: str, folder: Path) -> str:
    path = folder.absolute() / word
    if path.is_file():
        return str(path)
    if not word.startswith("-") and path.suffix in {".sh", ".py"}:
        raise StudyError(f"[command] run: there is no file {path}")
    return word


def _digest(path: Path) -> str:
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise StudyError(
            f"[command] run: {path} cannot be read: {error.strerror or error}"
        ) from error


CLOCK_SKEW_NS = 1_000_000_000
"""How much the clocks of two nodes may differ."""

_SINCE_EPOCH_NS = 10**18
"""Later than this, in 2001, a time is since the Unix epoch; earlier, on another clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFolder:
    """A folder that was empty at the launch, `launched_ns` after the Unix epoch."""

    path: Path
    launched_ns: int

    def traces(self, patterns: Sequence[str], rank_count: int, *, besides: str) -> "TraceSet | str":
        """The traces of all ranks, or what is missing; raises `TraceError` for one it refuses.

        A file of the name `besides` is not a trace.
        """
        from evaluator.traces.readers.read import read_traces

        paths = self._found(patterns, besides)
        if not paths:
            wanted = " or ".join(patterns)
            return (
                f"the script ended with status 0 but left no trace: no {wanted} in TRACE_DIR; "
                f"write a trace of each rank there, or {besides} with the step times and set "
                "[measure] profiled_steps = 0; see docs/recipes.md"
            )
        for path in paths:
            self.refuse_foreign(path)
        traces = read_traces(paths, only_rank=0 if rank_count == 1 else None)
        for trace in traces.ranks:
            self._refuse_old(trace)
        return _missing_traces(traces, rank_count) or traces

    def refuse_foreign(self, path: Path) -> None:
        """Raise `TraceError` for a file that this trial has not written here itself."""
        if stat.S_ISLNK(self.path.lstat().st_mode):
            raise TraceError(path, "TRACE_DIR was replaced by a link")
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode) or self.path.resolve() not in path.resolve().parents:
            raise TraceError(path, "is a link; a trial's files must be its own")
        if not stat.S_ISREG(found.st_mode):
            raise TraceError(path, "is not a regular file")
        if found.st_nlink > 1:
            raise TraceError(path, "is also linked from elsewhere; a trial's files must be its own")
        if found.st_mtime_ns < self.launched_ns:
            raise TraceError(path, "was written before this trial was launched")

    def _found(self, patterns: Sequence[str], besides: str) -> list[Path]:
        found = {path for pattern in patterns for path in self.path.glob(pattern)}
        return sorted(path for path in found if path.name != besides and not path.is_dir())

    def _refuse_old(self, trace: "RankTrace") -> None:
        """Raise for a copy of an older trace: a copy's date is new, its clock is not."""
        starts_ns = [
            int(column[0]) for column in (trace.spans.start_ns, trace.steps.start_ns) if column.size
        ]
        if starts_ns and _SINCE_EPOCH_NS < min(starts_ns) < self.launched_ns - CLOCK_SKEW_NS:
            early_s = (self.launched_ns - min(starts_ns)) / 1e9
            raise TraceError(
                self.path,
                f"the trace of rank {trace.rank} begins {early_s:.1f} s before the launch: "
                "it is of an older trial",
            )


def _missing_traces(traces: "TraceSet", rank_count: int) -> str | None:
    """Return what a set of traces lacks, as text."""
    if traces.world_size is not None and traces.world_size != rank_count:
        return (
            f"the traces are of a job of {traces.world_size} ranks, but [command] rank_count "
            f"gives {rank_count}"
        )
    present = [trace.rank for trace in traces.ranks]
    missing = [rank for rank in range(rank_count) if rank not in present]
    if missing:
        there = f"there are traces of rank {_list_ranks(present)}"
        return f"rank {_list_ranks(missing)} left no trace in TRACE_DIR; {there}"
    if len(present) > rank_count:
        there = f"there are traces of rank {_list_ranks(present)}"
        return f"{there} in TRACE_DIR, but [command] rank_count gives {rank_count}"
    return None


def _list_ranks(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")


TRACE_DIR = "TRACE_DIR"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_FALSE_WORDS = ("false", "0", "no", "off", "none")

ARGS = "{args}"
RANK_COUNT = "rank_count"
_PLACE = re.compile(r"(?<!\$)(?:\{\{(?P<escaped>[A-Za-z_]\w*)\}\}|\{(?P<knob>[A-Za-z_]\w*)\})")
"""A name in braces; `${NAME}` and braces around anything else are the shell's."""

INHERITED = (
    *("PATH", "HOME", "LANG", "LC_*", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"),
    "CUDA_VISIBLE_DEVICES",  # the GPUs that the study counts
)
"""What a script may see of our environment unasked."""

WORK_VARIABLES = (
    *(TRACE_DIR, "WORKLOAD_NAME", "GLOBAL_BATCH", "SEQUENCE_LENGTH", "TOKENS_PER_STEP"),
    *("OUTPUT_LENGTH", "REQUESTS_PER_S"),
    *("RANK_COUNT", "WARMUP_STEPS", "TIMED_STEPS", "PROFILED_STEPS"),
)
_OF_THE_SYSTEM = (
    *("PATH", "HOME", "LANG", "LC_*", "LD_*", "DYLD_*", "PYTHON*", "VIRTUAL_ENV", "CONDA_*"),
    *("IFS", "ENV", "BASH*", "SHELL*", "PS4", "PROMPT_COMMAND", "CDPATH", "GLOBIGNORE"),
    *("PWD", "OLDPWD", "USER", "LOGNAME", "UID", "EUID", "TMPDIR", "TERM"),
)
_OF_THE_JOB = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_*", "TORCHELASTIC_*", "CCLSEARCH_*"),
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    "HIP_VISIBLE_DEVICES",
)
_SECRET = re.compile(r"KEY(_|$)|TOKEN(_|$)|SECRET|PASSW|CREDENTIAL|COOKIE", re.IGNORECASE)


def check_variables(study: Study, command: Command) -> None:
    """Raise `StudyError` for the first name or value that a script cannot be given safely."""
    knobs = _knobs(study.space)
    for knob in command.export:
        if knob not in knobs:
            raise StudyError(
                f"[command.export] {shown(knob)} is not a knob; knobs are {', '.join(knobs)}"
            )
    names = variable_names(study.space, command)
    for knob, name in names.items():
        where = f"[command.export] {knob}" if knob in command.export else f"[space] {knob!r}"
        _check_name(name, where, (*WORK_VARIABLES, *_OF_THE_SYSTEM, *_OF_THE_JOB))
        if list(names.values()).count(name) > 1:
            raise StudyError(f"{where}: another knob is exported as {name} too; rename one")
    _check_fixed(command, tuple(names.values()))
    _check_places(study, command)
    true, false = command.booleans
    if true == false or true.lower() in _FALSE_WORDS or not (true or false):
        raise StudyError(
            f"[command] booleans {[true, false]} must be how the script spells true, then false"
        )
    for text in (*_texts(study.space), *command.run, study.workload.name):
        if "\0" in text:
            raise StudyError(f"[command] no program can be given {shown(text)}: it holds a NUL")


def work_variables(study: Study, rank_count: int) -> dict[str, str]:
    """Return the variables of every configuration; TRACE_DIR comes with the folder."""
    workload, measure = study.workload, study.measure
    served = {"OUTPUT_LENGTH": workload.output_length, "REQUESTS_PER_S": workload.requests_per_s}
    return {
        **{name: f"{value:.15g}" for name, value in served.items() if value is not None},
        "WORKLOAD_NAME": workload.name,
        "GLOBAL_BATCH": str(workload.global_batch),
        "SEQUENCE_LENGTH": str(workload.sequence_length),
        "TOKENS_PER_STEP": str(workload.tokens_per_step),
        "RANK_COUNT": str(rank_count),
        "WARMUP_STEPS": str(measure.warmup_steps),
        "TIMED_STEPS": str(measure.timed_steps),
        "PROFILED_STEPS": str(measure.profiled_steps),
    }


def settings(study: Study, command: Command, config: Config) -> dict[str, str]:
    """The knobs of a configuration and the defaults for the rest, as the script spells them."""
    names = variable_names(study.space, command)
    values = {**study.space.defaults, **config.values}
    return {names[knob]: _spell(value, command) for knob, value in values.items()}


def arguments(study: Study, command: Command, config: Config, rank_count: int) -> tuple[str, ...]:
    """The command of a configuration: `{knob}` is what it sets, `{args}` all of it as flags."""
    settings = {**study.space.defaults, **config.values}
    values = {knob: _spell(value, command) for knob, value in settings.items()}
    flags = [f"--{knob.replace('_', '-')}={value}" for knob, value in values.items()]
    values |= {RANK_COUNT: str(rank_count)}
    filled: list[str] = []
    for part in command.run:
        filled += flags if part == ARGS else [_fill(part, values)]
    return tuple(filled)


def _fill(part: str, values: Mapping[str, str]) -> str:
    """A part of the command with values for its places; what is put in is not read again."""
    pieces, end = [], 0
    for place in _PLACE.finditer(part):
        escaped, knob = place["escaped"], place["knob"]
        value = f"{{{escaped}}}" if escaped else values[knob]
        pieces += [expanded(part[end : place.start()]), value]
        end = place.end()
    return "".join((*pieces, expanded(part[end:])))


def _check_places(study: Study, command: Command) -> None:
    """Raise `StudyError` for a place in the command that some configuration has nothing for."""
    conditional = {dimension.name for dimension in study.space.dimensions if dimension.when}
    for part in command.run:
        for place in _PLACE.finditer(part) if part != ARGS else ():
            knob = place["knob"]
            if knob is None or knob == RANK_COUNT:
                continue
            where = f"[command] run {shown(part)}: {{{knob}}}"
            if knob not in _knobs(study.space):
                raise StudyError(
                    f"{where} is not a knob; knobs are {', '.join(_knobs(study.space))}; {ARGS} "
                    f"stands for all of them as flags, {{{{{knob}}}}} for the braces themselves"
                )
            if knob in conditional and knob not in study.space.defaults:
                raise StudyError(
                    f"{where} is left out of configurations where it has no effect; give it a "
                    f"default under [space.defaults], or write {ARGS}"
                )


def variable_names(space: SearchSpace, command: Command) -> dict[str, str]:
    """Which variable holds which knob."""
    return {knob: command.export.get(knob, knob.upper()) for knob in _knobs(space)}


def inherited(study: Study, command: Command, ours: Mapping[str, str]) -> dict[str, str]:
    """The part of our environment that a script may see; never a variable that a trial sets."""
    allowed = (*INHERITED, *command.inherit)
    own = {*WORK_VARIABLES, *variable_names(study.space, command).values()}
    return {
        name: value
        for name, value in ours.items()
        if name not in own and any(fnmatchcase(name, pattern) for pattern in allowed)
    }


def _knobs(space: SearchSpace) -> list[str]:
    return list(dict.fromkeys([*(d.name for d in space.dimensions), *space.defaults]))


def _spell(value: Value, command: Command) -> str:
    if isinstance(value, bool):
        true, false = command.booleans
        return true if value else false
    return str(value)


def _check_name(name: str, where: str, taken: Sequence[str]) -> None:
    if not _VARIABLE.fullmatch(name):
        raise StudyError(
            f"{where}: {shown(name)} cannot be a variable's name; "
            "name another under [command.export]"
        )
    if any(fnmatchcase(name.upper(), pattern) for pattern in taken):
        raise StudyError(
            f"{where}: the variable {name} means something else to shells or launchers; "
            "name another under [command.export]"
        )


def _check_fixed(command: Command, of_knobs: Sequence[str]) -> None:
    for name, value in command.environment.items():
        where = f"[command.environment] {name}"
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            raise StudyError(f"{where}: no program can be given {shown(name)} = {shown(value)}")
        if name in (*WORK_VARIABLES, *of_knobs):
            raise StudyError(f"{where} is set by each trial; leave it out")
        if _SECRET.search(name):
            raise StudyError(
                f"{where} looks like a secret, and a study is stored; "
                "let the script read it from a file"
            )


def _texts(space: SearchSpace) -> Iterator[str]:
    for dimension in space.dimensions:
        yield from (choice for choice in dimension.choices or () if isinstance(choice, str))
    yield from (value for value in space.defaults.values() if isinstance(value, str))


REPORT = "steps.json"


class StepsReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a script says of its steps: seconds shaped (ranks, steps), bytes per rank."""

    tokens_per_step: int | None = None
    step_times_s: list[list[float]] | None = None
    losses: list[float] = []
    peak_memory_bytes: list[int] = []


def read_script(
    study: Study, command: Command, job: Job, result: JobResult, launched_ns: int
) -> Reading | Failed:
    """Read a finished script's folder; raises `TraceError` for a trace that is refused."""
    folder = TraceFolder(path=result.workdir / job.folders[TRACE_DIR], launched_ns=launched_ns)
    try:
        report = _report(folder)
        fault = _fault(report, study, job)
    except (TraceError, msgspec.MsgspecError) as error:
        fault = f"{REPORT}: {str(error).removeprefix(f'{folder.path / REPORT}: ')}"
    if fault is not None:
        return no_samples(fault)
    if report.tokens_per_step not in {None, study.workload.tokens_per_step}:
        return unequal_work(
            f"processed {report.tokens_per_step} tokens per step, the study asks for "
            f"{study.workload.tokens_per_step}; trials must do the same work: reach the global "
            "batch by gradient accumulation, and constrain the batch size by "
            "global_batch % (batch_size * world_size) == 0"
        )
    traces = None
    if study.measure.profiled_steps or report.step_times_s is None:
        found = folder.traces(command.trace_files, job.world_size, besides=REPORT)
        if isinstance(found, str):
            return Failed(stage=Stage.READ, kind=FailureKind.METRIC_ERROR, message=found)
        traces = found
    return _reading(study, job, result, report, traces)


def _report(folder: TraceFolder) -> StepsReport:
    path = folder.path / REPORT
    if not path.exists() and not path.is_symlink():
        return StepsReport()
    folder.refuse_foreign(path)
    return msgspec.json.decode(read_bytes(path, RANK_FILE_LIMITS), type=StepsReport)


def _fault(report: StepsReport, study: Study, job: Job) -> str | None:
    """What is wrong with a report in itself, if anything is."""
    peaks, ranks = report.peak_memory_bytes, report.step_times_s
    if peaks and (len(peaks) != job.world_size or min(peaks) < 0):
        return (
            f"{REPORT}: peak_memory_bytes must have one number for each of {job.world_size} ranks"
        )
    if ranks is None:
        return None
    asked = study.measure.timed_steps
    if len(ranks) != job.world_size:
        return (
            f"{REPORT}: step_times_s has {len(ranks)} lists; this configuration takes "
            f"{job.world_size} ranks, and each has its own list"
        )
    if len({len(steps) for steps in ranks}) > 1:
        return f"{REPORT}: step_times_s has lists of different lengths"
    if len(ranks[0]) < asked:
        return f"{REPORT}: step_times_s has {len(ranks[0])} steps, {asked} were asked for"
    if not all(math.isfinite(step_s) and step_s > 0 for steps in ranks for step_s in steps):
        return f"{REPORT}: step_times_s holds a time that is not above 0"
    return None


def _reading(
    study: Study, job: Job, result: JobResult, report: StepsReport, traces: "TraceSet | None"
) -> Reading | Failed:
    timed = report.step_times_s if report.step_times_s is not None else _windows_s(traces)
    if not timed:
        return no_samples(
            f"no step was timed: TRACE_DIR/{REPORT} gives no step_times_s, and no ProfilerStep "
            "mark is in the traces of all ranks"
        )
    return Reading(
        measurement=Measurement(
            step_times_s=tuple(tuple(steps) for steps in timed),
            warmup_times_s=((),) * job.world_size,
            losses=tuple(report.losses),
            tokens_per_step=study.workload.tokens_per_step,
            peak_memory_bytes=tuple(report.peak_memory_bytes),
            wall_s=result.wall_s,
            device=study.environment.device,
            torch_version=None,
            profiled=report.step_times_s is None,
            tokens_verified=report.tokens_per_step is not None,
        ),
        traces=traces,
    )


def _windows_s(traces: "TraceSet | None") -> list[list[float]]:
    """Lengths of the steps that all ranks profiled; empty when there are none, or one has none."""
    if traces is None or not traces.common_steps.size:
        return []
    steps = [trace.steps.among(traces.common_steps) for trace in traces.ranks]
    windows_s = [[float(ns) / 1e9 for ns in rank.end_ns - rank.start_ns] for rank in steps]
    return windows_s if all(min(rank) > 0 for rank in windows_s) else []


TRACE_FOLDER = "trace"
DEGREES = ("dp", "dp_replicate", "dp_shard", "tp", "pp", "cp")
RANKS_RULE = "rank_count"


class CommandRecipe:
    """Starts a script as CCL-Search does, and checks all that it reports."""

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
        """Return nothing: what a script's knobs mean is not known."""
        return {}

    def estimate(self, study: Study, config: Config) -> Mapping[str, float] | None:
        """Return what the built-in trainer would take, where knobs and sizes have usual names."""
        return estimate_script(
            study.workload,
            study.environment,
            {**study.space.defaults, **config.values},
            int(_ranks(study, _command(study), config)),
        )

    def check(self, study: Study) -> None:
        """Raise `StudyError` when the script cannot be started or given its configuration."""
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
        """Return the job of one configuration.

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
                **work_variables(study, rank_count),
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
    knobs = _knobs(study.space)
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
    names = {**_given(study), **config.values}
    return _ranks_expression(study, command).number(names)


def _given(study: Study) -> dict[str, Value | None]:
    """Return what an expression may name in addition to the knobs."""
    return {**facts(study.workload, study.usable_environment), **study.space.defaults}
