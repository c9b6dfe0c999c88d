"""However the work is spread, every rank's training is the same, and is accounted for."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from evaluator.failures.classify import classify
from evaluator.rank.job import Config, ContextMethod, JobError, Workload
from evaluator.workloads.context_parallel import own_positions
from evaluator.workloads.training import Batches
from records.trial import FailureKind
from tests.evaluator.conftest import rank_workload

SMALL = asdict(
    rank_workload(hidden_size=64, ffn_size=96, vocab_size=128, sequence_length=64, global_batch=16)
)
TOKENS_PER_STEP = 16 * 64
LONG = SMALL | {"hidden_size": 128, "ffn_size": 352, "vocab_size": 512, "sequence_length": 128}
MIB = 1 << 20
DESCEND = "work_entries:descend"
REFERENCE = {"micro_batch": 16}
TWO_RANKS = {"dp_replicate": 2, "micro_batch": 8}
TWO_STAGES = {"pp": 2, "stages_per_rank": 2, "micro_batch": 4}
ZBV = TWO_STAGES | {"pipeline_schedule": "zbv_zero_bubble"}
# One of each kind, and of pairs those that share state: benchmarks/parallelism_matrix.py has all.
LAYOUTS = {
    "one_rank_in_micro_batches": {"micro_batch": 4},
    "ddp_in_micro_batches": {"dp_replicate": 2, "micro_batch": 2},
    "fsdp_in_micro_batches": {"dp_shard": 2, "micro_batch": 4},
    "hsdp": {"dp_replicate": 2, "dp_shard": 2, "micro_batch": 4},
    "pp": {"pp": 4, "micro_batch": 2},
    "ring": {"cp": 4, "micro_batch": 8},
    "gathered_context": {"cp": 2, "micro_batch": 8, "context_method": "all_gather"},
    "fsdp_pp": {"dp_shard": 2, "pp": 2, "micro_batch": 2, "activation_checkpointing": "selective"},
    "fsdp_zbv": ZBV | {"dp_shard": 2, "micro_batch": 2},
    "replicated_zero_bubble": {
        "dp_replicate": 2,
        "pp": 2,
        "micro_batch": 4,
        "pipeline_schedule": "interleaved_zero_bubble",
    },
    "fsdp_tp": {
        "dp_shard": 2,
        "tp": 2,
        "micro_batch": 8,
        "sequence_parallel": False,
        "loss_parallel": False,
        "activation_checkpointing": "full",
    },
    "tp_zero_bubble": TWO_STAGES
    | {"tp": 2, "micro_batch": 8, "pipeline_schedule": "interleaved_zero_bubble"},
    "fsdp_ring": {"dp_shard": 2, "cp": 2, "micro_batch": 4},
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_learns_what_one_rank_learns_from_the_same_tokens(ranks, layout):
    expected = ranks.run(REFERENCE, SMALL, entry=DESCEND).losses()

    run = ranks.run(layout, SMALL, entry=DESCEND)

    assert run.losses() == pytest.approx(expected, rel=1e-4)
    assert sum(step["tokens_per_step"] for step in run.steps()) == TOKENS_PER_STEP


def test_the_real_optimizer_learns_the_same_in_stages_within_a_generous_budget(ranks):
    expected = ranks.run(REFERENCE, SMALL).losses()

    losses = ranks.run(ZBV, SMALL, memory_budget_bytes=500 * MIB).losses()

    assert losses == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    "layout",
    [
        {"cp": 2, "tp": 2, "micro_batch": 16},
        {"cp": 2, "micro_batch": 8, "context_method": "ulysses"},
    ],
    ids=["ring_tp", "ulysses"],
)
def test_heads_may_be_wider_than_their_share_of_the_hidden_size(ranks, layout):
    wide = SMALL | {"head_size": 32}
    expected = ranks.run(REFERENCE, wide, entry=DESCEND).losses()

    losses = ranks.run(layout, wide, entry=DESCEND).losses()

    assert losses == pytest.approx(expected, rel=1e-4)
    assert losses != pytest.approx(ranks.run(REFERENCE, SMALL, entry=DESCEND).losses(), rel=1e-4)


def test_training_learns_and_another_seed_is_another_run(ranks):
    losses = ranks.run(REFERENCE, SMALL, steps=(1, 3, 0)).losses()
    other = ranks.run(REFERENCE, SMALL | {"seed": 7}).losses()

    assert len(losses) == 4
    assert losses[-1] < losses[0] - 0.05
    assert other != pytest.approx(losses[: len(other)], abs=1e-3)


def test_bf16_spreads_as_well(ranks):
    workload = SMALL | {"precision": "bf16"}
    expected = ranks.run(REFERENCE, workload).losses()

    losses = ranks.run(LAYOUTS["fsdp_pp"], workload).losses()

    assert losses == pytest.approx(expected, abs=2e-2)


def test_a_text_is_the_same_work_in_every_layout(ranks, tmp_path):
    text = tmp_path / "text"
    text.write_bytes(bytes(range(256)) * 4)
    workload = SMALL | {"text_file": str(text)}
    expected = ranks.run(REFERENCE, workload, entry=DESCEND).losses()

    losses = ranks.run(LAYOUTS["gathered_context"], workload, entry=DESCEND).losses()

    assert losses == pytest.approx(expected, rel=1e-4)
    assert losses != pytest.approx(ranks.run(REFERENCE, SMALL, entry=DESCEND).losses(), rel=1e-3)


def test_what_is_computed_again_and_smaller_micro_batches_lower_the_peak(ranks):
    none, selective, full, in_parts = (
        ranks.run(config, LONG, steps=(1, 1, 0)).peak_memory_bytes()
        for config in (
            *(REFERENCE | {"activation_checkpointing": k} for k in ("none", "selective", "full")),
            {"micro_batch": 2},
        )
    )

    assert full < 0.95 * selective < 0.9 * none
    assert in_parts < 0.6 * none


def test_a_tight_budget_runs_out_of_memory_in_a_stage_of_a_pipeline(ranks):
    run = ranks.run({"pp": 2, "micro_batch": 8}, LONG, memory_budget_bytes=40 * MIB)

    failed = classify(run.result)
    assert failed is not None
    assert failed.kind is FailureKind.OUT_OF_MEMORY


def test_a_trace_holds_the_profiled_steps_alone_which_no_budget_binds(ranks):
    run = ranks.run(TWO_RANKS, SMALL, steps=(1, 2, 2), memory_budget_bytes=100 * MIB)

    for rank in range(2):
        steps = [span for span in run.spans(rank) if span["name"].startswith("ProfilerStep")]
        assert [step["name"] for step in steps] == ["ProfilerStep#3", "ProfilerStep#4"]
        assert steps[0]["ts"] + steps[0]["dur"] <= steps[1]["ts"]
    lines = (run.folder / "rank0.progress.jsonl").read_text().splitlines()
    beats = [json.loads(line) for line in lines]
    profiled = [beat["at_ns"] for beat in beats if beat["phase"] == "profile"]
    assert min(profiled) > run.steps()[0]["timed"][-1][1]
    assert (beats[0]["phase"], beats[-1]["phase"]) == ("setup", "done")
    assert list(ranks.run(REFERENCE, SMALL).folder.glob("*trace*")) == []


def test_a_bad_job_fails_in_setup_with_one_line(ranks):
    run = ranks.run(REFERENCE, SMALL | {"text_file": "no/such/text"})

    (error,) = run.documents(".error.json")
    assert error["phase"] == "setup"
    assert error["type"].endswith("JobError")
    assert re.fullmatch(r"text_file: no/such/text cannot be read: .*", error["message"])


WORKLOAD = rank_workload(vocab_size=100, sequence_length=16, global_batch=4)


LETTERS = b"the quick brown fox jumps over the lazy dog"


def take(workload: Workload):
    positions = torch.arange(workload.sequence_length)
    device = torch.device("cpu")
    return Batches(workload, replica=0, replica_count=1, positions=positions, device=device).take(3)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_bytes(LETTERS)
    return path


@pytest.mark.parametrize("method", list(ContextMethod))
def test_context_ranks_hold_every_place_once(method):
    config = Config(cp=4, context_method=method)

    held = torch.cat([own_positions(config, place, 16) for place in range(4)])

    assert sorted(held.tolist()) == list(range(16))


def test_ring_ranks_hold_a_part_from_either_end():
    assert own_positions(Config(cp=2), 0, 8).tolist() == [0, 1, 6, 7]


def test_a_text_gives_its_bytes_as_tokens(text):
    tokens, targets = take(replace(WORKLOAD, vocab_size=256, text_file=str(text)))

    for row, following in zip(tokens, targets, strict=True):
        assert bytes(row.tolist()) in LETTERS
        assert bytes(following.tolist())[:-1] == bytes(row.tolist())[1:]


def test_a_text_of_exactly_one_sequence_is_enough_and_stays_within_the_vocabulary(text):
    text.write_bytes(LETTERS[:17])

    tokens, _ = take(replace(WORKLOAD, vocab_size=10, text_file=str(text)))

    assert tokens.shape == (4, 16)
    assert int(tokens.max()) < 10


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"text_file: \S+ has 0 bytes, but a sequence takes 17"),
        (bytes(16), r"text_file: \S+ has 16 bytes, but a sequence takes 17"),
        ("missing", r"text_file: \S+ cannot be read: \[Errno 2\] .*"),
        ("folder", r"text_file: .* cannot be read"),
    ],
    ids=["empty", "too_small", "missing", "folder"],
)
def test_a_text_that_gives_no_sequence_is_one_line(tmp_path, content, message):
    path = tmp_path if content == "folder" else tmp_path / "text"
    if isinstance(content, bytes):
        path.write_bytes(content)

    with pytest.raises(JobError, match=message) as caught:
        take(replace(WORKLOAD, text_file=str(path)))

    assert "\n" not in str(caught.value)
