"""TOML study files; built-in and collective studies.

The study of collective setups: what it exchanges and searches if a study file does not say.

Study files (TOML) laid over a base study; unknown keys are errors with a suggestion.

The built-in study: a small Llama-style decoder trained on whatever this machine has.
"""

import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path

from pydantic import ValidationError

from evaluator.recipes.collectives import absence
from evaluator.recipes.command import locate
from policies.contract import FIRST
from records.codec import from_document
from records.errors import StudyError, shown
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
KIB, MIB = 1 << 10, 1 << 20

CPU_MIX = ((4 * KIB, 8), (256 * KIB, 4), (4 * MIB, 1))
CUDA_MIX = ((64 * KIB, 16), (4 * MIB, 8), (64 * MIB, 4))
"""Sizes of all-reduces and how many there are in a step: short ones, middling ones, long ones."""

CPU_KNOBS: Mapping[str, tuple[Value, ...]] = {
    "in_flight": (1, 4),
    "fusion_bytes": (0, MIB, 25 * MIB),
    "chunk_count": (1, 4),
}
MPI_KNOBS: Mapping[str, tuple[Value, ...] | None] = {
    "ompi_allreduce_algorithm": None,
    "ompi_allreduce_segment_bytes": (64 * KIB, 256 * KIB),
    "ompi_single_copy": ("default", "none"),
}
CUDA_KNOBS: Mapping[str, tuple[Value, ...] | None] = {
    **CPU_KNOBS,
    "nccl_algo": ("default", "Ring", "Tree", "NVLS"),
    "nccl_proto": None,
    "nccl_min_nchannels": (0, 16),
}


