"""Submissions of a leaderboard: whose work they did, and what they reached."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from evaluator.metrics.base import Better
from records.workload import Workload
from search.views.format import message_words, one_line

NAME_CHARS = 80
_PARTS = re.compile(r"[a-z]+|\d+(?:\.\d+)?")


# Not slotted: the key is computed once and read thousands of times.
@dataclass(frozen=True, kw_only=True)
class Work:
    """Model, phase, batch, lengths and precision.

    `sizes` distinguish models without a name. `tokens_per_step` is what was processed where that
    is known to differ from batch and lengths.
    """

    model: str
    phase: str
    batch: int
    sequence_length: int
    output_length: int | None
    precision: str
    sizes: tuple[int | None, ...] = ()
    messages: tuple[str, ...] = ()
    tokens_per_step: int | None = None

    @classmethod
    def of(cls, workload: Workload, tokens_per_step: int | None) -> Self:
        """That of a study; `tokens_per_step` is what its trial processed in each step."""
        did_other = tokens_per_step not in (None, 0, workload.tokens_per_step)
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
        """A line that describes it."""
        if self.messages:
            return one_line(", ".join(self.messages), 3 * NAME_CHARS)
        words = [
            one_line(self.model, NAME_CHARS) or "unnamed model",
            self.phase,
            f"batch {self.batch}",
            f"{self.sequence_length} tokens each",
            *([f"{self.output_length} of answer"] if self.output_length is not None else []),
            self.precision,
        ]
        if self.tokens_per_step is not None:
            words.append(f"but {self.tokens_per_step} tokens were processed per step")
        return ", ".join(words)

    def is_called(self, name: str) -> bool:
        """Whether a name that a person typed is part of that of this work."""
        wanted = name.casefold()
        model, parts = _PARTS.findall(self.model.casefold()), _PARTS.findall(wanted)
        starts = range(len(model) - len(parts) + 1)
        spelled = any(model[start : start + len(parts)] == parts for start in starts)
        return (bool(parts) and spelled) or wanted in self.title.casefold()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A metric of a submission: its value, or why it is `absent`.

    `low` and `high` are the ends of its interval, None where there was only one launch.
    """

    unit: str
    better: Better
    value: float | None = None
    absent: str | None = None
    low: float | None = None
    high: float | None = None
    launch_count: int | None = None

    @property
    def ends(self) -> tuple[float, float] | None:
        """The interval, or the value twice where none is known; None without a value."""
        if self.value is None:
            return None
        if self.low is None or self.high is None:
            return self.value, self.value
        return min(self.low, self.value), max(self.high, self.value)

    @property
    def has_interval(self) -> bool:
        """Whether the value has an interval, so that it can be ranked."""
        return self.value is not None and self.low is not None and self.high is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A reservation about a submission: its name, and an explanation."""

    name: str
    words: str

    @property
    def title(self) -> str:
        """Its name as people read it."""
        return self.name.replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The best trial of a study; `ties` are others of it that are not shown to be worse."""

    name: str
    source: str
    work: Work
    machine: str
    rank_count: int | None
    software: str
    settings: str
    readings: Mapping[str, Reading]
    launch_count: int = 1
    ties: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = ()
