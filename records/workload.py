"""The work that every trial of a study does: a model, or a mix of collective messages.

Model sizes are those of public configurations. The built-in trainer gives every model rotary
positions, grouped keys and values and a gated feed-forward layer, whatever the original has. Knows
nothing of how work is distributed over ranks.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Literal

from records.errors import Strict, StudyError, above_zero, at_least, shown, suggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(Strict):
    """A collective call on `size_bytes`, made `count` times in a step.

    What a size means is in `evaluator.workloads.collectives.operations`.
    """

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


_LEAST = {
    1: (
        *("global_batch", "sequence_length", "output_length", "layer_count", "hidden_size"),
        *("head_count", "kv_head_count", "head_size", "ffn_size", "vocab_size"),
        *("parameter_count", "experts_per_token", "expert_ffn_size"),
    ),
    0: ("expert_count", "shared_expert_count", "dense_layer_count"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficPoint:
    """How requests reach a server: at most `concurrency` in flight, or `requests_per_s` arriving.

    With neither, all arrive together.
    """

    concurrency: int | None = None
    requests_per_s: float | None = None

    def __str__(self) -> str:
        if self.concurrency is not None:
            return f"{self.concurrency} in flight"
        if self.requests_per_s is not None:
            return f"{self.requests_per_s:g} requests/s arriving"
        return "all requests together"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(Strict):
    """The work every trial must do; `None` where a card does not say.

    In the phase `communication` a step exchanges the `messages` and nothing else. In inference
    `requests_per_s` is how fast requests arrive at a server; without it all are there at the start.
    A server is measured with each `concurrency`, the most requests in flight, and at each of the
    `request_rates`; its steps are those of the first. A request is served well where its first
    token takes at most `slo_ttft_s` and each further one `slo_tpot_s`.
    Without a `head_size` heads share the hidden size.
    """

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
    concurrency: tuple[int, ...] = ()
    request_rates: tuple[float, ...] = ()
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
    text_file: str | None = None
    seed: int = 42
    messages: tuple[Message, ...] = ()

    def __post_init__(self) -> None:
        if self.phase == "communication" and not self.messages:
            raise StudyError("[workload] phase 'communication' needs messages; give a [[message]]")
        if self.messages and self.phase != "communication":
            raise StudyError(
                f"[workload] phase {self.phase!r} exchanges no separate messages; leave "
                "[[message]] out, or set phase to 'communication'"
            )
        above_zero(
            "workload",
            requests_per_s=self.requests_per_s,
            slo_ttft_s=self.slo_ttft_s,
            slo_tpot_s=self.slo_tpot_s,
        )
        for rate in self.request_rates:
            above_zero("workload", request_rates=rate)
        for count in self.concurrency:
            at_least("workload", 1, concurrency=count)
        for least, names in _LEAST.items():
            at_least("workload", least, **{name: getattr(self, name) for name in names})

    @property
    def traffic(self) -> tuple[TrafficPoint, ...]:
        """The points that a server is measured at, the main one first; never empty."""
        points = (
            *(TrafficPoint(concurrency=count) for count in self.concurrency),
            *(TrafficPoint(requests_per_s=rate) for rate in self.request_rates),
        )
        return points or (TrafficPoint(requests_per_s=self.requests_per_s),)

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


# A name, then the fields of `Model` in their order, a hyphen for None. The 16B configuration that
# trainers ship under the name of deepseek version 3 has the sizes of deepseek-v2-lite.
_TABLE = """\
debug                       dense      4   128   4   4   352    512   -            -   - - -     - -
debug-moe                   mixture    4   128   4   4   352    512   -            -   8 2 1    96 1
llama-2-7b                  llama     32  4096  32  32 11008  32000   -   6738415616   - - -     - -
llama-2-13b                 llama     40  5120  40  40 13824  32000   -  13015864320   - - -     - -
llama-2-70b                 llama     80  8192  64   8 28672  32000   -  68976648192   - - -     - -
llama-3-8b                  llama     32  4096  32   8 14336 128256   -   8030261248   - - -     - -
llama-3-70b                 llama     80  8192  64   8 28672 128256   -  70553706496   - - -     - -
llama-3.1-8b                llama     32  4096  32   8 14336 128256   -   8030261248   - - -     - -
llama-3.1-70b               llama     80  8192  64   8 28672 128256   -  70553706496   - - -     - -
llama-3.1-405b              llama    126 16384 128   8 53248 128256   - 405853388800   - - -     - -
llama-3.2-1b                llama     16  2048  32   8  8192 128256   -   1235814400   - - -     - -
llama-3.2-3b                llama     28  3072  24   8  8192 128256   -   3212749824   - - -     - -
llama-3.3-70b               llama     80  8192  64   8 28672 128256   -  70553706496   - - -     - -
mistral-7b                  mistral   32  4096  32   8 14336  32000   -   7241732096   - - -     - -
mistral-7b-v0.3             mistral   32  4096  32   8 14336  32768   -   7248023552   - - -     - -
mixtral-8x7b                mixtral   32  4096  32   8 14336  32000   -  46702792704   8 2 0 14336 0
mixtral-8x22b               mixtral   56  6144  48   8 16384  32768   - 140630071296   8 2 0 16384 0
qwen2.5-0.5b                qwen2.5   24   896  14   2  4864 151936   -    494032768   - - -     - -
qwen2.5-1.5b                qwen2.5   28  1536  12   2  8960 151936   -   1543714304   - - -     - -
qwen2.5-3b                  qwen2.5   36  2048  16   2 11008 151936   -   3085938688   - - -     - -
qwen2.5-7b                  qwen2.5   28  3584  28   4 18944 152064   -   7615616512   - - -     - -
qwen2.5-14b                 qwen2.5   48  5120  40   8 13824 152064   -  14770033664   - - -     - -
qwen2.5-32b                 qwen2.5   64  5120  40   8 27648 152064   -  32763876352   - - -     - -
qwen2.5-72b                 qwen2.5   80  8192  64   8 29568 152064   -  72706203648   - - -     - -
deepseek-r1-distill-qwen-7b qwen2.5   28  3584  28   4 18944 152064   -   7615616512   - - -     - -
qwen3-0.6b                  qwen3     28  1024  16   8  3072 151936 128    596049920   - - -     - -
qwen3-1.7b                  qwen3     28  2048  16   8  6144 151936   -   1720574976   - - -     - -
qwen3-4b                    qwen3     36  2560  32   8  9728 151936 128   4022468096   - - -     - -
qwen3-8b                    qwen3     36  4096  32   8 12288 151936   -   8190735360   - - -     - -
qwen3-14b                   qwen3     40  5120  40   8 17408 151936   -  14768307200   - - -     - -
qwen3-32b                   qwen3     64  5120  64   8 25600 151936 128  32762123264   - - -     - -
qwen3-30b-a3b               qwen3     48  2048  32   4  6144 151936 128  30532122624 128 8 0   768 0
qwen3-235b-a22b             qwen3     94  4096  64   4 12288 151936 128 235093634560 128 8 0  1536 0
gemma-2-2b                  gemma     26  2304   8   4  9216 256000 256   2614341888   - - -     - -
gemma-2-9b                  gemma     42  3584  16   8 14336 256000 256   9241705984   - - -     - -
gemma-2-27b                 gemma     46  4608  32  16 36864 256000 128  27227128320   - - -     - -
phi-3-mini                  phi       32  3072  32  32  8192  32064   -   3821079552   - - -     - -
phi-4                       phi       40  5120  40  10 17920 100352   -  14659507200   - - -     - -
deepseek-moe-16b            deepseek  28  2048  16  16 10944 102400   -  16375728128  64 6 2  1408 1
deepseek-v2-lite            deepseek  27  2048  16  16 10944 102400   -  15706484224  64 6 2  1408 1
deepseek-v3-16b             deepseek  27  2048  16  16 10944 102400   -  15706484224  64 6 2  1408 1
deepseek-v2                 deepseek  60  5120 128 128 12288 102400   - 235741434880 160 6 2  1536 1
deepseek-v3                 deepseek  61  7168 128 128 18432 129280   - 671026419200 256 8 1  2048 3
"""


def _model(family: str, *sizes: str) -> Model:
    counts = (None if size == "-" else int(size) for size in sizes)
    names = (field.name for field in fields(Model) if field.name != "family")
    # The table gives a number for every size that may not be None.
    return Model(family=family, **dict(zip(names, counts, strict=True)))  # type: ignore[arg-type]


MODELS: Mapping[str, Model] = {
    name: _model(*row) for name, *row in map(str.split, _TABLE.splitlines())
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
        hint = suggestion(name.rpartition("/")[2].lower(), MODELS)
        raise StudyError(f"[workload] model {shown(name)} is unknown; {hint}")
    return model


def _words(name: str) -> str:
    """Words and numbers of a name, without those that distinguish variants of equal sizes."""
    words = " ".join(re.findall(r"[a-z]+|\d+(?:\.\d+)?", name.lower()))
    return _VARIANTS.sub("", words.removeprefix("meta "))


_BY_WORDS = {_words(name): name for name in MODELS}
