"""The fields of a CCL-Bench workload card: which there are, of what kind, and who tells them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from search.card_file import UNSAID, is_number

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


def looked_up(card: Mapping[str, object], path: str) -> object:
    """What a card has at a dotted path; None where it has nothing."""
    value: object = card
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def is_untold(field: Field, value: object) -> bool:
    """Whether a field is empty."""
    if field.kind in {"length", "counts"}:
        return value is None or value == []
    return value is None or value in UNSAID or value == []


def shape_fault(field: Field, value: object) -> str | None:
    """Why a value is none of this field's kind; None where it is."""
    if field.path.endswith(".phase") and value not in _PHASES:
        return f"is none of {', '.join(_PHASES)}"
    match field.kind:
        case "text":
            return None if isinstance(value, str | int | float) else "is no text"
        case "truth":
            return None if isinstance(value, bool) else "is neither true nor false"
        case "count":
            return None if _is_count(value) else "is no whole number above 0"
        case "length":
            return None if _is_count(value) or value in UNSAID else "is no length and not N/A"
        case "counts":
            return None if _are_bandwidths(value) else "is not two numbers: scale-out, scale-up"
        case "texts":
            return None if _are_texts(value) else "is no list of texts"
        case "mapping":
            return None if isinstance(value, Mapping) else "is no mapping"


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
