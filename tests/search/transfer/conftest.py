"""A small study on record with everything that an export may hold: files, launches, a failure."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from records.codec import to_json
from records.llm_exchange import LlmExchange, TokenUsage
from records.machine import LaunchRecord, RankEnd
from records.store.journal import with_study
from records.store.rows import PendingTrial
from records.store.store import Store
from records.study import Dimension, Link
from records.trial import Config, Policy, Purpose, Repeat, Score, Trial
from search.transfer.trust import plain_study
from tests.support import records as testing

STUDY = "20260101-000000-aaaa"
HOST, USER, JOB = "nid004217", "mallory", "9315577"
HOME = f"/home/{USER}/secret-project"


def trace_text(rank: int, host: str = HOST) -> str:
    """A trace of one step as PyTorch's profiler writes it."""
    step = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1}
    operator = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1}
    events = [
        {**step, "name": "ProfilerStep#3", "ts": 1000.0 + rank, "dur": 90000.0},
        {**operator, "name": "aten::mm", "ts": 2000.5 + rank, "dur": 40000.25},
        {**operator, "name": "my_fused_op", "ts": 2100.5 + rank, "dur": 100.0,
         "args": {"Call stack": f"{HOME}/train.py(12): step", "External id": 4}},
        {**step, "name": "gloo:all_reduce", "ts": 50000.125 + rank, "dur": 30000.0},
    ]  # fmt: skip
    return json.dumps(
        {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 2},
            "host_name": host,
            "traceEvents": events,
            "traceName": f"{HOME}/rank{rank}.json",
        }
    )


@dataclass(frozen=True)
class Recorded:
    """A store with the study, its trials, and the names in it that tell who and where."""

    root: Path
    trials: tuple[Trial, ...]
    id: str = STUDY
    names: tuple[str, ...] = (HOST, USER, JOB, HOME)


def _launched() -> LaunchRecord:
    return LaunchRecord(
        argv=("python3", "-m", "train", "--data", f"{HOME}/data.bin"),
        environment={"NCCL_DEBUG": "INFO", "SLURM_JOB_ID": JOB, "USER": USER},
        job_id=JOB,
        hosts=(f"{HOST}.cluster.example.org",),
        reason="a trial",
        wall_s=1.5,
        ranks=(RankEnd(rank=0, status=0, signal=None),),
    )


@pytest.fixture
def recorded_study(tmp_path) -> Callable[..., Recorded]:
    """Makes the store; gives its root and the trials on record."""

    def make(folder: str = "home", policy: str = "# tp=2\n") -> Recorded:
        knobs = Dimension(name="tp", choices=(1, 2)), Dimension(name="=pp", choices=(1,))
        link = Link(bandwidth_bytes_per_s=5e10)
        study = replace(
            testing.study(*knobs),
            environment=replace(testing.ENVIRONMENT, world_size=2, scale_up=link),
        )
        log = f"{HOST}: started by {USER} as job {JOB}\nloading {HOME}/data.bin from 10.1.2.3\n"
        exchange = LlmExchange(
            model="m", request='["who?"]', reply='["me"]', result="submitted",
            usage=TokenUsage(input_tokens=3), latency_s=0.5, request_count=1,
        )  # fmt: skip
        with closing(Store(tmp_path / folder)) as store:
            store.create(STUDY, study, "test")
            store.start_run(STUDY, study)
            texts = {"rank0.log": log, **{f"rank{n}_trace.json": trace_text(n) for n in range(2)}}
            kept = tuple(store.artifacts.keep_text(text, name) for name, text in texts.items())
            good = replace(testing.measured(0.25), artifacts=kept, launched=_launched())
            message = f"=cannot open {HOME}/x on {HOST}"
            bad = replace(testing.failed(message=message), artifacts=kept[:1])
            trials = (_trial(0, good, 2, policy), _trial(1, bad, 1, policy))
            for trial, asked in zip(trials, (None, exchange), strict=True):
                begun = PendingTrial(
                    ordinal=trial.ordinal,
                    policy=trial.policy,
                    started_at=trial.started_at,
                    exchange=None,
                )
                stored = store.begin(STUDY, begun, asked)
                store.finish(STUDY, replace(trial, exchange=stored.exchange))
            confirmed = Repeat(series=2, round=0, ordinal=0, outcome=good, purpose=Purpose.CONFIRM)
            store.repeat(STUDY, confirmed)
            store.update(STUDY, status="finished", summary=None)
            return Recorded(root=store.root, trials=store.history(STUDY).trials)

    return make


def _trial(ordinal: int, outcome, tp: int, source: str) -> Trial:
    measured = ordinal == 0
    return Trial(
        ordinal=ordinal,
        policy=Policy(source=f"{source}# {ordinal}\n", author="llm", rationale="try it"),
        config=Config({"tp": tp, "=pp": 1}),
        outcome=outcome,
        score=Score(cost=0.25, value=0.25, unit="s") if measured else None,
        started_at=testing.START,
        ended_at=testing.END,
    )


@pytest.fixture
def recorded(recorded_study) -> Recorded:
    """The store with its study."""
    return recorded_study()


@pytest.fixture
def export(recorded, cclsearch, tmp_path) -> Callable[..., object]:
    """Exports the study to `out`; gives how that ended, and the path."""

    def run(form: str, *options: object, name: str = "out") -> tuple[object, Path]:
        path = tmp_path / name
        command = ("export", "--format", form, "-o", path, "--store", recorded.root)
        return cclsearch(*command, *options), path

    return run


@pytest.fixture
def records_of() -> Callable[[Path], str]:
    """Gives all that a store says of the study, entry by entry, but whether it was imported."""

    def read(root: Path) -> str:
        with closing(Store(root)) as store:
            entries = (with_study(entry, plain_study) for entry in store.entries(STUDY))
            return "\n".join(map(to_json, entries))

    return read
