"""Sizes of well-known language models by name, as their public configurations give them.

Only sizes: the built-in trainer gives every model rotary positions, grouped keys and values and a
gated feed-forward layer, whatever else the original has.
"""

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from records.errors import StudyError, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The sizes of one model; those of experts are None in a dense one.

    `parameter_count` is that of the original, which may share its embedding with its head.
    """

    family: str
    layer_count: int
    hidden_size: int
    head_count: int
    kv_head_count: int
    ffn_size: int
    vocab_size: int
    parameter_count: int | None = None
    expert_count: int | None = None
    experts_per_token: int | None = None
    shared_expert_count: int | None = None
    expert_ffn_size: int | None = None
    dense_layer_count: int | None = None

    @property
    def sizes(self) -> Mapping[str, int | str | None]:
        """Every field by its name, which is that of the workload's field too."""
        return asdict(self)


_DEEPSEEK_16B = Model(
    family="deepseek",
    layer_count=27,
    hidden_size=2048,
    head_count=16,
    kv_head_count=16,
    ffn_size=10944,
    vocab_size=102400,
    parameter_count=15_706_484_224,
    expert_count=64,
    experts_per_token=6,
    shared_expert_count=2,
    expert_ffn_size=1408,
    dense_layer_count=1,
)

MODELS: Mapping[str, Model] = {
    "debug": Model(
        family="dense",
        layer_count=4,
        hidden_size=128,
        head_count=4,
        kv_head_count=4,
        ffn_size=352,
        vocab_size=512,
    ),
    "debug-moe": Model(
        family="mixture",
        layer_count=4,
        hidden_size=128,
        head_count=4,
        kv_head_count=4,
        ffn_size=352,
        vocab_size=512,
        expert_count=8,
        experts_per_token=2,
        shared_expert_count=1,
        expert_ffn_size=96,
        dense_layer_count=1,
    ),
    "llama-3.2-1b": Model(
        family="llama",
        layer_count=16,
        hidden_size=2048,
        head_count=32,
        kv_head_count=8,
        ffn_size=8192,
        vocab_size=128256,
        parameter_count=1_235_814_400,
    ),
    "llama-3.2-3b": Model(
        family="llama",
        layer_count=28,
        hidden_size=3072,
        head_count=24,
        kv_head_count=8,
        ffn_size=8192,
        vocab_size=128256,
        parameter_count=3_212_749_824,
    ),
    "llama-3.1-8b": Model(
        family="llama",
        layer_count=32,
        hidden_size=4096,
        head_count=32,
        kv_head_count=8,
        ffn_size=14336,
        vocab_size=128256,
        parameter_count=8_030_261_248,
    ),
    "mixtral-8x7b": Model(
        family="mixtral",
        layer_count=32,
        hidden_size=4096,
        head_count=32,
        kv_head_count=8,
        ffn_size=14336,
        vocab_size=32000,
        parameter_count=46_702_792_704,
        expert_count=8,
        experts_per_token=2,
        shared_expert_count=0,
        expert_ffn_size=14336,
        dense_layer_count=0,
    ),
    "deepseek-moe-16b": Model(
        family="deepseek",
        layer_count=28,
        hidden_size=2048,
        head_count=16,
        kv_head_count=16,
        ffn_size=10944,
        vocab_size=102400,
        parameter_count=16_375_728_128,
        expert_count=64,
        experts_per_token=6,
        shared_expert_count=2,
        expert_ffn_size=1408,
        dense_layer_count=1,
    ),
    "deepseek-v2-lite": _DEEPSEEK_16B,
    # The 16B configuration that trainers ship under the name of version 3 has these sizes too.
    "deepseek-v3-16b": _DEEPSEEK_16B,
}


def model_named(name: str) -> Model | None:
    """The model of this name in any usual spelling (Llama_3.1-8B, org/name), or None."""
    return MODELS.get(_plain(name))


def known_model(name: str) -> Model:
    """The model of this name; raises `StudyError` with the nearest name when there is none."""
    model = model_named(name)
    if model is None:
        close = difflib.get_close_matches(_plain(name), MODELS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(MODELS)}"
        raise StudyError(f"[workload] model {shown(name)} is unknown; {hint}")
    return model


def _plain(name: str) -> str:
    return name.rpartition("/")[2].strip().lower().replace("_", "-").replace(" ", "-")
