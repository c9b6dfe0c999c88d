"""The work that every trial of a study does: a model, or a mix of collective messages.

Model sizes are those of public configurations. The built-in trainer gives every model rotary
positions, grouped keys and values and a gated feed-forward layer, whatever the original has. Knows
nothing of how work is distributed over ranks.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from records.errors import STRICT, StudyError, above_zero, at_least, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A collective call on `size_bytes`, made `count` times in a step.

    What a size means is in `evaluator.workloads.collectives.operations`.
    """

    __pydantic_config__ = STRICT

    collective: Literal[
        "all_reduce",
        "all_gather",
        "all_gather_single",
        "reduce_scatter",
        "reduce_scatter_single",
        "all_to_all",
        "all_to_all_single",
        "broadcast",
        "reduce",
        "scatter",
        "gather",
        "send_recv",
        "barrier",
    ]
    size_bytes: int = 0
    count: int = 1
    dtype: Literal["float32", "float16", "bfloat16", "float64", "int32", "int64"] = "float32"
    reduce_op: Literal["sum", "min", "max", "avg", "product"] = "sum"

    def __post_init__(self) -> None:
        if self.size_bytes < (0 if self.collective == "barrier" else 1):
            raise StudyError(f"[[message]] size_bytes is {self.size_bytes}; give at least 1")
        if self.count < 1:
            raise StudyError(f"[[message]] count is {self.count}; it must be at least 1")
        if self.reduce_op == "avg" and self.dtype.startswith("int"):
            raise StudyError("[[message]] reduce_op avg has no meaning with whole numbers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The work every trial must do; `None` where a card does not say.

    In the phase `communication` a step exchanges the `messages` and nothing else. In inference
    `requests_per_s` is how fast requests arrive at a server; without it all are there at the start.
    Without a `head_size` heads share the hidden size.
    """

    __pydantic_config__ = STRICT

    name: str
    global_batch: int
    sequence_length: int
    model: str | None = None
    family: str | None = None
    phase: Literal["training", "inference", "communication"] = "training"
    precision: str = "fp32"
    layer_count: int | None = None
    hidden_size: int | None = None
    head_count: int | None = None
    kv_head_count: int | None = None
    ffn_size: int | None = None
    head_size: int | None = None
    vocab_size: int | None = None
    parameter_count: int | None = None
    expert_count: int | None = None
    experts_per_token: int | None = None
    shared_expert_count: int | None = None
    expert_ffn_size: int | None = None
    dense_layer_count: int | None = None
    output_length: int | None = None
    requests_per_s: float | None = None
    text_file: str | None = None
    seed: int = 42
    messages: tuple[Message, ...] = ()

    def __post_init__(self) -> None:
        if self.phase == "communication" and not self.messages:
            raise StudyError("[workload] phase 'communication' needs messages; give a [[message]]")
        if self.messages and self.phase != "communication":
            raise StudyError(
                f"[workload] phase {self.phase!r} exchanges no messages of its own; leave "
                "[[message]] out, or set phase to 'communication'"
            )
        at_least("workload", 1, global_batch=self.global_batch)
        at_least("workload", 1, sequence_length=self.sequence_length)
        at_least("workload", 1, layer_count=self.layer_count, hidden_size=self.hidden_size)
        at_least("workload", 1, head_count=self.head_count, kv_head_count=self.kv_head_count)
        at_least("workload", 1, head_size=self.head_size)
        above_zero("workload", requests_per_s=self.requests_per_s)
        at_least("workload", 1, ffn_size=self.ffn_size, vocab_size=self.vocab_size)
        at_least("workload", 1, parameter_count=self.parameter_count)
        at_least("workload", 0, expert_count=self.expert_count)
        at_least("workload", 1, experts_per_token=self.experts_per_token)
        at_least("workload", 0, shared_expert_count=self.shared_expert_count)
        at_least("workload", 1, expert_ffn_size=self.expert_ffn_size)
        at_least("workload", 0, dense_layer_count=self.dense_layer_count)
        at_least("workload", 1, output_length=self.output_length)

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one step processes, in every trial of the study.

        Of an optimizer step those that it trains on; of an inference step those of the prompts and
        of the answers; none where messages are exchanged.
        """
        if self.phase == "communication":
            return 0
        answer_length = (self.output_length or 0) if self.phase == "inference" else 0
        return self.global_batch * (self.sequence_length + answer_length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The sizes of one model; those of experts are None in a dense one.

    `head_size` is None where it is the hidden size divided by the heads. `parameter_count` is that
    of the original, which may share its embedding with its head.
    """

    family: str
    layer_count: int
    hidden_size: int
    head_count: int
    kv_head_count: int
    ffn_size: int
    vocab_size: int
    head_size: int | None = None
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
    "llama-2-7b": Model(
        family="llama",
        layer_count=32,
        hidden_size=4096,
        head_count=32,
        kv_head_count=32,
        ffn_size=11008,
        vocab_size=32000,
        parameter_count=6_738_415_616,
    ),
    "llama-2-13b": Model(
        family="llama",
        layer_count=40,
        hidden_size=5120,
        head_count=40,
        kv_head_count=40,
        ffn_size=13824,
        vocab_size=32000,
        parameter_count=13_015_864_320,
    ),
    "llama-2-70b": Model(
        family="llama",
        layer_count=80,
        hidden_size=8192,
        head_count=64,
        kv_head_count=8,
        ffn_size=28672,
        vocab_size=32000,
        parameter_count=68_976_648_192,
    ),
    "llama-3-8b": Model(
        family="llama",
        layer_count=32,
        hidden_size=4096,
        head_count=32,
        kv_head_count=8,
        ffn_size=14336,
        vocab_size=128256,
        parameter_count=8_030_261_248,
    ),
    "llama-3-70b": Model(
        family="llama",
        layer_count=80,
        hidden_size=8192,
        head_count=64,
        kv_head_count=8,
        ffn_size=28672,
        vocab_size=128256,
        parameter_count=70_553_706_496,
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
    "llama-3.1-70b": Model(
        family="llama",
        layer_count=80,
        hidden_size=8192,
        head_count=64,
        kv_head_count=8,
        ffn_size=28672,
        vocab_size=128256,
        parameter_count=70_553_706_496,
    ),
    "llama-3.1-405b": Model(
        family="llama",
        layer_count=126,
        hidden_size=16384,
        head_count=128,
        kv_head_count=8,
        ffn_size=53248,
        vocab_size=128256,
        parameter_count=405_853_388_800,
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
    "llama-3.3-70b": Model(
        family="llama",
        layer_count=80,
        hidden_size=8192,
        head_count=64,
        kv_head_count=8,
        ffn_size=28672,
        vocab_size=128256,
        parameter_count=70_553_706_496,
    ),
    "mistral-7b": Model(
        family="mistral",
        layer_count=32,
        hidden_size=4096,
        head_count=32,
        kv_head_count=8,
        ffn_size=14336,
        vocab_size=32000,
        parameter_count=7_241_732_096,
    ),
    "mistral-7b-v0.3": Model(
        family="mistral",
        layer_count=32,
        hidden_size=4096,
        head_count=32,
        kv_head_count=8,
        ffn_size=14336,
        vocab_size=32768,
        parameter_count=7_248_023_552,
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
    "mixtral-8x22b": Model(
        family="mixtral",
        layer_count=56,
        hidden_size=6144,
        head_count=48,
        kv_head_count=8,
        ffn_size=16384,
        vocab_size=32768,
        parameter_count=140_630_071_296,
        expert_count=8,
        experts_per_token=2,
        shared_expert_count=0,
        expert_ffn_size=16384,
        dense_layer_count=0,
    ),
    "qwen2.5-0.5b": Model(
        family="qwen2.5",
        layer_count=24,
        hidden_size=896,
        head_count=14,
        kv_head_count=2,
        ffn_size=4864,
        vocab_size=151936,
        parameter_count=494_032_768,
    ),
    "qwen2.5-1.5b": Model(
        family="qwen2.5",
        layer_count=28,
        hidden_size=1536,
        head_count=12,
        kv_head_count=2,
        ffn_size=8960,
        vocab_size=151936,
        parameter_count=1_543_714_304,
    ),
    "qwen2.5-3b": Model(
        family="qwen2.5",
        layer_count=36,
        hidden_size=2048,
        head_count=16,
        kv_head_count=2,
        ffn_size=11008,
        vocab_size=151936,
        parameter_count=3_085_938_688,
    ),
    "qwen2.5-7b": Model(
        family="qwen2.5",
        layer_count=28,
        hidden_size=3584,
        head_count=28,
        kv_head_count=4,
        ffn_size=18944,
        vocab_size=152064,
        parameter_count=7_615_616_512,
    ),
    "qwen2.5-14b": Model(
        family="qwen2.5",
        layer_count=48,
        hidden_size=5120,
        head_count=40,
        kv_head_count=8,
        ffn_size=13824,
        vocab_size=152064,
        parameter_count=14_770_033_664,
    ),
    "qwen2.5-32b": Model(
        family="qwen2.5",
        layer_count=64,
        hidden_size=5120,
        head_count=40,
        kv_head_count=8,
        ffn_size=27648,
        vocab_size=152064,
        parameter_count=32_763_876_352,
    ),
    "qwen2.5-72b": Model(
        family="qwen2.5",
        layer_count=80,
        hidden_size=8192,
        head_count=64,
        kv_head_count=8,
        ffn_size=29568,
        vocab_size=152064,
        parameter_count=72_706_203_648,
    ),
    "deepseek-r1-distill-qwen-7b": Model(
        family="qwen2.5",
        layer_count=28,
        hidden_size=3584,
        head_count=28,
        kv_head_count=4,
        ffn_size=18944,
        vocab_size=152064,
        parameter_count=7_615_616_512,
    ),
    "qwen3-0.6b": Model(
        family="qwen3",
        layer_count=28,
        hidden_size=1024,
        head_count=16,
        kv_head_count=8,
        ffn_size=3072,
        vocab_size=151936,
        head_size=128,
        parameter_count=596_049_920,
    ),
    "qwen3-1.7b": Model(
        family="qwen3",
        layer_count=28,
        hidden_size=2048,
        head_count=16,
        kv_head_count=8,
        ffn_size=6144,
        vocab_size=151936,
        parameter_count=1_720_574_976,
    ),
    "qwen3-4b": Model(
        family="qwen3",
        layer_count=36,
        hidden_size=2560,
        head_count=32,
        kv_head_count=8,
        ffn_size=9728,
        vocab_size=151936,
        head_size=128,
        parameter_count=4_022_468_096,
    ),
    "qwen3-8b": Model(
        family="qwen3",
        layer_count=36,
        hidden_size=4096,
        head_count=32,
        kv_head_count=8,
        ffn_size=12288,
        vocab_size=151936,
        parameter_count=8_190_735_360,
    ),
    "qwen3-14b": Model(
        family="qwen3",
        layer_count=40,
        hidden_size=5120,
        head_count=40,
        kv_head_count=8,
        ffn_size=17408,
        vocab_size=151936,
        parameter_count=14_768_307_200,
    ),
    "qwen3-32b": Model(
        family="qwen3",
        layer_count=64,
        hidden_size=5120,
        head_count=64,
        kv_head_count=8,
        ffn_size=25600,
        vocab_size=151936,
        head_size=128,
        parameter_count=32_762_123_264,
    ),
    "qwen3-30b-a3b": Model(
        family="qwen3",
        layer_count=48,
        hidden_size=2048,
        head_count=32,
        kv_head_count=4,
        ffn_size=6144,
        vocab_size=151936,
        head_size=128,
        parameter_count=30_532_122_624,
        expert_count=128,
        experts_per_token=8,
        shared_expert_count=0,
        expert_ffn_size=768,
        dense_layer_count=0,
    ),
    "qwen3-235b-a22b": Model(
        family="qwen3",
        layer_count=94,
        hidden_size=4096,
        head_count=64,
        kv_head_count=4,
        ffn_size=12288,
        vocab_size=151936,
        head_size=128,
        parameter_count=235_093_634_560,
        expert_count=128,
        experts_per_token=8,
        shared_expert_count=0,
        expert_ffn_size=1536,
        dense_layer_count=0,
    ),
    "gemma-2-2b": Model(
        family="gemma",
        layer_count=26,
        hidden_size=2304,
        head_count=8,
        kv_head_count=4,
        ffn_size=9216,
        vocab_size=256000,
        head_size=256,
        parameter_count=2_614_341_888,
    ),
    "gemma-2-9b": Model(
        family="gemma",
        layer_count=42,
        hidden_size=3584,
        head_count=16,
        kv_head_count=8,
        ffn_size=14336,
        vocab_size=256000,
        head_size=256,
        parameter_count=9_241_705_984,
    ),
    "gemma-2-27b": Model(
        family="gemma",
        layer_count=46,
        hidden_size=4608,
        head_count=32,
        kv_head_count=16,
        ffn_size=36864,
        vocab_size=256000,
        head_size=128,
        parameter_count=27_227_128_320,
    ),
    "phi-3-mini": Model(
        family="phi",
        layer_count=32,
        hidden_size=3072,
        head_count=32,
        kv_head_count=32,
        ffn_size=8192,
        vocab_size=32064,
        parameter_count=3_821_079_552,
    ),
    "phi-4": Model(
        family="phi",
        layer_count=40,
        hidden_size=5120,
        head_count=40,
        kv_head_count=10,
        ffn_size=17920,
        vocab_size=100352,
        parameter_count=14_659_507_200,
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
    "deepseek-v2": Model(
        family="deepseek",
        layer_count=60,
        hidden_size=5120,
        head_count=128,
        kv_head_count=128,
        ffn_size=12288,
        vocab_size=102400,
        parameter_count=235_741_434_880,
        expert_count=160,
        experts_per_token=6,
        shared_expert_count=2,
        expert_ffn_size=1536,
        dense_layer_count=1,
    ),
    "deepseek-v3": Model(
        family="deepseek",
        layer_count=61,
        hidden_size=7168,
        head_count=128,
        kv_head_count=128,
        ffn_size=18432,
        vocab_size=129280,
        parameter_count=671_026_419_200,
        expert_count=256,
        experts_per_token=8,
        shared_expert_count=1,
        expert_ffn_size=2048,
        dense_layer_count=3,
    ),
}

LATENT_ATTENTION = ("deepseek-v2-lite", "deepseek-v3-16b", "deepseek-v2", "deepseek-v3")
"""Models that keep keys and values compressed, so their heads have no one size.

With heads of the hidden size divided by their number, attention has within a third of their
weights.
"""
_VARIANTS = re.compile(r" (instruct|base|chat|hf|it|2507|v 0\.[12])(?= |$)")
"""Parts of a name that do not change the sizes."""


def model_named(name: str) -> Model | None:
    """The model of this name in any usual spelling (Llama_3.1-8B, org/name), or None."""
    known = known_name(name)
    return None if known is None else MODELS[known]


def known_name(name: str) -> str | None:
    """The name in the table for any usual spelling of it (Llama_3.1-8B, qwen-3-4b, a hub's URL)."""
    parts = name.strip().removesuffix("/").removesuffix("/tree/main")
    return _BY_WORDS.get(_words(parts.rpartition("/")[2]))


def names_within(text: str) -> list[str]:
    """The known models that a text names, each once."""
    found = (known_name(word) for word in re.split(r"[\s,;()]+", text))
    return list(dict.fromkeys(name for name in found if name is not None))


def known_model(name: str) -> Model:
    """The model of this name; raises `StudyError` with the nearest name when there is none."""
    model = model_named(name)
    if model is None:
        close = difflib.get_close_matches(name.rpartition("/")[2].lower(), MODELS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(MODELS)}"
        raise StudyError(f"[workload] model {shown(name)} is unknown; {hint}")
    return model


def _words(name: str) -> str:
    """Words and numbers of a name, without what tells variants of equal sizes apart."""
    words = " ".join(re.findall(r"[a-z]+|\d+(?:\.\d+)?", name.lower()))
    return _VARIANTS.sub("", words.removeprefix("meta "))


_BY_WORDS = {_words(name): name for name in MODELS}
