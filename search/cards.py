"""CCL-Bench workload cards and tuning files (YAML), read into a study and never written.

Cards in the wild seldom follow their template, so only what a study needs is looked for, at the
places where published cards keep it; a missing field is named with its path.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from policies.catalog import FIRST
from records.codec import from_document
from records.errors import StudyError, shown
from records.models import model_named
from records.study import Dimension, Environment, Link, Objective, SearchSpace, Study, Value
from records.workload import Workload
from search.card_file import Card, is_number
from search.card_scripts import with_script
from search.study_file import suggestion

LINKS = ("scale_up", "scale_out")
KNOB_NAMES = {"dp": "dp_replicate", "micro_batch_size": "micro_batch"}
METRIC_NAMES = {"avg_step_time": "step_time"}
SIZES = {
    "layer_count": "num_layers",
    "head_count": "num_heads",
    "kv_head_count": "num_kv_heads",
    "hidden_size": "hidden_size",
    "ffn_size": "ffn_size",
    "vocab_size": "vocab_size",
    "parameter_count": "num_params",
    "expert_count": "num_experts",
    "experts_per_token": "num_experts_per_token",
    "shared_expert_count": "num_shared_experts",
    "expert_ffn_size": "expert_ffn_size",
    "dense_layer_count": "num_dense_layers",
}
"""Fields of a workload, and what cards call them."""
SEEDED = "dp_shard"
TUNING_KEYS = ("config_space", "optimization_goal", "publish_dir")
GOAL_KEYS = ("direction", "metrics")
KNOB_KEYS = ("key", "type", "description", "choices")
METRIC_KEYS = ("name", "weight")
CHECKPOINTING = {True: "full", False: "none"}


def card_study(
    card: Path,
    tuning: Path | None,
    bandwidths: str | None,
    base: Study,
    command: Path | None = None,
) -> Study:
    """The base study with the card's workload and environment, and the tuning file's space.

    With `command` the knobs of the tuning file are that script's, under the names they have there.

    `bandwidths` names the two entries of the card's bandwidth list, whose order differs between
    tools; raises `StudyError` when they are needed and not named.
    """
    fields = Card(card)
    study = replace(
        base,
        name=card.stem,
        workload=card_workload(fields, base.workload),
        environment=card_environment(fields, _links(fields, bandwidths), base.environment),
        # That of the base is for the base's model.
        launch=replace(base.launch, memory_budget_bytes=None),
    )
    knobs = None if tuning is None else Card(tuning)
    if command is not None:
        study = with_script(study, command, tuning)
    return study if knobs is None else _tuned(study, knobs)


def card_workload(card: Card, base: Workload) -> Workload:
    """The work that a card declares."""
    model = "workload.model"
    arch = f"{model}.model_arch"
    phase = card.text(f"{model}.phase") or "training"
    if phase not in {"training", "inference"}:
        raise StudyError(f"{card.path}: {model}.phase is {phase!r}, not training or inference")
    family = card.text(f"{model}.model_family")
    known = model_named(family) if family else None
    given = {
        field: card.optional_count(f"{arch}.{key}", f"{model}.{key}")
        for field, key in SIZES.items()
    }
    prompt_length, output_length = _lengths(card) if phase == "inference" else (None, None)
    document = {
        **(known.sizes if known else {}),
        **{field: size for field, size in given.items() if size is not None},
        "name": (card.text("description") or card.path.stem).strip()[:60],
        "model": family if known else None,
        "family": family,
        "phase": phase,
        "precision": card.text(f"{model}.precision") or "fp32",
        "global_batch": card.count("workload.data.batch_size"),
        "sequence_length": prompt_length or card.count("workload.data.seq_len"),
        "output_length": output_length,
        "seed": base.seed,
    }
    return from_document(Workload, document)


def _lengths(card: Card) -> tuple[int | None, int | None]:
    """Tokens of a prompt and of its answer; a card's seq_len is often the sum of the two."""
    data = "workload.data"
    return card.optional_count(f"{data}.input_len"), card.optional_count(f"{data}.output_len")


def card_environment(card: Card, links: Mapping[str, Link], base: Environment) -> Environment:
    """The machine that a card declares, with these links by name."""
    hardware = "workload.hardware"
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
    if not any(named.values()) and isinstance(listed, list) and any(map(is_number, listed)):
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
        if is_number(gbps) and gbps > 0
    }


def _tuned(study: Study, tuning: Card) -> Study:
    _refuse_unknown(tuning, "", tuning.fields, TUNING_KEYS)
    objective = _objective(tuning) or study.objective
    items = tuning.items("config_space")
    if study.command is not None:
        script_knobs = tuple(_dimension(item, tuning, own_names=True) for item in items)
        return replace(study, space=SearchSpace(dimensions=script_knobs), objective=objective)
    dimensions = [_dimension(item, tuning) for item in items]
    searched = {dimension.name for dimension in dimensions}
    return replace(
        study,
        space=SearchSpace(dimensions=tuple(dimensions), constraints=study.space.constraints),
        objective=objective,
        # A seed that knows no space sets knobs that this one does not search.
        seed_policy=study.seed_policy if SEEDED in searched else FIRST,
    )


def _dimension(
    item: Mapping[object, object], tuning: Card, *, own_names: bool = False
) -> Dimension:
    _refuse_unknown(tuning, "config_space: ", item, KNOB_KEYS)
    key, choices = item.get("key"), item.get("choices")
    if not isinstance(key, str) or not isinstance(choices, list) or not choices:
        raise StudyError(
            f"{tuning.path}: config_space: each entry needs a key and choices: {shown(item)}"
        )
    name = key if own_names else KNOB_NAMES.get(key, key)
    meanings = {} if own_names or name != "activation_checkpointing" else CHECKPOINTING
    return Dimension(
        name=name,
        choices=tuple(_choice(name, choice, tuning, meanings) for choice in choices),
        description=str(item.get("description", "")),
    )


def _choice(knob: str, choice: object, tuning: Card, meanings: Mapping[bool, str]) -> Value:
    if isinstance(choice, bool) and choice in meanings:
        return meanings[choice]
    if isinstance(choice, bool | str) or is_number(choice):
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
    if not isinstance(name, str) or not is_number(weight):
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
