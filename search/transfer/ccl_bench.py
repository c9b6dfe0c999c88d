"""CCL-Bench entries: the fields of a workload card, the card and folder of a trial, and checks.

The checks are the rules of the CCL-Bench paper that a program can decide: a valid schema, a
complete environment, enough steps, the plan that ran; and ours: the same work in every trial, and
traces of every rank. The toolkit takes the first YAML file of a folder for the card and every JSON
file next to it for a trace, so everything else is written below `record/`.
"""

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.resources import files
from math import prod
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias

import yaml

from evaluator.metrics.base import Absent
from evaluator.metrics.compute import all_parameters
from evaluator.traces.readers.files import LARGE_LIMITS, pieces
from records.errors import StoreError, StudyError, TraceError, shown
from records.machine import Machine
from records.store.artifacts import Artifacts
from records.study import MIN_TIMED_STEPS, Study, Value
from records.trial import CONTEXTS_FOLDER, Artifact, Measured, Measurement, Trial
from records.workload import Workload
from search.storage import is_inside
from search.study.card_reader import (
    DATA,
    HARDWARE,
    MODEL,
    NOT_YAML,
    UNSAID,
    is_number,
    looked_up,
)
from search.study.cards import KNOB_NAMES
from search.transfer.tables import StudyExport, is_trace, trial_documents

Template: TypeAlias = Mapping[str, "str | Template"]
PLAN: Final = "Model-executor.model_plan_parallelization."
DEGREES: Final = ("dp_replicate", "dp_shard", "tp", "pp", "cp")
BANDWIDTHS: Final = f"{HARDWARE}.network_topo.bandwidth_gbps"
TOTAL: Final = f"{HARDWARE}.xpu_spec.total_count"
PER_NODE: Final = f"{HARDWARE}.xpu_spec.count_per_node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a card, by its dotted path; what is not `needed` may be empty."""

    path: str
    kind: str
    needed: bool


def _fields(template: Template, prefix: str = "") -> Iterator[Field]:
    for name, kind in template.items():
        if isinstance(kind, str):
            needed = not kind.endswith("?")
            yield Field(path=f"{prefix}{name}", kind=kind.removesuffix("?"), needed=needed)
        else:
            yield from _fields(kind, f"{prefix}{name}.")


_CARD: Final[Template] = yaml.safe_load(
    (files("search.transfer") / "workload_card.yaml").read_text(encoding="utf-8")
)
TEMPLATE: Final = tuple(_fields(_CARD))
"""Every field, in the order of the template."""
BY_PATH: Final = {field.path: field for field in TEMPLATE}
_PHASES = ("training", "inference", "serving")
_EMPTY: Final[Mapping[str, object]] = {"mapping": {}, "texts": []}


def nested(
    values: Mapping[str, object], template: Template = _CARD, prefix: str = ""
) -> dict[str, object]:
    """A card from values by dotted path, with every field of the template, empty where untold."""
    return {
        name: values.get(f"{prefix}{name}", _EMPTY.get(kind.removesuffix("?")))
        if isinstance(kind, str)
        else nested(values, kind, f"{prefix}{name}.")
        for name, kind in template.items()
    }


def is_untold(field: Field, value: object) -> bool:
    """Whether a field is empty."""
    may_be_unsaid = field.kind in {"length", "counts"}
    return value is None or value == [] or (not may_be_unsaid and value in UNSAID)


def shape_fault(field: Field, value: object) -> str | None:
    """Why a value is none of this field's kind; None where it is."""
    if field.path.endswith(".phase") and value not in _PHASES:
        return f"is none of {', '.join(_PHASES)}"
    fits, fault = _SHAPES[field.kind]
    return None if fits(value) else fault


def unknown_paths(
    card: Mapping[str, object], template: Template = _CARD, prefix: str = ""
) -> Iterator[str]:
    """Fields of a card that the template does not have, by dotted path."""
    for name, value in card.items():
        known = template.get(name)
        if isinstance(value, Mapping) and isinstance(known, Mapping):
            yield from unknown_paths(value, known, f"{prefix}{name}.")
        elif not isinstance(known, str):
            yield re.sub(r"[^\w.-]", "?", f"{prefix}{name}")[:80]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _are_bandwidths(value: object) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        return False
    numbers = [each for each in value if is_number(each) and each > 0]
    return bool(numbers) and all(is_number(each) or each in UNSAID for each in value)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


