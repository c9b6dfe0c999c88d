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
from math import prod
from pathlib import Path, PurePosixPath
from typing import Final, Literal, TypeAlias

import yaml

from evaluator.metrics.base import Absent
from evaluator.metrics.compute import all_parameters
from evaluator.traces.errors import TraceError
from evaluator.traces.readers.files import LARGE_LIMITS, pieces
from records.errors import StoreError, StudyError, shown
from records.machine import Machine
from records.store.artifacts import Artifacts
from records.study import MIN_TIMED_STEPS, Study, Value
from records.trial import Artifact, Measured, Measurement, Trial
from records.workload import Workload
from search.loop.trial import CONTEXTS_FOLDER
from search.storage import is_inside
from search.study.card_reader import NOT_YAML, UNSAID, Card, is_number, looked_up
from search.study.cards import KNOB_NAMES
from search.transfer.tables import StudyExport, is_trace, trial_documents

Kind: TypeAlias = Literal["text", "count", "truth", "counts", "texts", "mapping", "length"]
"""`length` is a count, or N/A; `counts` are two numbers, of which one may be N/A."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a card, by its dotted path; what is not `needed` may be empty."""

    path: str
    kind: Kind
    needed: bool = True


def _fields(prefix: str, kind: Kind, *names: str, needed: bool = True) -> tuple[Field, ...]:
    return tuple(Field(path=f"{prefix}{name}", kind=kind, needed=needed) for name in names)


_MODEL, _DATA, _HARDWARE = "workload.model.", "workload.data.", "workload.hardware."
_EXECUTOR = "Model-executor."
PLAN: Final = "Model-executor.model_plan_parallelization."
DEGREES: Final = ("dp_replicate", "dp_shard", "tp", "pp", "cp")
BANDWIDTHS: Final = f"{_HARDWARE}network_topo.bandwidth_gbps"
TOTAL: Final = f"{_HARDWARE}xpu_spec.total_count"
PER_NODE: Final = f"{_HARDWARE}xpu_spec.count_per_node"

TEMPLATE: Final = (
    *_fields("", "count", "version"),
    *_fields("", "text", "description"),
    *_fields("", "text", "hf_url", "trace_url", needed=False),
    *_fields("", "text", "contributor", "contact"),
    *_fields(_MODEL, "text", "phase"),
    *_fields(_MODEL, "truth", "moe"),
    *_fields(_MODEL, "text", "granularity", "model_family", "precision"),
    *_fields(_MODEL, "count", "epochs", "iteration"),
    *_fields(f"{_MODEL}model_arch.", "count", "num_params", "num_params_embedding"),
    *_fields(f"{_MODEL}model_arch.", "count", "num_layers", "num_heads", "head_dim"),
    *_fields(_DATA, "count", "batch_size", "seq_len"),
    *_fields(_DATA, "length", "input_len", "output_len"),
    *_fields(_DATA, "text", "dataset"),
    *_fields(_HARDWARE, "text", "network_topo.topology"),
    Field(path=BANDWIDTHS, kind="counts"),
    *_fields(_HARDWARE, "text", "xpu_spec.type", "xpu_spec.model"),
    *_fields(_HARDWARE, "count", "xpu_spec.total_count", "xpu_spec.count_per_node"),
    *_fields(_HARDWARE, "text", "driver_version"),
    *_fields(f"{_EXECUTOR}framework.", "text", "name", "compiler_tool_selection"),
    *_fields(PLAN, "count", *DEGREES, "ep", "pp_mb"),
    *_fields(f"{_EXECUTOR}communication_library.", "text", "name", "version"),
    *_fields(f"{_EXECUTOR}communication_library.", "mapping", "env", needed=False),
    *_fields(_EXECUTOR, "texts", "protocol_selection"),
    *_fields("metric_source.", "texts", "traces"),
    *_fields("metric_source.", "texts", "metrics_specific_trace", needed=False),
)
"""Every field, in the order of the template."""

BY_PATH: Final = {field.path: field for field in TEMPLATE}
_PHASES = ("training", "inference", "serving")


