"""What a user's script is told through its environment, and which names that may not touch.

The names are those of CCL-Search: every knob in upper case, TRACE_DIR and WORKLOAD_NAME. Beyond
these a script is told the work of one step, how many ranks to start and how many steps to run.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from records.errors import StudyError, shown
from records.scrub import expanded
from records.study import Command, SearchSpace, Study, Value
from records.trial import Config

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

TOLD = (
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
    """Raise `StudyError` for the first name or value that a script cannot be told safely."""
    knobs = _knobs(study.space)
    for knob in command.export:
        if knob not in knobs:
            raise StudyError(
                f"[command.export] {shown(knob)} is no knob; knobs are {', '.join(knobs)}"
            )
    names = variable_names(study.space, command)
    for knob, name in names.items():
        where = f"[command.export] {knob}" if knob in command.export else f"[space] {knob!r}"
        _check_name(name, where, (*TOLD, *_OF_THE_SYSTEM, *_OF_THE_JOB))
        if list(names.values()).count(name) > 1:
            raise StudyError(f"{where}: another knob is exported as {name} too; rename one")
    _check_fixed(command, tuple(names.values()))
    _check_places(study, command)
    _check_booleans(command.booleans)
    for text in (*_texts(study.space), *command.run, study.workload.name):
        if "\0" in text:
            raise StudyError(f"[command] no program can be told {shown(text)}: it holds a NUL")


def told(study: Study, rank_count: int) -> dict[str, str]:
    """What every script is told, whatever the configuration; TRACE_DIR comes with the folder."""
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
    """The knobs of a configuration and the defaults beside it, as the script spells them."""
    names = variable_names(study.space, command)
    values = {**study.space.defaults, **config.values}
    return {names[knob]: _spelled(value, command) for knob, value in values.items()}


def arguments(study: Study, command: Command, config: Config, rank_count: int) -> tuple[str, ...]:
    """The command of a configuration: `{knob}` is what it sets, `{args}` all of it as flags."""
    settings = {**study.space.defaults, **config.values}
    values = {knob: _spelled(value, command) for knob, value in settings.items()}
    flags = [f"--{knob.replace('_', '-')}={value}" for knob, value in values.items()]
    values |= {RANK_COUNT: str(rank_count)}
    filled: list[str] = []
    for part in command.run:
        filled += flags if part == ARGS else [_filled(part, values)]
    return tuple(filled)


def _filled(part: str, values: Mapping[str, str]) -> str:
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
                    f"{where} is no knob; knobs are {', '.join(_knobs(study.space))}; {ARGS} "
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
    """The part of our environment that a script may see; never a variable that it is told."""
    allowed = (*INHERITED, *command.inherit)
    own = {*TOLD, *variable_names(study.space, command).values()}
    return {
        name: value
        for name, value in ours.items()
        if name not in own and any(fnmatchcase(name, pattern) for pattern in allowed)
    }


def _knobs(space: SearchSpace) -> list[str]:
    return list(dict.fromkeys([*(d.name for d in space.dimensions), *space.defaults]))


def _spelled(value: Value, command: Command) -> str:
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
            raise StudyError(f"{where}: no program can be told {shown(name)} = {shown(value)}")
        if name in (*TOLD, *of_knobs):
            raise StudyError(f"{where} is set by each trial; leave it out")
        if _SECRET.search(name):
            raise StudyError(
                f"{where} looks like a secret, and a study is on record; "
                "let the script read it from a file"
            )


def _check_booleans(booleans: tuple[str, str]) -> None:
    true, false = booleans
    if true == false or true.lower() in _FALSE_WORDS or not (true or false):
        raise StudyError(
            f"[command] booleans {list(booleans)} must be how the script spells true, then false"
        )


def _texts(space: SearchSpace) -> Iterator[str]:
    for dimension in space.dimensions:
        yield from (choice for choice in dimension.choices or () if isinstance(choice, str))
    yield from (value for value in space.defaults.values() if isinstance(value, str))
