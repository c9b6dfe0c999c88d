"""A user's own script as a recipe: knobs go in as variables, traces and step times come out.

The variables are those of CCL-Search: every knob in upper case, TRACE_DIR and WORKLOAD_NAME, and
besides these the work of one step, the number of ranks and the number of steps. In `steps.json`
the script reports what it did; without step times there, they come from the profiled steps in its
traces, and are marked as such. Nothing is taken from another trial.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from evaluator.estimate.memory import estimate_memory
from evaluator.estimate.step_time import estimate_script, script_as_builtin
from evaluator.ports import NODE_PLACES, Job, JobResult, Reading
from evaluator.rank.job import DeviceKind
from evaluator.recipes.script_output import TRACE_DIR, read_script
from records.errors import StudyError, shown
from records.expression import Expression, facts, parse
from records.files import open_regular
from records.scrub import expanded
from records.study import Command, Constraint, SearchSpace, Study, Value, choices_of
from records.trial import Config, Failed


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
OF_THE_JOB = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_*", "TORCHELASTIC_*", "CCLSEARCH_*"),
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    "HIP_VISIBLE_DEVICES",
)
SECRET = re.compile(r"(KEY|TOKEN|AUTH)(_|$)|SECRET|PASSW|CREDENTIAL|COOKIE", re.IGNORECASE)
"""Names of variables that a study does not record."""


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
        _check_name(name, where, (*WORK_VARIABLES, *_OF_THE_SYSTEM, *OF_THE_JOB))
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
    numbers = {
        "GLOBAL_BATCH": workload.global_batch,
        "SEQUENCE_LENGTH": workload.sequence_length,
        "TOKENS_PER_STEP": workload.tokens_per_step,
        "OUTPUT_LENGTH": workload.output_length,
        "REQUESTS_PER_S": workload.requests_per_s,
        "RANK_COUNT": rank_count,
        "WARMUP_STEPS": measure.warmup_steps,
        "TIMED_STEPS": measure.timed_steps,
        "PROFILED_STEPS": measure.profiled_steps,
    }
    given = {name: f"{value:.15g}" for name, value in numbers.items() if value is not None}
    return {"WORKLOAD_NAME": workload.name, **given}


def settings(study: Study, command: Command, config: Config) -> dict[str, str]:
    """The knobs of a configuration and the defaults for the rest, as the script spells them."""
    names = variable_names(study.space, command)
    values = {**study.space.defaults, **config.values}
    return {names[knob]: _spell(value, command) for knob, value in values.items()}


def _filled(
    words: Sequence[str],
    study: Study,
    command: Command,
    config: Config,
    rank_count: int,
    flags: Sequence[str],
) -> tuple[str, ...]:
    """Words of the command with `{knob}` as a configuration sets it, and `{args}` as `flags`.

    A word that is only a knob is left out where its value is empty.
    """
    settings = {**study.space.defaults, **config.values}
    values = _node_places(study, rank_count)
    values |= {knob: _spell(value, command) for knob, value in settings.items()}
    values |= {RANK_COUNT: str(rank_count)}
    filled: list[str] = []
    for part in words:
        filled += flags if part == ARGS else filter(None, [_fill(part, values)])
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
            if knob is None or knob == RANK_COUNT or knob in _node_places(study, 1):
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


def _node_places(study: Study, rank_count: int) -> dict[str, str]:
    """Return places for the nodes of a launch; what differs between them is filled on each."""
    node_count = study.node_count(rank_count)
    return {
        "node_count": str(node_count),
        "ranks_per_node": str(rank_count if node_count == 1 else study.environment.ranks_per_node),
        **{place: f"{{{place}}}" for place in NODE_PLACES},
    }


def variable_names(space: SearchSpace, command: Command) -> dict[str, str]:
    """Which variable holds which knob."""
    return {knob: command.export.get(knob, knob.upper()) for knob in _knobs(space)}


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
        if SECRET.search(name):
            raise StudyError(
                f"{where} looks like a secret, and a study is stored; "
                "let the script read it from a file"
            )


def _texts(space: SearchSpace) -> Iterator[str]:
    for dimension in space.dimensions:
        yield from (choice for choice in dimension.choices or () if isinstance(choice, str))
    yield from (value for value in space.defaults.values() if isinstance(value, str))


TRACE_FOLDER = "trace"
_LIBRARY = Path(__file__).parents[2] / "cclsearch.py"
"""What a script imports as `cclsearch`: one file that needs nothing else."""

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

    def derived(self, study: Study) -> Mapping[str, Callable[[Mapping[str, Value]], Value]]:
        """Return the estimate of memory, where knobs and sizes have usual names."""
        if not self.has_sizes(study):
            return {}
        device = DeviceKind.CPU if study.environment.device == "cpu" else DeviceKind.CUDA

        def estimate(settings: Mapping[str, Value]) -> Value:
            meaning, ranks = self.meaning(study, settings), study.environment.world_size
            as_builtin = script_as_builtin(study.workload, meaning, ranks)
            return estimate_memory(*as_builtin, device).total_bytes if as_builtin else 0

        return {"estimated_memory_bytes": estimate}

    def has_sizes(self, study: Study) -> bool:
        """Return whether the sizes of the model are known, and what the knobs mean."""
        first = {each.name: choices_of(each)[0] for each in study.space.dimensions}
        meaning = self.meaning(study, {**study.space.defaults, **first})
        return script_as_builtin(study.workload, meaning, study.environment.world_size) is not None

    def meaning(self, study: Study, settings: Mapping[str, Value]) -> Mapping[str, Value]:  # noqa: ARG002 - for subclasses
        """Return settings under the names that the estimates know, where they differ."""
        return settings

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
        if study.launch.python is not None:
            raise StudyError(
                "[launch] python is that of the built-in trainer; a script is started with the "
                "Python that [command] run names"
            )
        check_variables(study, command)
        _check_ranks(study, _ranks_expression(study, command))
        for pattern in command.trace_files:
            if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
                raise StudyError(
                    f"[command] trace_files {shown(pattern)} leads out of TRACE_DIR; "
                    "patterns are relative to it"
                )
        check_program(command)
        check_unchanged(command)

    def inherited(self, study: Study, ours: Mapping[str, str]) -> Mapping[str, str]:
        """Show a script where programs are, and what the study lets through; nothing else.

        It never sees a variable of ours that a trial sets.
        """
        command = _command(study)
        allowed = (*INHERITED, *command.inherit)
        own = {*WORK_VARIABLES, *variable_names(study.space, command).values()}
        return {
            name: value
            for name, value in ours.items()
            if name not in own and any(fnmatchcase(name, pattern) for pattern in allowed)
        }

    def flags(self, study: Study, config: Config) -> tuple[str, ...]:
        """Return what `{args}` stands for: each knob as a flag."""
        values = {**study.space.defaults, **config.values}
        command = _command(study)
        return tuple(
            f"--{knob.replace('_', '-')}={_spell(value, command)}" for knob, value in values.items()
        )

    def knob_arguments(self, study: Study, config: Config) -> tuple[str, ...]:
        """Return the words of the command that knobs set; none where the script reads variables."""
        command, knobs = _command(study), {*study.space.defaults, *config.values}
        places = {part: {place["knob"] for place in _PLACE.finditer(part)} for part in command.run}
        words = [part for part, named in places.items() if part == ARGS or named & knobs]
        known = {*knobs, "args", None}
        if not all(places[word] <= known for word in words):
            return ()
        return _filled(words, study, command, config, 1, self.flags(study, config))

    def rank_count(self, study: Study, config: Config) -> int:
        """Return how many ranks a configuration takes."""
        return _rank_count(study, _command(study), config)

    def job(self, study: Study, config: Config) -> Job:
        """Return the job of one configuration.

        Raises `StudyError` when the script is not the one that the study began with: its trials
        could not be compared.
        """
        command = _command(study)
        check_unchanged(command)
        rank_count = _rank_count(study, command, config)
        return Job(
            argv=_filled(
                command.run, study, command, config, rank_count, self.flags(study, config)
            ),
            world_size=rank_count,
            files={_LIBRARY.name: _LIBRARY.read_text(encoding="utf-8")},
            folders={TRACE_DIR: TRACE_FOLDER, "PYTHONPATH": "."},
            timeout_s=study.measure.timeout_s,
            traces=tuple(f"{TRACE_FOLDER}/{pattern}" for pattern in command.trace_files),
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
