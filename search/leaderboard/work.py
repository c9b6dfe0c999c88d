"""What a submission's steps do: only what did the same is ranked together."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from records.workload import Workload
from search.words.trial import message_words, one_line

NAME_CHARS = 80
_PARTS = re.compile(r"[a-z]+|\d+(?:\.\d+)?")


# Not slotted: the key is made once, and asked for by the thousand.
@dataclass(frozen=True, kw_only=True)
class Work:
    """Model, phase, batch, lengths and precision, as they are told; None is what nobody tells.

    `sizes` tell models apart that have no name. `tokens_per_step` is what was processed where that
    is known to be something else than batch and lengths say. `standard` is what a benchmark calls
    this work.
    """

    model: str
    phase: str
    batch: int | None
    sequence_length: int | None
    output_length: int | None
    precision: str
    sizes: tuple[int | None, ...] = ()
    messages: tuple[str, ...] = ()
    tokens_per_step: int | None = None
    standard: str | None = None

    @classmethod
    def of(cls, workload: Workload, tokens_per_step: int | None) -> Self:
        """That of a study, whose trial processed so many tokens in each step."""
        asked = workload.tokens_per_step
        did_other = tokens_per_step not in (None, 0, asked)
        named = workload.model or workload.family
        sizes = (workload.layer_count, workload.hidden_size, workload.vocab_size)
        return cls(
            model=named or workload.name,
            phase=workload.phase,
            batch=workload.global_batch,
            sequence_length=workload.sequence_length,
            output_length=workload.output_length if workload.phase == "inference" else None,
            precision=workload.precision,
            sizes=() if named else sizes,
            messages=tuple(map(message_words, workload.messages)),
            tokens_per_step=tokens_per_step if did_other else None,
        )

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal for the same work, however the model's name is spelled."""
        return (
            tuple(_PARTS.findall(self.model.casefold())),
            self.phase.casefold(),
            self.batch,
            self.sequence_length,
            self.output_length,
            self.precision.casefold(),
            self.sizes,
            self.messages,
            self.tokens_per_step,
        )

    @property
    def title(self) -> str:
        """It in words."""
        if self.messages:
            return one_line(", ".join(self.messages), 3 * NAME_CHARS)
        words = [one_line(self.model, NAME_CHARS) or "unnamed model", self.phase]
        if self.batch is not None:
            words.append(f"batch {self.batch}")
        if self.sequence_length is not None:
            words.append(f"{self.sequence_length} tokens each")
        if self.output_length is not None:
            words.append(f"{self.output_length} of answer")
        words.append(self.precision)
        if self.tokens_per_step is not None:
            words.append(f"but {self.tokens_per_step} tokens were processed per step")
        told = ", ".join(word for word in words if word)
        return f"{told} ({self.standard})" if self.standard else told

    def is_called(self, name: str) -> bool:
        """Whether a name that a person typed means this work: its standard name, or part of it."""
        wanted = name.casefold()
        if self.standard is not None and self.standard.casefold() == wanted:
            return True
        model, asked = _PARTS.findall(self.model.casefold()), _PARTS.findall(wanted)
        starts = range(len(model) - len(asked) + 1)
        spelled = any(model[start : start + len(asked)] == asked for start in starts)
        return (bool(asked) and spelled) or wanted in self.title.casefold()
