"""Real ranks that exchange messages in every step, from a configuration to an outcome."""

import json
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pytest

from evaluator.evaluate import TrialEvaluator
from evaluator.machine import mpi_library, mpirun_command, mpirun_environment
from evaluator.ports import Job, Reading
from evaluator.samples import rank_measure, read_measurement
from evaluator.workloads.collectives.operations import Operation
from records.study import Dimension, Measure, Study
from records.trial import Config, Failed, FailureKind, Measured, Outcome
from records.workload import Message
from tests.evaluator.conftest import exchange_study

RANKS = 2
ENTRY = "evaluator.workloads.collectives.message_step:exchange"
COLD_RANK = (Path(sys.executable).name, "-P", "-m", "evaluator.rank.main", "job.json")
STEPS = Measure(warmup_steps=1, timed_steps=5, max_timed_steps=5, profiled_steps=0, timeout_s=60)


def study_of(*messages: Message) -> Study:
    knob = Dimension(name="in_flight", choices=(1, 2))
    return exchange_study(*messages, dimensions=(knob,), measure=STEPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeRecipe:
    """Starts ranks warm, or all of them by mpirun."""

    entry: str = ENTRY
    by_mpirun: bool = False

    def job(self, study: Study, config: Config) -> Job:
        document = {
            "entry": self.entry,
            "world_size": RANKS,
            "device": "cpu",
            "init_method": "file://" if self.by_mpirun else "env://",
            "messages": [_repeated(message) for message in study.workload.messages],
            "setup": dict(config.values),
            "measure": asdict(rank_measure(study.measure)),
        }
        modules = ("evaluator.workloads.collectives.message_step", "exchange_entries")
        return Job(
            argv=mpirun_command(RANKS, COLD_RANK) if self.by_mpirun else (),
            # Open MPI looks for its settings there.
            environment={"HOME": "/", **mpirun_environment()} if self.by_mpirun else {},
            world_size=RANKS,
            files={"job.json": json.dumps(document)},
            modules=() if self.by_mpirun else modules,
            timeout_s=study.measure.timeout_s,
            hang_after_s=study.measure.hang_after_s,
        )

    def read(self, study, job, result, launched_ns) -> Reading | Failed:  # noqa: ARG002 - the port
        measurement = read_measurement(result, study)
        if isinstance(measurement, Failed):
            return measurement
        return Reading(measurement=measurement, traces=None)


def evaluated(launcher, study: Study, workdir: Path, recipe=None, **setup) -> Outcome:
    """One trial with this setup, as the search makes it."""
    evaluator = TrialEvaluator(recipe or ExchangeRecipe(), launcher, lambda _: None)
    return evaluator.evaluate(study, Config(setup), workdir)


def _repeated(message: Message) -> dict[str, object]:
    operation = {field.name: getattr(message, field.name) for field in fields(Operation)}
    return {"operation": operation, "count": message.count}


TELL = ExchangeRecipe(entry="exchange_entries:tell")
SUM, SMALL = 3, 1_000
MIX = (
    Message(collective="all_reduce", size_bytes=4 * SMALL, count=3),
    Message(collective="all_reduce", size_bytes=20),
    Message(collective="all_reduce", size_bytes=4 * SMALL, dtype="int32", reduce_op="max"),
    Message(collective="all_gather", size_bytes=64),
    Message(collective="reduce_scatter_single", size_bytes=64, dtype="float64"),
    Message(collective="broadcast", size_bytes=64),
    Message(collective="send_recv", size_bytes=64),
    Message(collective="barrier"),
)
EVERY_RANKS = [1.0, 2.0]


def expected(rank: int) -> list[list[float]]:
    """What each message of the mix becomes where rank r sends r + 1."""
    return [*([[SUM]] * 4), [[RANKS]][0], EVERY_RANKS, [SUM], [1], [(rank ^ 1) + 1], []]


def told(folder):
    return [json.loads((folder / f"rank{rank}.outputs.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize(
    ("setup", "timed_apart"),
    [
        ({}, True),
        ({"chunk_count": 3, "gloo_threads": 1, "gloo_interfaces": "lo,lo"}, True),
        (
            {"fusion_bytes": 4_000, "chunk_count": 2, "in_flight": 2, "compression": "fp16"},
            False,
        ),
    ],
    ids=["plain", "cut", "together"],
)
def test_every_setup_brings_every_message_to_its_own_tensors(
    launcher, tmp_path, setup, timed_apart
):
    outcome = evaluated(launcher, study_of(*MIX), tmp_path, TELL, **setup)

    assert isinstance(outcome, Measured), outcome
    assert told(tmp_path) == [expected(rank) for rank in range(RANKS)]
    assert outcome.metric("bus_bandwidth") > 0
    assert len(outcome.measurement.message_times_s) == (len(MIX) if timed_apart else 0)


def test_a_trial_of_messages_is_measured_like_any_other(launcher, tmp_path):
    outcome = evaluated(launcher, study_of(*MIX), tmp_path)

    assert isinstance(outcome, Measured), outcome
    measurement = outcome.measurement
    assert [len(steps) for steps in measurement.step_times_s] == [5] * RANKS
    assert (measurement.tokens_per_step, measurement.losses) == (0, ())
    assert all(peak_bytes > 0 for peak_bytes in measurement.peak_memory_bytes)
    assert outcome.metric("latency") * 10 == pytest.approx(outcome.metric("step_time"), rel=1e-9)
    assert outcome.absent["tokens_per_s"] == "a step processes no tokens"
    assert outcome.absent["mfu"] == "the workload only communicates"


@pytest.mark.skipif(
    mpi_library() is None or mpi_library().mpirun is None, reason="needs MPI and its mpirun"
)
def test_ranks_that_mpirun_starts_exchange_through_mpi(launcher, tmp_path):
    recipe = ExchangeRecipe(entry=TELL.entry, by_mpirun=True)

    outcome = evaluated(
        launcher, study_of(*MIX), tmp_path, recipe, comm_adapter="mpi", backend="mpi", in_flight=2
    )

    assert isinstance(outcome, Measured), outcome
    assert told(tmp_path) == [expected(rank) for rank in range(RANKS)]


def test_a_wrong_result_is_the_configuration_s_fault(launcher, tmp_path):
    recipe = ExchangeRecipe(entry="exchange_entries:see_wrong_results")

    failed = evaluated(launcher, study_of(*MIX), tmp_path, recipe)

    assert failed.kind is FailureKind.INVALID_CONFIG
    assert "a message came out wrong: WrongResultError: message 0 of a step, all_reduce sum" in (
        failed.message
    )


@pytest.mark.parametrize(
    ("entry", "setup", "kind", "said"),
    [
        (
            "exchange_entries:lack_broadcasts",
            {},
            FailureKind.INVALID_CONFIG,
            "UnsupportedError: c10d has no broadcast float32 64 B: not built in",
        ),
        (ENTRY, {"comm_adapter": "torchcomms"}, FailureKind.INFRASTRUCTURE, "UnavailableError: "),
        (
            "exchange_entries:die_in_a_timed_step",
            {},
            FailureKind.CRASH,
            "rank 1 died of SIGSEGV in timed",
        ),
    ],
    ids=["a call is lacking", "no library", "a rank dies"],
)
def test_a_failure_is_held_against_who_caused_it(launcher, tmp_path, entry, setup, kind, said):
    failed = evaluated(launcher, study_of(*MIX), tmp_path, ExchangeRecipe(entry=entry), **setup)

    assert failed.kind is kind
    assert said in failed.message