_SHAPES: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    "text": (lambda value: isinstance(value, str | int | float), "is not a text"),
    "truth": (lambda value: isinstance(value, bool), "is neither true nor false"),
    "count": (_is_count, "is not a whole number above 0"),
    "length": (lambda value: _is_count(value) or value in UNSAID, "is neither a length nor N/A"),
    "counts": (_are_bandwidths, "is not two numbers: scale-out, scale-up"),
    "texts": (_are_texts, "is not a list of texts"),
    "mapping": (lambda value: isinstance(value, Mapping), "is not a mapping"),
}
"""What a value of each kind has to be, and what is said of one that is not."""


_LIBRARY_VARIABLES = ("NCCL_", "GLOO_", "UCX_", "FI_", "RCCL_", "OMPI_")
_GRANULARITIES = {"training": "model_fwd_bwd_pass", "inference": "model_fwd"}
_XPU_TYPES = {"cpu": "CPU", "cuda": "GPU", "tpu": "TPU"}
UNUSED = "N/A"
MOST_GIVEN_CHARS = 4000


def card_of(
    study: Study, trial: Trial, study_id: str, machine: Machine | None, given: Mapping[str, str]
) -> dict[str, object]:
    """A card with every field of the template; `given` fills what the record does not tell.

    Raises `StudyError` for a field that no card has, or that the record tells.
    """
    if study.workload.phase == "communication":
        raise StudyError("a CCL-Bench entry is of training or inference; export another format")
    values = {
        "version": 1,
        "description": f"{study.workload.name}: trial {trial.ordinal} of study {study_id}",
        **{f"{MODEL}.{name}": value for name, value in _model(study.workload, trial).items()},
        **{f"{DATA}.{name}": value for name, value in _data(study.workload).items()},
        **{f"{HARDWARE}.{n}": value for n, value in _hardware(study, trial, machine).items()},
        **{f"Model-executor.{n}": value for n, value in _executor(study, trial, machine).items()},
        "metric_source.traces": ["json"],
        "metric_source.metrics_specific_trace": [],
    }
    told = {path: value for path, value in values.items() if value is not None}
    return nested({**told, **_given(given, told)})


def _given(given: Mapping[str, str], told: Mapping[str, object]) -> dict[str, object]:
    found: dict[str, object] = {}
    for path, text in given.items():
        if path not in BY_PATH:
            raise StudyError(f"--set {shown(path)}: a card has no such field; see docs/export.md")
        if path in told and path != "description":
            raise StudyError(f"--set {path}: the record says {shown(told[path])}")
        try:
            is_text = BY_PATH[path].kind == "text"
            value = text if is_text else yaml.safe_load(text[:MOST_GIVEN_CHARS])
        except NOT_YAML as error:
            raise StudyError(f"--set {path}={shown(text)} is not YAML") from error
        if why := shape_fault(BY_PATH[path], value):
            raise StudyError(f"--set {path}={shown(text)}: it {why}")
        found[path] = value
    return found