def collective_study(base: Study) -> Study:
    """A study over the base's machine that exchanges a mix of all-reduces; its space is empty."""
    device = base.environment.device
    messages = tuple(
        Message(collective="all_reduce", size_bytes=size_bytes, count=count)
        for size_bytes, count in (CPU_MIX if device == "cpu" else CUDA_MIX)
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
    """Knobs of what is there to be chosen from on this machine."""
    if device == "cuda":
        return _space(CUDA_KNOBS)
    if absence("mpi") is not None:
        return _space(CPU_KNOBS)
    return _space({"comm_adapter": ("c10d", "mpi"), **CPU_KNOBS, **MPI_KNOBS})


def _space(knobs: Mapping[str, tuple[Value, ...] | None]) -> SearchSpace:
    return SearchSpace(
        dimensions=tuple(Dimension(name=name, choices=choices) for name, choices in knobs.items())
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
"""Keys under [objective], and the fields of a study that they are."""
UNKNOWN_KEY = "unexpected_keyword_argument"
UNION_MEMBERS = {"bool", "int", "float", "str"}
MOST_KEY_PARTS = 32
_LONG_KEY = re.compile(
    rf"""(?<![\w"'-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){{{MOST_KEY_PARTS}}}"""  # read in linear time
)
SCALARS = ("name", "seed_policy", "strategy", "random_seed", "parallel")


def read_study_file(path: Path, base: Study) -> Study:
    """A study from a file; a table that is left out, or a key inside one, keeps the base's value.

    `[space.NAME]` tables, `[[constraint]]` and `[[message]]` replace the base's as a whole. The
    file is only read.
    """
    document = _document(path)
    try:
        merged = _laid_over(_base(base, document), document)
        study = from_document(Study, _with_contexts(_objectives_apart(merged), document))
        return _with_script(study, document, path.parent)
    except ValidationError as error:
        raise StudyError(f"{path}: {_explained(error, document)}") from error
    except (StudyError, TypeError, ValueError) as error:
        raise StudyError(f"{path}: {error}") from error


def stated_workload(path: Path) -> Mapping[str, int]:
    """The whole numbers above 0 under [workload] of a file, whatever else is wrong with it."""
    workload = _document(path).get("workload", {})
    given = workload.items() if isinstance(workload, dict) else ()
    return {name: value for name, value in given if type(value) is int and value > 0}


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
            merged["space"] = {
                "dimensions": _dimensions(value),
                "constraints": document.get("constraint", []),
            }
        elif key == "constraint":
            if "space" not in document:
                space = base["space"]
                merged["space"] = {**_table(space, "space"), "constraints": value}
        elif key == "workload":
            given = _table(value, key)
            merged[key] = {**_table(base[key], key), **_model_sizes(given), **given}
        elif key in SECTIONS:
            merged[key] = {**_table(base[key] or {}, key), **_table(value, key)}
        elif key in SCALARS:
            merged[key] = value
        elif key not in ("message", "context"):
            raise StudyError(f"unknown key {key!r}; {suggestion(key, [*TABLES, *SCALARS])}")
    if "message" in document:
        merged["workload"] = {
            **_table(merged["workload"], "workload"),
            "messages": _messages(document["message"]),
        }
    return merged


def _with_contexts(
    study: dict[str, object], document: Mapping[str, object]
) -> Mapping[str, object]:
    """The study with the contexts of the file, each laid over its own workload and environment."""
    given = document.get("context", [])
    if not isinstance(given, list):
        raise StudyError("[context] must be written [[context]], once for each context")
    return {**study, "contexts": [_context(_table(body, "context"), study) for body in given]}


def _context(given: Mapping[str, object], study: Mapping[str, object]) -> dict[str, object]:
    for key in given:
        if key not in CONTEXT_KEYS:
            raise StudyError(f"[context] unknown key {key!r}; {suggestion(key, CONTEXT_KEYS)}")
    workload = _table(given.get("workload", {}), "context.workload")
    environment = _table(given.get("environment", {}), "context.environment")
    return {
        **given,
        "workload": {
            **_table(study["workload"], "workload"),
            **_model_sizes(workload),
            **workload,
        },
        "environment": {**_table(study["environment"], "environment"), **environment},
    }


def _objectives_apart(study: dict[str, object]) -> dict[str, object]:
    """The study with what its objective table lists beside the main one, and limits, as its own."""
    given = _table(study["objective"], "objective")
    main = {key: value for key, value in given.items() if key not in OBJECTIVE_LISTS}
    apart = {field: given[key] for key, field in OBJECTIVE_LISTS.items() if key in given}
    return {**study, **apart, "objective": main}


def _messages(value: object) -> list[object]:
    if not isinstance(value, list):
        raise StudyError("[message] must be written [[message]], once for each kind of message")
    return value


def _model_sizes(workload: Mapping[str, object]) -> Mapping[str, object]:
    """The sizes of the model that a workload table names, which its own keys come before."""
    name = workload.get("model")
    return {"name": name, **known_model(name).sizes} if isinstance(name, str) else {}


def _base(base: Study, document: Mapping[str, object]) -> dict[str, object]:
    """The base as a document, without what only the built-in recipe trains if another is asked."""
    asked = _table(document.get("launch", {}), "launch").get("recipe")
    if asked == base.launch.recipe:
        return _as_document(base)
    if asked == "command":
        return _script_base(base, document)
    if asked == RECIPE:
        return _collectives_base(base, document)
    return _as_document(base)


def _script_base(base: Study, document: Mapping[str, object]) -> dict[str, object]:
    if "space" not in document:
        raise StudyError("[space] is missing; name the knobs of the script, as [space.NAME]")
    return {
        **_as_document(base),
        "workload": {},
        "seed_policy": FIRST,
        "launch": asdict(replace(base.launch, memory_budget_bytes=None)),
    }


def _collectives_base(base: Study, document: Mapping[str, object]) -> dict[str, object]:
    """What to exchange and, unless the file says it, what to search depends on the device."""
    device = _table(document.get("environment", {}), "environment").get("device")
    environment = base.environment
    if device in ("cpu", "cuda"):
        environment = replace(environment, device="cuda" if device == "cuda" else "cpu")
    study = collective_study(replace(base, environment=environment))
    if "space" not in document:
        study = replace(study, space=collective_space(environment.device))
    return _as_document(study)


def _with_script(study: Study, document: Mapping[str, object], folder: Path) -> Study:
    """The study with the files of its script found beside the study file, if it has a script."""
    given = _table(document.get("command", {}), "command")
    if given and study.launch.recipe != "command":
        raise StudyError('[command] needs recipe = "command" under [launch]')
    if study.command is None or "run" not in given:
        return study
    return replace(study, command=locate(study.command, folder))


def _dimensions(space: object) -> list[dict[str, object]]:
    return [
        {**_dimension(body, f"space.{name}"), "name": name}
        for name, body in _table(space, "space").items()
    ]


def _dimension(body: object, where: str) -> dict[str, object]:
    fields_given = _table(body, where)
    if "name" in fields_given:
        raise StudyError(f"[{where}] unknown key 'name'; the knob is called what its table is")
    return fields_given


def _table(value: object, name: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise StudyError(f"[{name}] must be a table, not {shown(value)}")
    return value


def _explained(error: ValidationError, document: Mapping[str, object]) -> str:
    """The first unknown key, or else the first fault, in the words of the file."""
    faults = error.errors()
    fault = next((f for f in faults if f["type"] == UNKNOWN_KEY), faults[0])
    *where, key = _place(fault["loc"], document)
    if fault["type"] == UNKNOWN_KEY:
        return f"{_table_words(where)}unknown key {key!r}; {suggestion(key, _known_keys(where))}"
    if key in UNION_MEMBERS:
        *where, key = where
    return f"{_table_words(where)}{key}: {fault['msg']}"


def _place(location: Sequence[int | str], document: Mapping[str, object]) -> list[str]:
    """Where a fault is in the file, in which dimensions are named and constraints a table."""
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


def suggestion(name: str, known: list[str]) -> str:
    """The closest known name as a question, or all of them."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"


def _as_document(study: Study) -> dict[str, object]:
    document: dict[str, object] = json.loads(json.dumps(asdict(study)))
    return document


CPU_WORKLOAD = Workload(
    name="decoder-4L-128d",
    family="dense",
    precision="fp32",
    layer_count=4,
    hidden_size=128,
    head_count=4,
    kv_head_count=4,
    ffn_size=352,
    vocab_size=512,
    sequence_length=128,
    global_batch=16,
)
CPU_MEMORY_BUDGET_BYTES = 44 << 20
"""Per rank, beyond the started runtime: plain data parallelism with whole batches does not fit."""

CUDA_WORKLOAD = Workload(
    name="decoder-16L-2048d",
    family="dense",
    precision="bf16",
    layer_count=16,
    hidden_size=2048,
    head_count=16,
    kv_head_count=8,
    ffn_size=5632,
    vocab_size=32000,
    sequence_length=2048,
    global_batch=32,
)

CPU_MEASURE = Measure(max_timed_steps=10)
"""Launches of a small model differ by more than its steps: rather more of them than longer ones."""

CUDA_TIMEOUT_S = 600.0
"""The first launch that compiles may take minutes."""

DEGREES = ("dp_replicate", "dp_shard", "tp", "pp")
BUILTIN_CPU_KNOBS = ("micro_batch", "activation_checkpointing")
BUILTIN_CUDA_KNOBS = (*BUILTIN_CPU_KNOBS, "compile", "attention_backend", "optimizer_loop")
CHOICES: Mapping[str, tuple[Value, ...]] = {
    "attention_backend": ("auto", "flash", "cudnn"),
    "optimizer_loop": ("foreach", "fused"),
    "pipeline_schedule": ("1f1b", "interleaved_1f1b", "zbv_zero_bubble"),
}
"""Fewer than the recipe knows, where some differ too little to be worth a launch."""
CPU_CHOICES: Mapping[str, tuple[Value, ...]] = {
    **CHOICES,
    # Without "selective" every configuration can be launched a few times within an hour.
    "activation_checkpointing": ("none", "full"),
}


def builtin_space(environment: Environment) -> SearchSpace:
    """Knobs of the built-in recipe, which adds the other choices and all rules."""
    on_cpu = environment.device == "cpu"
    knobs, choices = (BUILTIN_CPU_KNOBS, CPU_CHOICES) if on_cpu else (BUILTIN_CUDA_KNOBS, CHOICES)
    if environment.world_size > 1:
        knobs = (*DEGREES, "pipeline_schedule", *knobs)
    return SearchSpace(
        dimensions=tuple(Dimension(name=name, choices=choices.get(name)) for name in knobs)
    )


def fitted(workload: Workload, environment: Environment) -> Workload:
    """The workload with a batch that all ranks can share, none of them left idle."""
    ranks = environment.world_size
    return replace(workload, global_batch=-(-workload.global_batch // ranks) * ranks)


def builtin_study(environment: Environment) -> Study:
    """The study that `cclsearch run` searches when it is given none."""
    on_cpu = environment.device == "cpu"
    workload = fitted(CPU_WORKLOAD if on_cpu else CUDA_WORKLOAD, environment)
    return Study(
        name=f"builtin-{environment.device}",
        workload=workload,
        environment=environment,
        space=builtin_space(environment),
        objective=Objective(expression="step_time"),
        seed_policy="sharded",
        budget=Budget(trials=10, patience=6),
        measure=CPU_MEASURE if on_cpu else Measure(timeout_s=CUDA_TIMEOUT_S),
        launch=Launch(memory_budget_bytes=CPU_MEMORY_BUDGET_BYTES if on_cpu else None),
    )
