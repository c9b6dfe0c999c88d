"""Real ranks that exchange messages in every step, from a configuration to an outcome."""

import json
from pathlib import Path

import pytest

from evaluator.evaluate import TrialEvaluator
from evaluator.machine import mpi_library
from evaluator.recipes.collectives import CollectivesRecipe
from records.study import Measure
from records.trial import Config, FailureKind, Measured, Outcome
from records.workload import Message
from tests.evaluator.conftest import OtherEntry, exchange_study

RANKS = 2
STEPS = Measure(warmup_steps=1, timed_steps=5, max_timed_steps=5, profiled_steps=0, timeout_s=60)


def evaluated(launcher, workdir: Path, entry: str | None = None, **setup) -> Outcome:
    """One trial of the mix with this setup, as the search makes it, or of another entry."""
    recipe = CollectivesRecipe()
    if entry is not None:
        recipe = OtherEntry(f"exchange_entries:{entry}", recipe=recipe)
    evaluator = TrialEvaluator(recipe, launcher, lambda _: None)
    study = exchange_study(*MIX, measure=STEPS)
    return evaluator.evaluate(study, Config(setup), workdir)


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
    outcome = evaluated(launcher, tmp_path, "tell", **setup)

    assert isinstance(outcome, Measured), outcome
    assert told(tmp_path) == [expected(rank) for rank in range(RANKS)]
    assert outcome.metric("bus_bandwidth") > 0
    assert len(outcome.measurement.message_times_s) == (len(MIX) if timed_apart else 0)


def test_a_trial_of_messages_is_measured_like_any_other(launcher, tmp_path):
    outcome = evaluated(launcher, tmp_path)

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
    outcome = evaluated(launcher, tmp_path, "tell", comm_adapter="mpi", in_flight=2)

    assert isinstance(outcome, Measured), outcome
    assert told(tmp_path) == [expected(rank) for rank in range(RANKS)]


def test_a_wrong_result_is_the_configuration_s_fault(launcher, tmp_path):
    failed = evaluated(launcher, tmp_path, "see_wrong_results")

    assert failed.kind is FailureKind.INVALID_CONFIG
    assert "a message came out wrong: WrongResultError: message 0 of a step, all_reduce sum" in (
        failed.message
    )


@pytest.mark.parametrize(
    ("entry", "setup", "kind", "said"),
    [
        (
            "lack_broadcasts",
            {},
            FailureKind.INVALID_CONFIG,
            "UnsupportedError: c10d has no broadcast float32 64 B: not built in",
        ),
        (None, {"comm_adapter": "torchcomms"}, FailureKind.INFRASTRUCTURE, "UnavailableError: "),
        ("die_in_a_timed_step", {}, FailureKind.CRASH, "rank 1 died of SIGSEGV in timed"),
    ],
    ids=["a call is lacking", "no library", "a rank dies"],
)
def test_a_failure_is_held_against_who_caused_it(launcher, tmp_path, entry, setup, kind, said):
    failed = evaluated(launcher, tmp_path, entry, **setup)

    assert failed.kind is kind
    assert said in failed.message
