"""CCL-Bench workload cards and tuning files (YAML), read into a study and never written.

Cards in the wild seldom follow their template, so only what a study needs is looked for, at the
places where published cards keep it; a missing field is named with its path.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeGuard

import yaml

from records.errors import StudyError, shown
from records.study import (
    Dimension,
    Environment,
    Link,
    Objective,
    SearchSpace,
    Study,
    Value,
    Workload,
)
from search.study_file import suggestion

MAX_FILE_BYTES = 1 << 20
# Safe constructors raise these for 2024-02-30 or !!bool maybe, which are scalars in no type.
NOT_YAML = (yaml.YAMLError, RecursionError, ValueError, KeyError, AttributeError)
UNSAID = ("", "N/A", "TBD")
LINKS = ("scale_up", "scale_out")
KNOB_NAMES = {"dp": "dp_replicate", "micro_batch_size": "micro_batch"}
METRIC_NAMES = {"avg_step_time": "step_time"}
TUNING_KEYS = ("config_space", "optimization_goal", "publish_dir")
GOAL_KEYS = ("direction", "metrics")
KNOB_KEYS = ("key", "type", "description", "choices")
METRIC_KEYS = ("name", "weight")
CHECKPOINTING = {True: "full", False: "none"}


def card_study(card: Path, tuning: Path | None, bandwidths: str | None, base: Study) -> Study:
    """The base study with the card's workload and environment, and the tuning file's space.

    `bandwidths` names the two entries of the card's bandwidth list, whose order differs between
    tools; raises `StudyError` when they are needed and not named.
    """
    fields = Card(card)
    study = replace(
        base,
        name=card.stem,
        workload=_workload(fields, base.workload),
        environment=_environment(fields, bandwidths, base.environment),
    )
    return study if tuning is None else _tuned(study, Card(tuning))


class _PlainLoader(yaml.SafeLoader):
    """YAML without aliases: a few lines of them can stand for more than a machine can hold."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not read; write the value out")
        return super().compose_node(parent, index)


