"""Which recorded searches of others make up which landscape, and what counts in them.

The rows are those of JSON lines beside each other in a folder; of their fields only what matters
here is read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from records.study import Constraint, Objective, Value
from records.trial import Config
from search.importing.search_rows import LOOSE, SearchRow, Work

BEST_TITAN_SCRIPT: Final = "20260429_093910_titan_best"
"""Earlier TorchTitan searches ran another script: their times are not comparable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """One line of the simulated landscape."""

    __pydantic_config__ = LOOSE

    workload: Work
    snapshot: str
    config: Mapping[str, Value]
    status: str
    error_class: str | None
    wall_time_cycles: float | None
    stale_suspect: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """How one landscape is taken from the recorded trials."""

    name: str
    about: str
    objective: Objective
    unit: str
    batch: int
    model: str
    seed: Mapping[str, Value]
    rules: tuple[Constraint, ...]
    takes: Callable[[SearchRow], bool]
    value: Callable[[SearchRow], float | None]
    real_batch: Callable[[Config], int]
    """Sequences of a step of a configuration, of which `batch` is the equal work."""


def _rule(name: str, expression: str) -> Constraint:
    return Constraint(name=name, expression=expression)


STEP_TIME: Final = Objective(expression="step_time", direction="minimize")
RANKS: Final = "tp * dp * pp"
ALL_RANKS: Final = _rule("ranks", f"{RANKS} == world_size")
SOURCES: Final = (
    Source(
        name="ccl-megatron-llama-8b",
        about="Recorded launches of Llama-3.1-8B in Megatron on 16 A100. The batch of a step is "
        "dp * micro_batch_size, so tokens per second are compared.",
        objective=Objective(expression="tokens_per_s", direction="maximize"),
        unit="tokens/s",
        batch=16,
        model="llama-3.1-8b",
        seed={"tp": 4, "dp": 4, "pp": 1, "micro_batch_size": 2},
        rules=(ALL_RANKS,),
        takes=lambda trial: (
            trial.framework == "megatron-lm"
            and trial.workload.model == "llama-3.1-8b"
            and trial.gpus_used == 16
        ),
        value=lambda trial: trial.tokens_per_second,
        real_batch=lambda config: int(config["dp"]) * int(config["micro_batch_size"]),
    ),
    Source(
        name="ccl-megatron-deepseek-v2-lite",
        about="Recorded launches of DeepSeek-V2-Lite in Megatron on up to 16 A100.",
        objective=STEP_TIME,
        unit="s",
        batch=8,
        model="deepseek-v2-lite",
        seed={
            "tp": 4,
            "dp": 4,
            "pp": 1,
            "ep": 4,
            "micro_batch_size": 1,
            "activation_checkpointing": True,
        },
        rules=(
            _rule("ranks", f"{RANKS} <= world_size"),
            _rule("experts", "dp % ep == 0"),
            _rule("batch", "global_batch % (dp * micro_batch_size) == 0"),
        ),
        takes=lambda trial: trial.workload.model == "deepseek-v2-lite",
        value=lambda trial: trial.step_seconds,
        real_batch=lambda _: 8,
    ),
    Source(
        name="ccl-torchtitan-llama-8b",
        about="Recorded launches of Llama-3.1-8B in TorchTitan on 16 A100, of one script.",
        objective=STEP_TIME,
        unit="s",
        batch=32,
        model="llama-3.1-8b",
        seed={"tp": 4, "dp": 4, "pp": 1, "micro_batch_size": 4},
        rules=(ALL_RANKS,),
        takes=lambda trial: (
            trial.search_id == BEST_TITAN_SCRIPT and "micro_batch_size" in trial.config
        ),
        value=lambda trial: trial.step_seconds,
        real_batch=lambda _: 32,
    ),
)
