"""Study files (TOML) over a base study, and the built-in studies of training and collectives."""

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

from pydantic import ValidationError

from evaluator.recipes.catalog import FRAMEWORKS
from evaluator.recipes.collectives import absence
from evaluator.recipes.command import locate
from policies.contract import FIRST
from records.codec import from_document
from records.errors import Strict, StudyError, shown, suggestion
from records.files import read_text
from records.study import (
    Budget,
    Cluster,
    Command,
    Constraint,
    Context,
    Dimension,
    Environment,
    Launch,
    Llm,
    Measure,
    Objective,
    SearchSpace,
    Study,
    Value,
)
from records.workload import Message, Workload, known_model

RECIPE = "collectives"
CONTEXT_TABLES = ("workload", "environment")
MOST_KEY_PARTS = 32
_LONG_KEY = re.compile(
    rf"""(?<![\w"'-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){{{MOST_KEY_PARTS}}}"""  # read in linear time
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives(Objective, Strict):
    """The table [objective]: the main objective, further ones, and limits."""

    more: tuple[Objective, ...] = ()
    limits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFile(Strict):
    """All tables and keys of a study file; the messages of [[message]] are in the workload."""

    name: str
    seed_policy: str
    strategy: str
    random_seed: int
    parallel: int
    workload: Workload
    environment: Environment
    objective: Objectives
    budget: Budget
    measure: Measure
    launch: Launch
    cluster: Cluster | None
    command: Command | None
    llm: Llm
    space: Mapping[str, Dimension]
    constraint: tuple[Constraint, ...]
    message: tuple[Message, ...] = ()
    context: tuple[Context, ...] = ()


def read_study_file(path: Path, base: Study) -> Study:
    """Read a study from a file; tables and keys that it omits keep the values of the base.

    `[space.NAME]` tables, `[[constraint]]`, `[[message]]` and `[[context]]` replace those of the
    base as a whole.
    """
    document = _document(path)
    try:
        base = _for_recipe(base, document)
        study = _over_base(from_document(StudyFile, _tables(document, base)), document, base)
        study = _with_script(study, document, path.parent)
        return with_python(study, study.launch.python, path.parent)
    except ValidationError as error:
        raise StudyError(f"{path}: {first_fault(error, StudyFile)}") from error
    except (StudyError, TypeError, ValueError) as error:
        raise StudyError(f"{path}: {error}") from error


def with_machine_of(path: Path, base: Study) -> Study:
    """Return the base for the machine that a file states, valid or not; the rest stays."""
    stated = _document(path).get("environment")
    given = stated if isinstance(stated, dict) else {}
    try:
        environment = from_document(Environment, {**asdict(base.environment), **given})
    except (ValidationError, StudyError):
        return base  # reading the whole file says what is wrong
    return replace(base, environment=environment)


def stated_workload(path: Path) -> Mapping[str, int]:
    """Return the positive whole numbers under [workload] of a file, valid or not."""
    workload = _document(path).get("workload")
    values = workload.items() if isinstance(workload, dict) else ()
    return {name: value for name, value in values if type(value) is int and value > 0}


def _document(path: Path) -> dict[str, object]:
    try:
        text = read_text(path)
        if _LONG_KEY.search(text):
            raise StudyError(f"{path}: a key has more than {MOST_KEY_PARTS} parts")
        return tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"{path}: cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise StudyError(f"{path}: not TOML: {error}") from error


def _for_recipe(base: Study, document: Mapping[str, object]) -> Study:
    """Return the base, adapted to the recipe of the file if it is another one."""
    recipe = _stated(document, "launch", "recipe")
    if recipe == base.launch.recipe or not (recipe == RECIPE or _is_script(recipe)):
        return base
    if _is_script(recipe):
        if recipe != "command" and "command" not in document:
            raise StudyError(
                f"[command] is missing; add --recipe {recipe} and your launch line, or write a "
                f"whole study with `cclsearch init --recipe {recipe}`"
            )
        if "space" not in document:
            raise StudyError("[space] is missing; name the knobs of the script, as [space.NAME]")
        launch = replace(base.launch, memory_budget_bytes=None)
        return replace(base, seed_policy=FIRST, launch=launch)
    device = _stated(document, "environment", "device")
    environment = base.environment
    if device in ("cpu", "cuda"):
        environment = replace(environment, device="cuda" if device == "cuda" else "cpu")
    study = collective_study(replace(base, environment=environment))
    return replace(study, space=collective_space(environment.device))


def _is_script(recipe: object) -> bool:
    """Whether a recipe starts a program of the user's, and searches what the file says of it."""
    return recipe == "command" or recipe in FRAMEWORKS


def _stated(document: Mapping[str, object], table: str, key: str) -> object:
    """Return a value of a file that is not checked yet; None where it states none."""
    found = document.get(table)
    return found.get(key) if isinstance(found, dict) else None


def _tables(document: Mapping[str, object], base: Study) -> dict[str, object]:
    """Return what the file states, each table over that of the base."""
    study = json.loads(json.dumps(asdict(base)))
    known = {name: study.get(name) for name in _keys(StudyFile)}
    known["objective"] |= {"more": study["more_objectives"], "limits": study["limits"]}
    known |= {"space": {}, "constraint": study["space"]["constraints"], "context": []}
    if "space" in document:
        known["constraint"] = []
    recipe = _stated(document, "launch", "recipe")
    if _is_script(recipe) and recipe != base.launch.recipe:
        known["workload"] = {}
    found = {**known, **{name: _over(known.get(name), document[name], name) for name in document}}
    messages, workload, space = found.pop("message"), found["workload"], found["space"]
    if "message" in document and isinstance(workload, dict):
        found["workload"] = {**workload, "messages": messages}
    if isinstance(space, dict):
        found["space"] = {name: _knob(name, body) for name, body in space.items()}
    if isinstance(found["context"], list):
        found["context"] = [_context(each, found) for each in found["context"]]
    return found


def _over(base: object, given: object, name: str) -> object:
    """Return a table over that of the base; a named model brings its sizes."""
    if not isinstance(base, dict) or not isinstance(given, dict):
        return given
    model = given.get("model") if name == "workload" else None
    sizes = {"name": model, **known_model(model).sizes} if isinstance(model, str) else {}
    return {**base, **sizes, **given}


def _knob(name: str, body: object) -> object:
    if not isinstance(body, dict):
        return body
    if "name" in body:
        raise StudyError(f"[space.{name}] unknown key 'name'; the table's name is the knob's")
    return {**body, "name": name}


def _context(given: object, study: Mapping[str, object]) -> object:
    """Return a context over the workload and the environment of the study."""
    if not isinstance(given, dict):
        return given
    if "space" in given:
        raise StudyError("[context] unknown key 'space'; a context has the space of the study")
    own = {name: _over(study[name], given.get(name, {}), name) for name in CONTEXT_TABLES}
    return {**given, **own}


def _with_script(study: Study, document: Mapping[str, object], folder: Path) -> Study:
    """Return the study with the files of its script, relative to the study file, if it has one."""
    if document.get("command") and study.launch.recipe in ("builtin", RECIPE):
        raise StudyError('[command] needs recipe = "command" under [launch]')
    if study.command is None or _stated(document, "command", "run") is None:
        return study
    return replace(study, command=locate(study.command, folder))


def with_python(study: Study, python: str | None, folder: Path) -> Study:
    """Return the study with a Python for its ranks, whose path may be relative to the folder."""
    if python is not None and os.sep in python and not python.startswith("~"):
        python = str(folder.absolute() / python)
    return replace(study, launch=replace(study.launch, python=python))


def _over_base(file: StudyFile, document: Mapping[str, object], base: Study) -> Study:
    """Return the base with what the file has; a file has no place for the rest of a study."""
    shared = {*_keys(StudyFile)} & {*_keys(Study)} - {"space", "objective"}
    objective = Objective(expression=file.objective.expression, direction=file.objective.direction)
    space = replace(base.space, constraints=file.constraint)
    if "space" in document:
        space = replace(space, dimensions=(*file.space.values(),))
    return replace(
        base,
        **{name: getattr(file, name) for name in shared},
        objective=objective,
        more_objectives=file.objective.more,
        limits=file.objective.limits,
        space=space,
        contexts=file.context if "context" in document else base.contexts,
    )


def first_fault(error: ValidationError, root: type) -> str:
    """Return the first unknown key, or else the first fault, with its place in a file of `root`."""
    faults = error.errors()
    unknown = [each for each in faults if each["type"] == "unexpected_keyword_argument"]
    fault = (unknown or faults)[0]
    *where, key = _place(fault["loc"])
    table = f"[{'.'.join(map(str, where))}] " if where else ""
    match fault["type"]:
        case "unexpected_keyword_argument":
            known = suggestion(str(key), _known_keys(root, where))
            return f"{table}unknown key {key!r}; {known}"
        case "missing":
            places = (_place(each["loc"]) for each in faults if each["type"] == "missing")
            missing = [str(name) for *of, name in places if of == where]
            return f"{table}needs {', '.join(missing)}"
        case "dataclass_type" | "dict_type":
            place = ".".join(map(str, (*where, key)))
            return f"[{place}] must be a table, not {shown(fault['input'])}"
        case "tuple_type" if not where:
            return f"[{key}] must be written [[{key}]], once for each {key}"
        case _ if where[-1:] == ["choices"]:
            return f"{table}{key}: {shown(fault['input'])} is not a number, a text, true or false"
        case _:
            return f"{table}{key}: {fault['msg']}"


def _place(location: Sequence[int | str]) -> Sequence[int | str]:
    """Return where a fault is in the file; of a value of several types pydantic adds the type."""
    match location:
        case ["workload", "messages", *rest]:
            return ["message", *rest]
        case ["space" | "config_space" | "optimization_goal", _, _, _, _]:
            return location[:-1]
        case _:
            return location


def _known_keys(root: type, where: Sequence[int | str]) -> Sequence[str]:
    """Return the keys of a table of a file."""
    table, parts = root, iter(where)
    for part in parts:
        kind = get_type_hints(table)[str(part)]
        if get_origin(kind) in (tuple, Mapping):
            next(parts, None)  # the number of an entry, or the name of a knob
        kinds = (kind, *get_args(kind))
        table = next(each for each in kinds if isinstance(each, type) and is_dataclass(each))
    unwritten = {Dimension: "name", Context: "space", Workload: "messages"}.get(table)
    return [name for name in _keys(table) if name != unwritten]


def _keys(table: type) -> Sequence[str]:
    return [each.name for each in fields(table)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults(Strict):
    """The built-in studies of one kind of device."""

    workload: Workload
    measure: Measure
    launch: Launch
    messages: tuple[tuple[int, int], ...]
    knobs: Mapping[str, tuple[Value, ...]]
    collective_knobs: Mapping[str, tuple[Value, ...]]
    mpi_knobs: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)


@cache
def builtin_defaults(device: str) -> Defaults:
    """Return the defaults for a device; those of GPUs for an unknown one."""
    document = _builtin_document()
    return from_document(Defaults, document["cpu" if device == "cpu" else "cuda"])


@cache
def _builtin_document() -> Mapping[str, object]:
    text = (files("search.study") / "default_studies.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def collective_study(base: Study) -> Study:
    """Return a study of a mix of all-reduces on the base's machine, with an empty space."""
    device = base.environment.device
    messages = tuple(
        Message(collective="all_reduce", size_bytes=size_bytes, count=count)
        for size_bytes, count in builtin_defaults(device).messages
    )
    return replace(
        base,
        name=f"{RECIPE}-{device}",
        workload=Workload(
            name="all-reduces",
            phase="communication",
            global_batch=1,
            sequence_length=1,
            messages=messages,
        ),
        space=SearchSpace(dimensions=()),
        objective=Objective(expression="step_time"),
        seed_policy=FIRST,
        measure=replace(base.measure, profiled_steps=0),
        launch=Launch(recipe=RECIPE),
    )


def collective_space(device: str) -> SearchSpace:
    """Return the knobs that have choices on this machine."""
    defaults = builtin_defaults(device)
    if device == "cuda" or absence("mpi") is not None:
        return _space(defaults.collective_knobs)
    adapters: Mapping[str, tuple[Value, ...]] = {"comm_adapter": ("c10d", "mpi")}
    return _space({**adapters, **defaults.collective_knobs, **defaults.mpi_knobs})


def _space(knobs: Mapping[str, tuple[Value, ...]]) -> SearchSpace:
    """Return a space; a knob without choices has all of its recipe."""
    return SearchSpace(
        dimensions=tuple(
            Dimension(name=name, choices=choices or None) for name, choices in knobs.items()
        )
    )


def builtin_space(environment: Environment) -> SearchSpace:
    """Return knobs of the built-in recipe, which adds the other choices and all rules."""
    knobs = dict(builtin_defaults(environment.device).knobs)
    parallel = from_document(tuple[str, ...], _builtin_document()["parallel_knobs"])
    if environment.world_size > 1:
        return _space({**{name: knobs.pop(name, ()) for name in parallel}, **knobs})
    return _space({name: choices for name, choices in knobs.items() if name not in parallel})


def fitted(workload: Workload, environment: Environment) -> Workload:
    """Return the workload with a batch that all ranks can share equally."""
    ranks = environment.world_size
    return replace(workload, global_batch=-(-workload.global_batch // ranks) * ranks)


def builtin_study(environment: Environment) -> Study:
    """Return the study that `cclsearch run` searches without a study file."""
    defaults = builtin_defaults(environment.device)
    return Study(
        name=f"builtin-{environment.device}",
        workload=fitted(defaults.workload, environment),
        environment=environment,
        space=builtin_space(environment),
        objective=Objective(expression="step_time"),
        seed_policy="sharded",
        measure=defaults.measure,
        launch=defaults.launch,
    )
