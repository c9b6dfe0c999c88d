"""Study files (TOML) over a base study, and the built-in studies of training and collectives."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from pydantic import ValidationError

from evaluator.recipes.collectives import absence
from evaluator.recipes.command import locate
from policies.contract import FIRST
from records.codec import from_document
from records.errors import STRICT, StudyError, shown, suggestion
from records.files import read_text
from records.study import (
    Budget,
    Command,
    Constraint,
    Dimension,
    Environment,
    Launch,
    Link,
    Llm,
    Measure,
    Objective,
    Price,
    Range,
    SearchSpace,
    Study,
    Value,
)
from records.workload import Message, Workload, known_model

RECIPE = "collectives"


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """The built-in studies of one kind of device."""

    __pydantic_config__ = STRICT

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


SECTIONS: Mapping[str, type] = {
    "workload": Workload,
    "environment": Environment,
    "objective": Objective,
    "budget": Budget,
    "measure": Measure,
    "launch": Launch,
    "command": Command,
    "llm": Llm,
}
TABLES = (*SECTIONS, "space", "constraint", "message", "context")
CONTEXT_KEYS = ["name", "held_out", "workload", "environment"]
OBJECTIVE_LISTS = {"more": "more_objectives", "limits": "limits"}
"""Keys under [objective], and their fields of a study."""
UNKNOWN_KEY = "unexpected_keyword_argument"
UNION_MEMBERS = {"bool", "int", "float", "str"}
MOST_KEY_PARTS = 32
_LONG_KEY = re.compile(
    rf"""(?<![\w"'-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){{{MOST_KEY_PARTS}}}"""  # read in linear time
)
SCALARS = ("name", "seed_policy", "strategy", "random_seed", "parallel")


def read_study_file(path: Path, base: Study) -> Study:
    """Read a study from a file; tables and keys that it omits keep the values of the base.

    `[space.NAME]` tables, `[[constraint]]` and `[[message]]` replace those of the base as a whole.
    """
    document = _document(path)
    try:
        merged = _laid_over(_base(base, document), document)
        study = from_document(Study, _with_contexts(_with_objectives(merged), document))
        return _with_script(study, document, path.parent)
    except ValidationError as error:
        raise StudyError(f"{path}: {_explained(error, document)}") from error
    except (StudyError, TypeError, ValueError) as error:
        raise StudyError(f"{path}: {error}") from error


def stated_workload(path: Path) -> Mapping[str, int]:
    """Return the positive whole numbers under [workload] of a file, valid or not."""
    workload = _document(path).get("workload", {})
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


def _laid_over(base: dict[str, object], document: Mapping[str, object]) -> dict[str, object]:
    merged = dict(base)
    for key, value in document.items():
        if key == "space":
            constraints = document.get("constraint", [])
            merged["space"] = {"dimensions": _dimensions(value), "constraints": constraints}
        elif key == "constraint":
            if "space" not in document:
                merged["space"] = {**_table(base["space"], "space"), "constraints": value}
        elif key in SECTIONS:
            merged[key] = _over(base[key] or {}, value, key)
        elif key in SCALARS:
            merged[key] = value
        elif key not in ("message", "context"):
            raise StudyError(f"unknown key {key!r}; {suggestion(key, [*TABLES, *SCALARS])}")
    if "message" in document:
        messages = _list(document["message"], "message", "kind of message")
        merged["workload"] = {**_table(merged["workload"], "workload"), "messages": messages}
    return merged


def _over(base: object, value: object, name: str) -> dict[str, object]:
    """Return a table over that of the base; a named model brings its sizes."""
    given = _table(value, name)
    model = given.get("model") if name.endswith("workload") else None
    sizes = {"name": model, **known_model(model).sizes} if isinstance(model, str) else {}
    return {**_table(base, name), **sizes, **given}


def _with_contexts(
    study: dict[str, object], document: Mapping[str, object]
) -> Mapping[str, object]:
    """Return the study with the contexts of the file, each over its workload and environment."""
    contexts = _list(document.get("context", []), "context", "context")
    return {**study, "contexts": [_context(_table(body, "context"), study) for body in contexts]}


def _context(given: Mapping[str, object], study: Mapping[str, object]) -> dict[str, object]:
    for key in given:
        if key not in CONTEXT_KEYS:
            raise StudyError(f"[context] unknown key {key!r}; {suggestion(key, CONTEXT_KEYS)}")
    tables = {
        name: _over(study[name], given.get(name, {}), f"context.{name}")
        for name in ("workload", "environment")
    }
    return {**given, **tables}


def _with_objectives(study: dict[str, object]) -> dict[str, object]:
    """Return the study with the lists of its objective table as fields of the study."""
    given = _table(study["objective"], "objective")
    main = {key: value for key, value in given.items() if key not in OBJECTIVE_LISTS}
    lists = {field: given[key] for key, field in OBJECTIVE_LISTS.items() if key in given}
    return {**study, **lists, "objective": main}


def _list(value: object, name: str, what: str) -> list[object]:
    if not isinstance(value, list):
        raise StudyError(f"[{name}] must be written [[{name}]], once for each {what}")
    return value


def _base(base: Study, document: Mapping[str, object]) -> dict[str, object]:
    """Return the base as a document, adapted to the recipe of the file if it is another one."""
    recipe = _table(document.get("launch", {}), "launch").get("recipe")
    if recipe == base.launch.recipe or recipe not in ("command", RECIPE):
        return _as_document(base)
    if recipe == "command":
        if "space" not in document:
            raise StudyError("[space] is missing; name the knobs of the script, as [space.NAME]")
        launch = replace(base.launch, memory_budget_bytes=None)
        study = replace(base, seed_policy=FIRST, launch=launch)
        return {**_as_document(study), "workload": {}}
    device = _table(document.get("environment", {}), "environment").get("device")
    environment = base.environment
    if device in ("cpu", "cuda"):
        environment = replace(environment, device="cuda" if device == "cuda" else "cpu")
    study = collective_study(replace(base, environment=environment))
    if "space" not in document:
        study = replace(study, space=collective_space(environment.device))
    return _as_document(study)


def _with_script(study: Study, document: Mapping[str, object], folder: Path) -> Study:
    """Return the study with the files of its script, relative to the study file, if it has one."""
    given = _table(document.get("command", {}), "command")
    if given and study.launch.recipe != "command":
        raise StudyError('[command] needs recipe = "command" under [launch]')
    if study.command is None or "run" not in given:
        return study
    return replace(study, command=locate(study.command, folder))


def _dimensions(space: object) -> list[dict[str, object]]:
    knobs = {name: _table(body, f"space.{name}") for name, body in _table(space, "space").items()}
    for name, body in knobs.items():
        if "name" in body:
            raise StudyError(f"[space.{name}] unknown key 'name'; the table's name is the knob's")
    return [{**body, "name": name} for name, body in knobs.items()]


def _table(value: object, name: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise StudyError(f"[{name}] must be a table, not {shown(value)}")
    return value


def _explained(error: ValidationError, document: Mapping[str, object]) -> str:
    """Return the first unknown key, or else the first fault, with its place in the file."""
    faults = error.errors()
    fault = next((f for f in faults if f["type"] == UNKNOWN_KEY), faults[0])
    *where, key = _place(fault["loc"], document)
    if fault["type"] == UNKNOWN_KEY:
        return f"{_table_words(where)}unknown key {key!r}; {suggestion(key, _known_keys(where))}"
    if key in UNION_MEMBERS:
        *where, key = where
    if fault["type"] == "missing":
        places = (_place(each["loc"], document) for each in faults if each["type"] == "missing")
        missing = [name for *table, name in places if table == where]
        return f"{_table_words(where)}needs {', '.join(missing)}"
    return f"{_table_words(where)}{key}: {fault['msg']}"


def _place(location: Sequence[int | str], document: Mapping[str, object]) -> list[str]:
    """Return where a fault of the study is in the file, whose tables differ from the study."""
    match location:
        case ["space", "dimensions", int(index), *rest]:
            names = list(_table(document.get("space"), "space"))
            place = ["space", names[index], *rest]
        case ["space", "constraints", *rest]:
            place = ["constraint", *rest]
        case ["contexts", int(), *rest]:
            place = ["context", *rest]
        case ["more_objectives", int(), *rest]:
            place = ["objective", "more", *rest]
        case ["limits", *rest]:
            place = ["objective", "limits", *rest]
        case ["workload", "messages", int(), *_]:
            place = ["message", *location[2:]]
        case _:
            place = [*location]
    return [str(part) for part in place]


def _known_keys(where: Sequence[str]) -> list[str]:
    match where:
        case ["context"]:
            return CONTEXT_KEYS
        case ["context", *rest]:
            return _known_keys(rest)
        case ["environment", _]:
            return _field_names(Link)
        case ["llm", "price"]:
            return _field_names(Price)
        case ["space", _, "range"]:
            return _field_names(Range)
        case ["space", _]:
            return [name for name in _field_names(Dimension) if name != "name"]
        case ["constraint", *_]:
            return _field_names(Constraint)
        case ["message", *_]:
            return _field_names(Message)
        case ["objective"]:
            return [*_field_names(Objective), *OBJECTIVE_LISTS]
        case _:
            return _field_names(SECTIONS[where[0]])


def _field_names(table: type) -> list[str]:
    return [field.name for field in fields(table)]


def _table_words(where: Sequence[str]) -> str:
    return f"[{'.'.join(where)}] " if where else ""


def _as_document(study: Study) -> dict[str, object]:
    document: dict[str, object] = json.loads(json.dumps(asdict(study)))
    return document


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
        budget=Budget(trials=10, patience=6),
        measure=defaults.measure,
        launch=defaults.launch,
    )
