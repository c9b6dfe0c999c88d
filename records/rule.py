"""A constraint ready to be asked, and the fields of a study that it may name beside the knobs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from records.expression import Expression, Operand, parse
from records.study import Constraint, Environment, Value
from records.workload import Workload

_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_MANY_UNITS = 1024


@dataclass(frozen=True, slots=True)
class Rule:
    """A constraint with its expression parsed."""

    constraint: Constraint
    expression: Expression

    @classmethod
    def of(cls, constraint: Constraint) -> Self:
        """Parse a constraint; raises `StudyError` when its expression is none."""
        return cls(constraint, parse(constraint.expression))

    @property
    def words(self) -> str:
        """Name, expression and reason, as one sentence."""
        reason = f" ({self.constraint.reason})" if self.constraint.reason else ""
        return f"{self.constraint.name}: {self.constraint.expression}{reason}"

    def broken(self, names: Mapping[str, Operand | None]) -> str | None:
        """How these values break the rule, with the numbers filled in; None where they do not."""
        if self.expression.holds(names):
            return None
        settings = (f"{name}={told(name, names[name])}" for name in sorted(self.expression.names))
        return f"breaks {self.words} with {', '.join(settings)}"


def facts(workload: Workload, environment: Environment) -> dict[str, Value | None]:
    """Workload and environment fields that expressions may name."""
    return {
        "phase": workload.phase,
        "precision": workload.precision,
        "global_batch": workload.global_batch,
        "sequence_length": workload.sequence_length,
        "output_length": workload.output_length,
        "layer_count": workload.layer_count,
        "hidden_size": workload.hidden_size,
        "head_count": workload.head_count,
        "kv_head_count": workload.kv_head_count,
        "head_size": workload.head_size,
        "ffn_size": workload.ffn_size,
        "vocab_size": workload.vocab_size,
        "expert_count": workload.expert_count,
        "experts_per_token": workload.experts_per_token,
        "shared_expert_count": workload.shared_expert_count,
        "expert_ffn_size": workload.expert_ffn_size,
        "dense_layer_count": workload.dense_layer_count,
        "device": environment.device,
        "world_size": environment.world_size,
        "ranks_per_node": environment.ranks_per_node,
        "memory_bytes": environment.memory_bytes,
    }


def told(name: str, value: Operand | None) -> str:
    """A value as a person reads it: bytes in the largest unit that leaves a number above 1."""
    if name.endswith("_bytes") and isinstance(value, int | float):
        return size_words(value)
    return str(value)


def size_words(size_bytes: float) -> str:
    """Bytes in the largest binary unit that leaves a number above 1."""
    for unit in _BINARY_UNITS[:-1]:
        if abs(size_bytes) < _MANY_UNITS:
            return f"{size_bytes:.4g} {unit}"
        size_bytes /= _MANY_UNITS
    return f"{size_bytes:.4g} {_BINARY_UNITS[-1]}"
