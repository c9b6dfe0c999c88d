"""Valid records to build on, for the tests of whatever reads or writes them."""

from collections.abc import Iterator
from pathlib import Path

from zstandard import ZstdDecompressor

from records.artifacts import PACKED
from records.history import History
from records.study import Dimension, Environment, Objective, SearchSpace, Study, Value
from records.trial import (
    Breakdown,
    Config,
    Failed,
    FailureKind,
    Measured,
    Measurement,
    MetricValue,
    Outcome,
    Policy,
    Score,
    Stage,
    Trial,
)
from records.workload import Workload

START = "2026-01-01T00:00:00.000+00:00"
END = "2026-01-01T00:00:01.000+00:00"

WORKLOAD = Workload(name="decoder", global_batch=16, sequence_length=128, layer_count=4)
ENVIRONMENT = Environment(
    name="bench", device="cpu", accelerator="cpu", world_size=4, ranks_per_node=2
)


def study(*dimensions: Dimension) -> Study:
    """A study over these dimensions, or over two small ones."""
    default = (Dimension(name="tp", choices=(1, 2, 4)), Dimension(name="pp", choices=(1, 2)))
    return Study(
        name="example",
        workload=WORKLOAD,
        environment=ENVIRONMENT,
        space=SearchSpace(dimensions=dimensions or default),
        objective=Objective(expression="step_time"),
        seed_policy="sharded",
    )


def measured(step_time_s: float = 0.5) -> Measured:
    """A measured outcome of two ranks that took `step_time_s` for every step."""
    return Measured(
        measurement=Measurement(
            step_times_s=((step_time_s,) * 5, (step_time_s / 2,) * 5),
            warmup_times_s=((1.0, 0.9), (1.0, 0.9)),
            losses=(6.25, 6.125),
            tokens_per_step=WORKLOAD.tokens_per_step,
            peak_memory_bytes=(1 << 20, 1 << 21),
            wall_s=12.5,
            device="cpu",
            torch_version="2.0",
        ),
        metrics=(
            MetricValue(name="step_time", value=step_time_s, unit="s", better="lower", version=1),
        ),
        breakdown=Breakdown(
            compute_s=0.25,
            exposed_communication_s=0.125,
            hidden_communication_s=0.0625,
            other_s=0.0,
            idle_s=0.125,
        ),
    )


def failed(
    kind: FailureKind = FailureKind.CRASH, stage: Stage = Stage.LAUNCH, message: str = "it broke"
) -> Failed:
    """A failed outcome."""
    return Failed(stage=stage, kind=kind, message=message)


def trial(
    ordinal: int, outcome: Outcome | float, knobs: dict[str, Value] | None = None, author: str = "x"
) -> Trial:
    """A trial with this outcome, or measured with this step time in seconds."""
    ended = outcome if isinstance(outcome, Failed | Measured) else measured(outcome)
    cost = ended.metric("step_time") if isinstance(ended, Measured) else None
    return Trial(
        ordinal=ordinal,
        policy=Policy(source=f"# {ordinal}\n", author=author, rationale=f"try {ordinal}"),
        config=None if knobs is None else Config(knobs),
        outcome=ended,
        score=None if cost is None else Score(cost=cost, value=cost, unit="s"),
        started_at=START,
        ended_at=END,
    )


def history(*outcomes: Outcome | float) -> History:
    """Trials 0, 1, 2 ... with these outcomes, each of its own configuration `n`."""
    return History(tuple(trial(n, outcome, {"n": n}) for n, outcome in enumerate(outcomes)))


def contents(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Every file under a folder, and what it holds; kept files as they were before packing."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            if path.suffix == PACKED:
                content = ZstdDecompressor().decompressobj().decompress(content)
            yield path, content
