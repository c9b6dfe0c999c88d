"""Valid sample records.

Valid records to build on, for the tests of whatever reads or writes them.

Stores with a row in every table, and all rows of a store, for the tests of what writes them.
"""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

from zstandard import ZstdDecompressor

from records.llm_exchange import SUBMITTED, LlmExchange, TokenUsage
from records.machine import Conditions
from records.store.artifacts import PACKED
from records.store.database import DATABASE_NAME
from records.store.journal import FOLDER
from records.store.rows import PendingTrial
from records.store.store import Store
from records.store.writer import rebuild
from records.study import Dimension, Environment, Objective, SearchSpace, Study, Value
from records.trial import (
    Artifact,
    Breakdown,
    Config,
    Failed,
    FailureKind,
    History,
    Measured,
    Measurement,
    MetricValue,
    Outcome,
    Policy,
    Repeat,
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


def conditions(**known: float) -> Conditions:
    """The conditions of a launch of which only this is known."""
    required = (each.name for each in fields(Conditions) if each.default is MISSING)
    told: dict[str, Any] = {**dict.fromkeys(required), **known}
    return Conditions(**told)


def contents(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Every file under a folder, and what it holds; kept files as they were before packing."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            if path.suffix == PACKED:
                content = ZstdDecompressor().decompressobj().decompress(content)
            yield path, content


OF_THE_DATABASE = ("journals",)
"""Tables that hold no records."""
EXCHANGE = LlmExchange(
    model="m",
    request="{}",
    reply="{}",
    result=SUBMITTED,
    usage=TokenUsage(input_tokens=3),
    latency_s=1,
    request_count=1,
)


def rows_of(root: Path) -> dict[str, list[tuple[object, ...]]]:
    """Rows of every table of a store that is sound, by its name."""
    with closing(sqlite3.connect(root / DATABASE_NAME)) as db:
        (found,) = db.execute("pragma integrity_check").fetchall()
        if found != ("ok",):
            raise ValueError(f"{root}: {found}")
        tables = db.execute("select name from sqlite_master where type = 'table'").fetchall()
        return {
            table: sorted(db.execute(f"select * from {table}").fetchall(), key=repr)
            for (table,) in tables
            if table not in OF_THE_DATABASE
        }


def rows_of_journals(root: Path, folder: Path) -> dict[str, list[tuple[object, ...]]]:
    """The rows that the journals of a store make, in a folder that is new."""
    shutil.copytree(root / FOLDER, folder / FOLDER)
    rebuild(folder, lambda _study: None)
    return rows_of(folder)


def intent(ordinal: int) -> PendingTrial:
    """A trial that is about to begin."""
    policy = trial(ordinal, 0.5).policy
    return PendingTrial(ordinal=ordinal, policy=policy, started_at=START, exchange=None)


def fill(root: Path, study_id: str = "one") -> None:
    """Write a study with trials 0 and 1 and one that was begun, through the store's own methods."""
    with closing(Store(root)) as store:
        store.create(study_id, study(), "1")
        store.start_run(study_id, study())
        asked = store.begin(study_id, intent(0), EXCHANGE)
        files = (Artifact(name="log", digest="0" * 64, size_bytes=3),)
        done = trial(0, replace(measured(), artifacts=files), {"n": 0})
        store.finish(study_id, replace(done, exchange=asked.exchange))
        store.begin(study_id, intent(1), None)
        store.finish(study_id, trial(1, failed()))
        store.repeat(study_id, Repeat(series=2, round=0, ordinal=0, outcome=measured(0.25)))
        store.begin(study_id, intent(2), EXCHANGE)
        store.update(study_id, status="interrupted", summary="{}")