def _model(workload: Workload, trial: Trial) -> Mapping[str, object]:
    steps = 0
    if isinstance(trial.outcome, Measured):
        steps = len(trial.outcome.measurement.slowest_rank_s)
    hidden, heads = workload.hidden_size, workload.head_count
    counted = all_parameters(workload)
    # Of our own decoders the family says only how they are built.
    family = None if workload.family in ("dense", "moe") else workload.family
    return {
        "phase": workload.phase,
        "moe": bool(workload.expert_count),
        "granularity": _GRANULARITIES.get(workload.phase),
        "model_family": workload.model or family or workload.name,
        "precision": workload.precision,
        "epochs": 1,
        "iteration": steps or None,
        "model_arch.num_params": workload.parameter_count
        or (None if isinstance(counted, Absent) else int(counted)),
        "model_arch.num_params_embedding": (workload.vocab_size or 0) * (hidden or 0) or None,
        "model_arch.num_layers": workload.layer_count,
        "model_arch.num_heads": heads,
        "model_arch.head_dim": workload.head_size
        or (hidden // heads if hidden and heads else None),
    }


def _data(workload: Workload) -> Mapping[str, object]:
    is_answered = workload.phase == "inference"
    return {
        "batch_size": workload.global_batch,
        "seq_len": workload.sequence_length,
        "input_len": workload.sequence_length if is_answered else UNUSED,
        "output_len": workload.output_length if is_answered else UNUSED,
        "dataset": "synthetic" if workload.text_file is None else "text file",
    }


def _hardware(study: Study, trial: Trial, machine: Machine | None) -> Mapping[str, object]:
    environment = study.environment
    ranks = _rank_count(trial)
    per_node = min(ranks or environment.ranks_per_node, environment.ranks_per_node)
    # Scale-out, then scale-up, in Gbit/s, as the template orders them.
    links = (environment.scale_out, environment.scale_up)
    bandwidths = [link.bandwidth_bytes_per_s * 8 / 1e9 if link else UNUSED for link in links]
    driver = next((gpu.driver for gpu in machine.gpus if gpu.driver), None) if machine else None
    return {
        "network_topo.topology": "single node" if ranks and ranks <= per_node else None,
        "network_topo.bandwidth_gbps": bandwidths if any(links) else None,
        "xpu_spec.type": _XPU_TYPES[environment.device],
        "xpu_spec.model": environment.accelerator,
        "xpu_spec.total_count": ranks,
        "xpu_spec.count_per_node": per_node,
        "driver_version": "none" if environment.device == "cpu" else driver,
    }


def _rank_count(trial: Trial) -> int | None:
    """The ranks that ran, whatever the environment has."""
    if not isinstance(trial.outcome, Measured):
        return None
    told = trial.outcome.metric("rank_count")
    return int(told) if told else len(trial.outcome.measurement.step_times_s)


def _executor(study: Study, trial: Trial, machine: Machine | None) -> Mapping[str, object]:
    settings = {**study.space.defaults, **(trial.config.values if trial.config else {})}
    on_host, launched = study.environment.device == "cpu", trial.outcome.launched
    single = 0 < (_rank_count(trial) or 0) <= study.environment.ranks_per_node
    told: dict[str, object] = {
        "framework.name": study.origin.framework if study.origin else None,
        **plan_of(settings),
        "communication_library.version": _library_version(trial, machine, on_host=on_host),
        "communication_library.env": {
            name: value
            for name, value in sorted((launched.environment if launched else {}).items())
            if name.startswith(_LIBRARY_VARIABLES)
        },
    }
    if study.launch.recipe == "builtin":
        compiled = settings.get("compile") is True
        told["framework.name"] = "pytorch"
        told["framework.compiler_tool_selection"] = "torch_compile" if compiled else "plain_pytorch"
        told["communication_library.name"] = "Gloo" if on_host else "NCCL"
        if single:
            told["protocol_selection"] = ["tcp"] if on_host else ["p2p"]
    return told


def plan_of(settings: Mapping[str, Value]) -> dict[str, object]:
    """The parallel plan of these settings; degrees that they do not name are 1."""
    named = {KNOB_NAMES.get(knob, knob): value for knob, value in settings.items()}
    plan: dict[str, object] = {name: named.get(name, 1) for name in (*DEGREES, "ep")}
    plan["pp_mb"] = named.get("micro_batch")
    return {f"model_plan_parallelization.{name}": value for name, value in plan.items()}


def _library_version(trial: Trial, machine: Machine | None, *, on_host: bool) -> str | None:
    torch = trial.outcome.measurement.torch_version if isinstance(trial.outcome, Measured) else None
    if on_host:
        return f"torch-{torch}" if torch else None
    software = machine.software if machine else {}
    return next((version for name, version in software.items() if "nccl" in name.lower()), None)


LEAST_OUTPUT_LENGTH = 128
SHOWN_EXTRA = 8
_ENVIRONMENT = (
    "workload.hardware.",
    "Model-executor.framework",
    "Model-executor.communication_library",
    "Model-executor.protocol_selection",
)


Checks: TypeAlias = Mapping[str, Sequence[str]]
"""What breaks each rule, by the rule's name; nothing where it holds."""


def card_checks(card: Mapping[str, object]) -> Checks:
    """Return the rules that a card alone can break."""
    return {
        "schema": [*_schema(card)],
        "environment": [*_environment(card)],
        "protocol": [*_protocol(card)],
        "plan": [*_plan(card)],
    }


def trial_checks(study: Study, trial: Trial, trace_count: int) -> Checks:
    """Return the rules that need the trial itself."""
    if not isinstance(trial.outcome, Measured):
        return {"result": ["the trial failed; choose one with --trial"]}
    sample = trial.outcome.measurement
    launch = "how it was launched is not recorded, so there is no launch script; launch it again"
    return {
        "steps": [*_steps(sample)],
        "tokens": [*_tokens(study, sample)],
        "launch": [] if trial.outcome.launched is not None else [launch],
        "traces": _traces(trace_count, len(sample.step_times_s)),
    }


def _traces(trace_count: int, rank_count: int) -> Sequence[str]:
    if trace_count >= rank_count:
        return []
    return [
        f"{trace_count} traces of {rank_count} ranks; search with [measure] "
        "profiled_steps above 0, and leave --no-traces out"
    ]


def _schema(card: Mapping[str, object]) -> Iterator[str]:
    yield from _missing(card, of_environment=False)
    for field in TEMPLATE:
        value = looked_up(card, field.path)
        if not is_untold(field, value) and (why := shape_fault(field, value)):
            yield f"{field.path} {why}"
    extra = list(unknown_paths(card))
    if extra:
        more = f" and {len(extra) - SHOWN_EXTRA} more" if len(extra) > SHOWN_EXTRA else ""
        yield f"not in the template: {', '.join(extra[:SHOWN_EXTRA])}{more}"


def _environment(card: Mapping[str, object]) -> Iterator[str]:
    yield from _missing(card, of_environment=True)
    # A job on several nodes needs a bandwidth between them.
    bandwidths, total, per_node = (looked_up(card, path) for path in (BANDWIDTHS, TOTAL, PER_NODE))
    one_node = is_number(total) and is_number(per_node) and total <= per_node
    scale_out = bandwidths[0] if isinstance(bandwidths, list) and len(bandwidths) == 2 else 0
    if not one_node and not is_number(scale_out):
        yield f"{BANDWIDTHS}, scale-out, {_give(BANDWIDTHS)}"


def _missing(card: Mapping[str, object], *, of_environment: bool) -> Iterator[str]:
    for field in TEMPLATE:
        is_asked = field.needed and field.path.startswith(_ENVIRONMENT) is of_environment
        if is_asked and is_untold(field, looked_up(card, field.path)):
            yield f"{field.path} {_give(field.path)}"


def _give(path: str) -> str:
    return f"is missing; give it with --set '{path}=...'"


def _protocol(card: Mapping[str, object]) -> Iterator[str]:
    phase = looked_up(card, f"{MODEL}.phase")
    count, length = looked_up(card, f"{MODEL}.iteration"), looked_up(card, f"{DATA}.output_len")
    if phase == "training":
        if is_number(count) and count < MIN_TIMED_STEPS:
            yield f"{count} iterations; training takes at least {MIN_TIMED_STEPS}"
    elif not (is_number(length) and length >= LEAST_OUTPUT_LENGTH):
        yield (
            f"output_len is {str(length)[:20]}; {str(phase)[:20]} takes answers of at least "
            f"{LEAST_OUTPUT_LENGTH} tokens"
        )


def _plan(card: Mapping[str, object]) -> Iterator[str]:
    degrees = [looked_up(card, f"{PLAN}{name}") for name in DEGREES]
    total = looked_up(card, TOTAL)
    known = [degree for degree in degrees if isinstance(degree, int)]
    if len(known) < len(DEGREES) or not isinstance(total, int):
        yield "the degrees or total_count are not all given"
    elif prod(known) != total:
        words = " * ".join(f"{name} {degree}" for name, degree in zip(DEGREES, known, strict=True))
        yield f"{words} is {prod(known)}, but total_count is {total}"


def _steps(sample: Measurement) -> Iterator[str]:
    if sample.imported:
        yield "one number recorded elsewhere, without samples; launch it again here"
    elif len(sample.slowest_rank_s) < MIN_TIMED_STEPS:
        yield (
            f"{len(sample.slowest_rank_s)} timed steps; at least {MIN_TIMED_STEPS} are needed "
            "([measure] timed_steps)"
        )
    elif not any(sample.warmup_times_s):
        yield "no warm-up step before those timed ([measure] warmup_steps)"
    if sample.profiled:
        yield "timed in profiled steps; have the script report its step times"
    if sample.stopped == "slower":
        yield "stopped early, as clearly slower than the best; choose another --trial"


def _tokens(study: Study, sample: Measurement) -> Iterator[str]:
    wanted = study.workload.tokens_per_step
    if sample.tokens_per_step != wanted:
        yield f"{sample.tokens_per_step} tokens per step were processed, {wanted} were requested"
    elif not sample.tokens_verified:
        yield "tokens per step were declared, not reported by the job; have its script report them"


CARD = "workload_card.yaml"
RECORD = "record"
SCRIPT = "launch.sh"
_RANK = re.compile(r"rank[-_]?(\d{1,7})(?!\d)")


def write_entry(
    found: StudyExport,
    card: Mapping[str, object],
    checks: Checks,
    artifacts: Artifacts,
    script: str,
    folder: Path,
    *,
    allow_missing: bool,
) -> tuple[str, ...]:
    """Fill a new folder with one trial; return the names of missing files, if they are allowed.

    `script` starts the trial again; empty where no launch is recorded. Raises `StoreError` for a
    file that is missing or was altered.
    """
    (trial,), (document,) = found.trials, trial_documents(found)
    record = folder / RECORD
    record.mkdir(parents=True)
    text = yaml.safe_dump(dict(card), sort_keys=False, allow_unicode=True, width=100)
    (folder / CARD).write_text(text, encoding="utf-8")
    if script:
        (folder / SCRIPT).write_text(script, encoding="utf-8")
        (folder / SCRIPT).chmod(0o755)
    for name, value in (("trial", document), ("metrics", document["metrics"]), ("checks", checks)):
        text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
        path = record / f"{name}.json"
        path.write_text(f"{text}\n", encoding="utf-8", errors="backslashreplace")
    (record / "policy.py").write_text(trial.policy.source, encoding="utf-8", errors="surrogatepass")
    return tuple(_write_files(trial, artifacts, folder, allow_missing))


def traces_of(trial: Trial) -> list[Artifact]:
    """The traces of a trial by rising rank, those that it left outside of any context."""
    found = [
        each
        for each in trial.outcome.artifacts
        if is_trace(each.name) and not PurePosixPath(each.name).is_relative_to(CONTEXTS_FOLDER)
    ]
    return sorted(found, key=lambda each: (_rank(each.name, len(found)), each.name))


def _write_files(
    trial: Trial, artifacts: Artifacts, folder: Path, allow_missing: bool
) -> Iterator[str]:
    traces = traces_of(trial)
    for artifact in trial.outcome.artifacts:
        if allow_missing and artifacts.size(artifact.digest) is None:
            yield artifact.name
        elif artifact in traces and is_json(artifact.name):
            rank = traces.index(artifact)
            _unpack(artifact, artifacts, folder / f"rank{rank}_trace.json")
        else:
            if not is_inside(artifact.name):
                name = repr(artifact.name[:80])
                raise StoreError(f"a file of the record is called {name}, which leads elsewhere")
            to = folder / RECORD / "files" / artifact.name
            to.parent.mkdir(parents=True, exist_ok=True)
            artifacts.copy(artifact.digest, to)


def is_json(name: str) -> bool:
    """Whether a trace is JSON, compressed or not."""
    return name.removesuffix(".gz").removesuffix(".zst").endswith(".json")


def _unpack(artifact: Artifact, artifacts: Artifacts, to: Path) -> None:
    """Write a trace without compression, as the toolkit reads it."""
    with tempfile.TemporaryDirectory(dir=to.parent, prefix=".unpacking-") as scratch:
        copy = Path(scratch) / "copy"
        artifacts.copy(artifact.digest, copy)
        try:
            with to.open("wb") as out, closing(pieces(copy, LARGE_LIMITS)) as found:
                for piece in found:
                    out.write(piece)
        except TraceError as error:
            why = str(error).replace(str(copy), artifact.name)
            raise StoreError(f"{why}; leave it out with --no-traces --incomplete") from error


def _rank(name: str, count: int) -> int:
    """The rank that a trace's name tells; those that tell none come last."""
    found = _RANK.search(PurePosixPath(name).name)
    return int(found[1]) if found else count