def nested(values: Mapping[str, object]) -> dict[str, object]:
    """A card from values by dotted path, with every field of the template, empty where untold."""
    card: dict[str, object] = {}
    for field in TEMPLATE:
        *folders, name = field.path.split(".")
        place = card
        for folder in folders:
            below = place.setdefault(folder, {})
            assert isinstance(below, dict)  # no path of the template is the beginning of another
            place = below
        empty: object = {"mapping": {}, "texts": []}.get(field.kind)
        place[name] = values.get(field.path, empty)
    return card


def is_untold(field: Field, value: object) -> bool:
    """Whether a field is empty."""
    if field.kind in {"length", "counts"}:
        return value is None or value == []
    return value is None or value in UNSAID or value == []


def shape_fault(field: Field, value: object) -> str | None:
    """Why a value is none of this field's kind; None where it is."""
    if field.path.endswith(".phase") and value not in _PHASES:
        return f"is none of {', '.join(_PHASES)}"
    fits, fault = _SHAPES[field.kind]
    return None if fits(value) else fault


def unknown_paths(card: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    """Fields of a card that the template does not have, by dotted path."""
    for name, value in card.items():
        path = f"{prefix}{name}"
        if path in BY_PATH:
            continue
        if isinstance(value, Mapping) and any(known.startswith(f"{path}.") for known in BY_PATH):
            yield from unknown_paths(value, f"{path}.")
        else:
            yield re.sub(r"[^\w.-]", "?", path)[:80]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _are_bandwidths(value: object) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        return False
    numbers = [each for each in value if is_number(each) and each > 0]
    return bool(numbers) and all(is_number(each) or each in UNSAID for each in value)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


_SHAPES: Final[Mapping[Kind, tuple[Callable[[object], bool], str]]] = {
    "text": (lambda value: isinstance(value, str | int | float), "is not a text"),
    "truth": (lambda value: isinstance(value, bool), "is neither true nor false"),
    "count": (_is_count, "is not a whole number above 0"),
    "length": (lambda value: _is_count(value) or value in UNSAID, "is neither a length nor N/A"),
    "counts": (_are_bandwidths, "is not two numbers: scale-out, scale-up"),
    "texts": (_are_texts, "is not a list of texts"),
    "mapping": (lambda value: isinstance(value, Mapping), "is not a mapping"),
}
"""What a value of each kind has to be, and what is said of one that is not."""


_LIBRARY = "Model-executor.communication_library."
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
        **_model(study.workload, trial),
        **_data(study.workload),
        **_hardware(study, trial, machine),
        **_executor(study, trial, machine),
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
        value = _parsed(text) if BY_PATH[path].kind != "text" else text
        if why := shape_fault(BY_PATH[path], value):
            raise StudyError(f"--set {path}={shown(text)}: it {why}")
        found[path] = value
    return found


def _parsed(text: str) -> object:
    try:
        value: object = yaml.safe_load(text[:MOST_GIVEN_CHARS])
    except NOT_YAML as error:
        raise StudyError(f"--set ...={shown(text)} is not a number, list or mapping") from error
    return value


def _model(workload: Workload, trial: Trial) -> dict[str, object]:
    prefix, arch = "workload.model.", "workload.model.model_arch."
    steps = 0
    if isinstance(trial.outcome, Measured):
        steps = len(trial.outcome.measurement.slowest_rank_s)
    hidden, heads = workload.hidden_size, workload.head_count
    counted = all_parameters(workload)
    # Of our own decoders the family says only how they are built.
    family = None if workload.family in ("dense", "moe") else workload.family
    return {
        f"{prefix}phase": workload.phase,
        f"{prefix}moe": bool(workload.expert_count),
        f"{prefix}granularity": _GRANULARITIES.get(workload.phase),
        f"{prefix}model_family": workload.model or family or workload.name,
        f"{prefix}precision": workload.precision,
        f"{prefix}epochs": 1,
        f"{prefix}iteration": steps or None,
        f"{arch}num_params": workload.parameter_count
        or (None if isinstance(counted, Absent) else int(counted)),
        f"{arch}num_params_embedding": (workload.vocab_size or 0) * (hidden or 0) or None,
        f"{arch}num_layers": workload.layer_count,
        f"{arch}num_heads": heads,
        f"{arch}head_dim": workload.head_size or (hidden // heads if hidden and heads else None),
    }


def _data(workload: Workload) -> dict[str, object]:
    prefix, is_answered = "workload.data.", workload.phase == "inference"
    return {
        f"{prefix}batch_size": workload.global_batch,
        f"{prefix}seq_len": workload.sequence_length,
        f"{prefix}input_len": workload.sequence_length if is_answered else UNUSED,
        f"{prefix}output_len": workload.output_length if is_answered else UNUSED,
        f"{prefix}dataset": "synthetic" if workload.text_file is None else "text file",
    }


def _hardware(study: Study, trial: Trial, machine: Machine | None) -> dict[str, object]:
    environment = study.environment
    ranks = _rank_count(trial)
    per_node = min(ranks, environment.ranks_per_node) if ranks else environment.ranks_per_node
    # Scale-out, then scale-up, in Gbit/s, as the template orders them.
    links = (environment.scale_out, environment.scale_up)
    bandwidths = [
        UNUSED if link is None else link.bandwidth_bytes_per_s * 8 / 1e9 for link in links
    ]
    driver = next((gpu.driver for gpu in machine.gpus if gpu.driver), None) if machine else None
    return {
        f"{_HARDWARE}network_topo.topology": "single node" if ranks and ranks <= per_node else None,
        f"{_HARDWARE}network_topo.bandwidth_gbps": bandwidths if any(links) else None,
        f"{_HARDWARE}xpu_spec.type": _XPU_TYPES[environment.device],
        f"{_HARDWARE}xpu_spec.model": environment.accelerator,
        f"{_HARDWARE}xpu_spec.total_count": ranks,
        f"{_HARDWARE}xpu_spec.count_per_node": per_node,
        f"{_HARDWARE}driver_version": "none" if environment.device == "cpu" else driver,
    }


def _rank_count(trial: Trial) -> int | None:
    """The ranks that ran, whatever the environment has."""
    if not isinstance(trial.outcome, Measured):
        return None
    told = trial.outcome.metric("rank_count")
    return int(told) if told else len(trial.outcome.measurement.step_times_s)


def _executor(study: Study, trial: Trial, machine: Machine | None) -> dict[str, object]:
    settings = {**study.space.defaults, **(trial.config.values if trial.config else {})}
    is_ours, on_host = study.launch.recipe == "builtin", study.environment.device == "cpu"
    framework = study.origin.framework if study.origin else None
    compiled, launched = settings.get("compile") is True, trial.outcome.launched
    single = 0 < (_rank_count(trial) or 0) <= study.environment.ranks_per_node
    return {
        "Model-executor.framework.name": "pytorch" if is_ours else framework,
        "Model-executor.framework.compiler_tool_selection": (
            ("torch_compile" if compiled else "plain_pytorch") if is_ours else None
        ),
        **plan_of(settings),
        f"{_LIBRARY}name": ("Gloo" if on_host else "NCCL") if is_ours else None,
        f"{_LIBRARY}version": _library_version(trial, machine, on_host=on_host),
        f"{_LIBRARY}env": {
            name: value
            for name, value in sorted((launched.environment if launched else {}).items())
            if name.startswith(_LIBRARY_VARIABLES)
        },
        "Model-executor.protocol_selection": (
            (["tcp"] if on_host else ["p2p"]) if is_ours and single else None
        ),
    }


def plan_of(settings: Mapping[str, Value]) -> dict[str, object]:
    """The parallel plan of these settings; degrees that they do not name are 1."""
    named = {KNOB_NAMES.get(knob, knob): value for knob, value in settings.items()}
    plan = {f"{PLAN}{name}": named.get(name, 1) for name in (*DEGREES, "ep")}
    return {**plan, f"{PLAN}pp_mb": named.get("micro_batch")}


def _library_version(trial: Trial, machine: Machine | None, *, on_host: bool) -> str | None:
    torch = trial.outcome.measurement.torch_version if isinstance(trial.outcome, Measured) else None
    if on_host:
        return f"torch-{torch}" if torch else None
    software = machine.software if machine else {}
    return next((version for name, version in software.items() if "nccl" in name.lower()), None)


def card_text(card: Mapping[str, object]) -> str:
    """A card as YAML, in the order of the template."""
    text: str = yaml.safe_dump(dict(card), sort_keys=False, allow_unicode=True, width=100)
    return text


LEAST_OUTPUT_LENGTH = 128
SHOWN_EXTRA = 8
_ENVIRONMENT = (
    "workload.hardware.",
    "Model-executor.framework",
    "Model-executor.communication_library",
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
    for field in TEMPLATE:
        value = looked_up(card, field.path)
        if is_untold(field, value):
            if field.needed and not _is_environment(field.path):
                yield _missing(field.path)
        elif why := shape_fault(field, value):
            yield f"{field.path} {why}"
    extra = list(unknown_paths(card))
    if extra:
        more = f" and {len(extra) - SHOWN_EXTRA} more" if len(extra) > SHOWN_EXTRA else ""
        yield f"not in the template: {', '.join(extra[:SHOWN_EXTRA])}{more}"


def _environment(card: Mapping[str, object]) -> Iterator[str]:
    for field in TEMPLATE:
        is_empty = is_untold(field, looked_up(card, field.path))
        if field.needed and _is_environment(field.path) and is_empty:
            yield _missing(field.path)
    # A job on several nodes needs a bandwidth between them.
    bandwidths, total, per_node = (looked_up(card, path) for path in (BANDWIDTHS, TOTAL, PER_NODE))
    one_node = is_number(total) and is_number(per_node) and total <= per_node
    scale_out = bandwidths[0] if isinstance(bandwidths, list) and len(bandwidths) == 2 else 0
    if not one_node and not is_number(scale_out):
        yield _missing(f"{BANDWIDTHS}, scale-out")


def _protocol(card: Mapping[str, object]) -> Iterator[str]:
    phase = looked_up(card, f"{_MODEL}phase")
    count, length = looked_up(card, f"{_MODEL}iteration"), looked_up(card, f"{_DATA}output_len")
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


def _is_environment(path: str) -> bool:
    return path.startswith(_ENVIRONMENT) or path == "Model-executor.protocol_selection"


def _missing(path: str) -> str:
    return f"{path} is missing; give it with --set '{path.split(',')[0]}=...'"


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
    (folder / CARD).write_text(card_text(card), encoding="utf-8")
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


_YAML = (".yaml", ".yml")
_NO_TRACES = ("metrics.json", "trial.json", "checks.json", "launch.json", "job.json")


def checks_of(path: Path) -> Checks:
    """Return the rules for the card at a path, and for the traces next to it if that is a folder.

    Raises `StudyError` where there is no card, or several to choose from.
    """
    if not path.is_dir():
        return card_checks(_card_fields(path))
    cards = sorted(each for each in path.iterdir() if each.suffix in _YAML)
    if not cards:
        raise StudyError(f"{path}: holds no card (*.yaml); name the folder of an entry")
    several = f"{len(cards)} YAML files; the toolkit takes any of them for the card"
    card = _card_fields(next((each for each in cards if "card" in each.name), cards[0]))
    total = looked_up(card, TOTAL)
    traces = [each for each in path.iterdir() if _is_trace(each)]
    ranks = int(total) if is_number(total) else 1
    return {
        "card": [] if len(cards) == 1 else [several],
        **card_checks(card),
        "traces": _traces(len(traces), ranks),
    }


def _card_fields(path: Path) -> dict[str, object]:
    return {str(name): value for name, value in Card(path).fields.items()}


def _is_trace(path: Path) -> bool:
    if path.name in _NO_TRACES or not path.is_file():
        return False
    return path.name.endswith((".json", ".json.gz", ".xplane.pb", ".sqlite", ".nsys-rep"))
