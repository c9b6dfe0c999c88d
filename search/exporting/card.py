"""The workload card of one trial: what was asked, what it ran on, and the plan that it chose."""

from collections.abc import Mapping

import yaml

from evaluator.metrics.base import Absent
from evaluator.metrics.model_flops import all_parameters
from records.errors import StudyError, shown
from records.launched import Launched
from records.machine import Machine
from records.study import Environment, Study, Value
from records.trial import Measured, Trial
from records.workload import Workload
from search.card_file import NOT_YAML
from search.cards import KNOB_NAMES
from search.exporting.template import BY_PATH, DEGREES, PLAN, nested, shape_fault

_HARDWARE = "workload.hardware."
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
        raise StudyError(f"--set ...={shown(text)} is no number, list or mapping") from error
    return value


def _model(workload: Workload, trial: Trial) -> dict[str, object]:
    prefix, arch = "workload.model.", "workload.model.model_arch."
    steps = 0
    if isinstance(trial.outcome, Measured):
        steps = len(trial.outcome.measurement.slowest_rank_s)
    hidden, heads = workload.hidden_size, workload.head_count
    return {
        f"{prefix}phase": workload.phase,
        f"{prefix}moe": bool(workload.expert_count),
        f"{prefix}granularity": _GRANULARITIES.get(workload.phase),
        f"{prefix}model_family": workload.model or _family(workload),
        f"{prefix}precision": workload.precision,
        f"{prefix}epochs": 1,
        f"{prefix}iteration": steps or None,
        f"{arch}num_params": workload.parameter_count or _parameter_count(workload),
        f"{arch}num_params_embedding": (workload.vocab_size or 0) * (hidden or 0) or None,
        f"{arch}num_layers": workload.layer_count,
        f"{arch}num_heads": heads,
        f"{arch}head_dim": workload.head_size or (hidden // heads if hidden and heads else None),
    }


def _family(workload: Workload) -> str:
    """What the model is called: of our own decoders the family says only how they are built."""
    is_ours = workload.family in (None, "dense", "moe")
    return workload.name if is_ours else workload.family or workload.name


def _parameter_count(workload: Workload) -> int | None:
    """All parameters of the decoder that has these sizes; None where they are not all told."""
    count = all_parameters(workload)
    return None if isinstance(count, Absent) else int(count)


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
    driver = next((gpu.driver for gpu in machine.gpus if gpu.driver), None) if machine else None
    return {
        f"{_HARDWARE}network_topo.topology": "single node" if ranks and ranks <= per_node else None,
        f"{_HARDWARE}network_topo.bandwidth_gbps": _bandwidths(environment),
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


def _bandwidths(environment: Environment) -> list[object] | None:
    """Scale-out, then scale-up, in Gbit/s, as the template orders them."""
    links = (environment.scale_out, environment.scale_up)
    if not any(links):
        return None
    return [UNUSED if link is None else link.bandwidth_bytes_per_s * 8 / 1e9 for link in links]


def _executor(study: Study, trial: Trial, machine: Machine | None) -> dict[str, object]:
    settings = {**study.space.defaults, **(trial.config.values if trial.config else {})}
    is_ours, on_host = study.launch.recipe == "builtin", study.environment.device == "cpu"
    framework = study.origin.framework if study.origin else None
    compiled = settings.get("compile") is True
    single = _rank_count(trial) and (_rank_count(trial) or 0) <= study.environment.ranks_per_node
    return {
        "Model-executor.framework.name": "pytorch" if is_ours else framework,
        "Model-executor.framework.compiler_tool_selection": (
            ("torch_compile" if compiled else "plain_pytorch") if is_ours else None
        ),
        **plan_of(settings),
        f"{_LIBRARY}name": ("Gloo" if on_host else "NCCL") if is_ours else None,
        f"{_LIBRARY}version": _library_version(trial, machine, on_host=on_host),
        f"{_LIBRARY}env": _library_variables(trial.outcome.launched),
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


def _library_variables(launched: Launched | None) -> dict[str, str]:
    environment = launched.environment if launched else {}
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(_LIBRARY_VARIABLES)
    }


def card_text(card: Mapping[str, object]) -> str:
    """A card as YAML, in the order of the template."""
    text: str = yaml.safe_dump(dict(card), sort_keys=False, allow_unicode=True, width=100)
    return text
