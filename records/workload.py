"""The work that every trial of a study must do.

Knows nothing of how it is spread over ranks.
"""

from dataclasses import dataclass
from typing import Literal

from records.checks import above_zero, at_least
from records.errors import StudyError
from records.message import Message
from records.strict import STRICT


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