class Card:
    """A YAML file whose fields are looked up by path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                raise StudyError(f"{path}: over {MAX_FILE_BYTES} bytes")
            document = yaml.load(path.read_text(encoding="utf-8"), Loader=_PlainLoader)
        except (OSError, UnicodeDecodeError) as error:
            raise StudyError(f"{path}: cannot be read: {error}") from error
        except NOT_YAML as error:
            raise StudyError(f"{path}: not YAML: {_one_line(error)}") from error
        if not isinstance(document, dict):
            raise StudyError(f"{path}: not a card: expected named fields, got {shown(document)}")
        self.fields: Mapping[object, object] = document

    def get(self, *paths: str) -> object:
        """The first of these dotted paths that is there, or None."""
        for path in paths:
            value: object = self.fields
            for key in path.split("."):
                value = value.get(key) if isinstance(value, Mapping) else None
            if value is not None:
                return value
        return None

    def count(self, *paths: str) -> int:
        """A positive whole number; raises `StudyError` when it is missing or something else."""
        found = self.optional_count(*paths)
        if found is None:
            raise StudyError(f"{self.path}: {paths[0]} is missing; a card must give it")
        return found

    def optional_count(self, *paths: str) -> int | None:
        """A positive whole number, or None where the card does not say."""
        value = self.get(*paths)
        if value is None or value in UNSAID:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise StudyError(
                f"{self.path}: {paths[0]} is {shown(value)}, not a positive whole number"
            )
        return value

    def text(self, *paths: str) -> str | None:
        """A text, or None where the card does not say."""
        value = self.get(*paths)
        return None if value is None else str(value)

    def items(self, path: str) -> Sequence[Mapping[object, object]]:
        """A list of tables; raises `StudyError` when it is missing or something else."""
        value = self.get(path)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise StudyError(f"{self.path}: {path} must be a list of tables")
        return value


def _workload(card: Card, base: Workload) -> Workload:
    model = "workload.model"
    arch = f"{model}.model_arch"
    phase = card.text(f"{model}.phase") or "training"
    if phase not in {"training", "inference"}:
        raise StudyError(f"{card.path}: {model}.phase is {phase!r}, not training or inference")
    return Workload(
        name=(card.text("description") or card.path.stem).strip()[:60],
        family=card.text(f"{model}.model_family"),
        phase="training" if phase == "training" else "inference",
        precision=card.text(f"{model}.precision") or "fp32",
        global_batch=card.count("workload.data.batch_size"),
        sequence_length=card.count("workload.data.seq_len"),
        layer_count=card.optional_count(f"{arch}.num_layers", f"{model}.num_layers"),
        head_count=card.optional_count(f"{arch}.num_heads", f"{model}.num_heads"),
        kv_head_count=card.optional_count(f"{arch}.num_kv_heads", f"{model}.num_kv_heads"),
        hidden_size=card.optional_count(f"{arch}.hidden_size", f"{model}.hidden_size"),
        ffn_size=card.optional_count(f"{arch}.ffn_size", f"{model}.ffn_size"),
        vocab_size=card.optional_count(f"{arch}.vocab_size", f"{model}.vocab_size"),
        parameter_count=card.optional_count(f"{arch}.num_params", f"{model}.num_params"),
        expert_count=card.optional_count(f"{arch}.num_experts", f"{model}.num_experts"),
        seed=base.seed,
    )


def _environment(card: Card, bandwidths: str | None, base: Environment) -> Environment:
    hardware = "workload.hardware"
    links = _links(card, bandwidths)
    total = card.count(f"{hardware}.xpu_spec.total_count")
    memory_gb = card.optional_count(f"{hardware}.xpu_spec.memory_gb")
    accelerator = card.text(f"{hardware}.xpu_spec.model") or base.accelerator
    kind = (card.text(f"{hardware}.xpu_spec.type") or "gpu").lower()
    if kind not in {"gpu", "cpu"}:
        raise StudyError(f"{card.path}: {hardware}.xpu_spec.type {kind!r}: only GPU or CPU can run")
    return Environment(
        name=card.text(f"{hardware}.network_topo.topology") or card.path.stem,
        device="cpu" if kind == "cpu" else "cuda",
        accelerator=accelerator,
        world_size=total,
        ranks_per_node=card.optional_count(f"{hardware}.xpu_spec.count_per_node") or total,
        memory_bytes=None if memory_gb is None else memory_gb * 10**9,
        scale_up=links.get("scale_up"),
        scale_out=links.get("scale_out"),
    )


def _links(card: Card, order: str | None) -> dict[str, Link]:
    """Links by name: from named fields, or from a list whose order the user names."""
    where = "workload.hardware.network_topo"
    named = {link: card.get(f"{where}.{link}_bandwidth_gbps") for link in LINKS}
    listed = card.get(f"{where}.bandwidth_gbps")
    if not any(named.values()) and isinstance(listed, list) and any(map(_is_number, listed)):
        names = tuple(name.strip() for name in order.split(",")) if order else ()
        if sorted(names) != sorted(LINKS) or len(listed) != len(LINKS):
            raise StudyError(
                f"{card.path}: {where}.bandwidth_gbps is {shown(listed)}, and tools disagree "
                "on which is which; name them in their order with --card-bandwidths "
                "scale_out,scale_up or scale_up,scale_out"
            )
        named = dict(zip(names, listed, strict=True))
    return {
        link: Link(bandwidth_bytes_per_s=float(gbps) * 1e9 / 8)
        for link, gbps in named.items()
        if _is_number(gbps) and gbps > 0
    }


def _is_number(value: object) -> TypeGuard[int | float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


def _tuned(study: Study, tuning: Card) -> Study:
    _refuse_unknown(tuning, "", tuning.fields, TUNING_KEYS)
    dimensions = [_dimension(item, tuning) for item in tuning.items("config_space")]
    given = {dimension.name for dimension in dimensions}
    fixed = [
        Dimension(name=d.name, choices=(1,), description=f"{d.description} (not searched)")
        for d in study.space.dimensions
        if d.name not in given and d.name != "activation_checkpointing"
    ]
    return replace(
        study,
        space=SearchSpace(dimensions=(*dimensions, *fixed), constraints=study.space.constraints),
        objective=_objective(tuning) or study.objective,
    )


def _dimension(item: Mapping[object, object], tuning: Card) -> Dimension:
    _refuse_unknown(tuning, "config_space: ", item, KNOB_KEYS)
    key, choices = item.get("key"), item.get("choices")
    if not isinstance(key, str) or not isinstance(choices, list) or not choices:
        raise StudyError(
            f"{tuning.path}: config_space: each entry needs a key and choices: {shown(item)}"
        )
    name = KNOB_NAMES.get(key, key)
    return Dimension(
        name=name,
        choices=tuple(_choice(name, choice, tuning) for choice in choices),
        description=str(item.get("description", "")),
    )


def _choice(knob: str, choice: object, tuning: Card) -> Value:
    if knob == "activation_checkpointing" and isinstance(choice, bool):
        return CHECKPOINTING[choice]
    if isinstance(choice, bool | str) or _is_number(choice):
        return choice
    raise StudyError(f"{tuning.path}: choice {shown(choice)} of {knob} is not a plain value")


def _objective(tuning: Card) -> Objective | None:
    goal = tuning.get("optimization_goal")
    if goal is None:
        return None
    if isinstance(goal, dict):
        _refuse_unknown(tuning, "optimization_goal: ", goal, GOAL_KEYS)
    direction = tuning.text("optimization_goal.direction")
    terms = [_term(metric, tuning) for metric in tuning.items("optimization_goal.metrics")]
    if direction not in {"minimize", "maximize"} or not terms:
        raise StudyError(
            f"{tuning.path}: optimization_goal needs a direction, minimize or maximize, and metrics"
        )
    only = terms[0][0] if len(terms) == 1 and terms[0][1] == 1 else None
    expression = only or " + ".join(f"{weight} * {name}" for name, weight in terms)
    return Objective(
        expression=expression, direction="minimize" if direction == "minimize" else "maximize"
    )


def _term(metric: Mapping[object, object], tuning: Card) -> tuple[str, int | float]:
    """Name and weight of one metric of the goal."""
    _refuse_unknown(tuning, "optimization_goal.metrics: ", metric, METRIC_KEYS)
    name, weight = metric.get("name"), metric.get("weight", 1)
    if not isinstance(name, str) or not _is_number(weight):
        raise StudyError(
            f"{tuning.path}: optimization_goal.metrics: each entry needs a name and, if it has "
            f"one, a weight that is a number: {shown(metric)}"
        )
    return METRIC_NAMES.get(name, name), weight


def _refuse_unknown(
    tuning: Card, where: str, table: Mapping[object, object], known: Sequence[str]
) -> None:
    for key in table:
        if key not in known:
            hint = suggestion(str(key), list(known))
            raise StudyError(f"{tuning.path}: {where}unknown key {shown(key)}; {hint}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
