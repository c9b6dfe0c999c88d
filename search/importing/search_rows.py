"""Lines of recorded searches of others, as they lie in files of JSON lines.

Of their fields only what matters here is read; beside what the searches recorded they hold what was
found out about it later.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from pydantic import ConfigDict, Field

from records.study import Value

LOOSE: Final = ConfigDict(extra="ignore", allow_inf_nan=False)
Anything = Annotated[float, Field(allow_inf_nan=True)]
"""A float as a record tells it, which may be none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a recorded run had to do, as far as it matters here."""

    __pydantic_config__ = LOOSE

    model: str = ""
    name: str = ""
    seq_len: int
    batch_size: int | None = None
    card_batch_size: int | None = None
    actual_global_batch_rule: str | None = None
    phase: str = "training"
    precision: str = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a recorded search ran on."""

    __pydantic_config__ = LOOSE

    accelerator: str = "not on record"
    gpus_available: int | None = None
    gpus_per_node: int | None = None
    cluster: str = "elsewhere"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What a recorded search was to reach: in its formula T is a step's seconds, G its devices."""

    __pydantic_config__ = LOOSE

    name: str
    direction: str
    formula: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRow:
    """One trial of a recorded search, or of those that a workload card lists."""

    __pydantic_config__ = LOOSE

    framework: str
    workload: Work
    config: Mapping[str, Value]
    status: str
    error_class: str | None
    inferred_cause: str | None
    inferred_why: str | None
    served_from_cache: bool
    step_seconds: float | None
    tokens_per_second: float | None
    activation_checkpointing_effective: bool
    gpus_used: int | None
    search_id: str = ""
    card: str = ""
    hardware: Machine = field(default_factory=Machine)
    objective: Aim | None = None
    metrics: Mapping[str, Anything | None] = field(default_factory=dict)
    score: Anything | None = None
    error_excerpt: str | None = None
    tokens_per_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRow:
    """One workload of one iteration of a recorded search that asked a simulator, in cycles."""

    __pydantic_config__ = LOOSE

    search_id: str
    iteration: int
    workload: Work
    config: Mapping[str, Value]
    status: str
    error_class: str | None = None
    wall_time_cycles: Anything | None = None
    gpu_time_cycles: Anything | None = None
    comm_time_cycles: Anything | None = None
