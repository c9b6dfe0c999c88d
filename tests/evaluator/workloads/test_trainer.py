"""However the work is spread, every rank's training is one and the same, and is accounted for."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from evaluator.failures.classify import classify
from records.trial import FailureKind

ROOT = Path(__file__).parents[3]
SMALL = {
    "layer_count": 4,
    "hidden_size": 64,
    "head_count": 4,
    "kv_head_count": 2,
    "ffn_size": 96,
    "vocab_size": 128,
    "sequence_length": 64,
    "global_batch": 16,
    "precision": "fp32",
    "seed": 42,
}
TOKENS_PER_STEP = 16 * 64
LONG = SMALL | {"hidden_size": 128, "ffn_size": 352, "vocab_size": 512, "sequence_length": 128}
MIB = 1 << 20
DESCEND = "training_entries:descend"
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
        "micro_batch": 4,
        "sequence_parallel": False,
        "loss_parallel": False,
        "activation_checkpointing": "full",
    },
    "tp_zero_bubble": TWO_STAGES
    | {"tp": 2, "micro_batch": 8, "pipeline_schedule": "interleaved_zero_bubble"},
    "fsdp_ring": {"dp_shard": 2, "cp": 2, "micro_batch": 4},
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_learns_what_one_rank_learns(ranks, layout):
    expected = ranks.run(REFERENCE, SMALL, entry=DESCEND).losses()

    losses = ranks.run(layout, SMALL, entry=DESCEND).losses()

    assert losses == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_feeds_the_global_batch(ranks, layout):
    steps = ranks.run(layout, SMALL, entry=DESCEND).steps()

    assert sum(step["tokens_per_step"] for step in steps) == TOKENS_PER_STEP


def test_the_real_optimizer_learns_the_same_in_stages(ranks):
    expected = ranks.run(REFERENCE, SMALL).losses()

    assert ranks.run(ZBV, SMALL).losses() == pytest.approx(expected, rel=1e-4)


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


def test_training_learns(ranks):
    losses = ranks.run(REFERENCE, SMALL, steps=(1, 3, 0)).losses()

    assert len(losses) == 4
    assert losses[-1] < losses[0] - 0.05


def test_another_seed_is_another_run(ranks):
    losses = ranks.run(REFERENCE, SMALL | {"seed": 7}).losses()

    assert losses != pytest.approx(ranks.run(REFERENCE, SMALL).losses(), abs=1e-3)


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

    losses = ranks.run(LAYOUTS["ring"], workload, entry=DESCEND).losses()

    assert losses == pytest.approx(expected, rel=1e-4)
    assert losses != pytest.approx(ranks.run(REFERENCE, SMALL, entry=DESCEND).losses(), rel=1e-3)


def test_the_more_is_computed_again_the_lower_is_the_peak(ranks):
    kinds = ("none", "selective", "full")

    runs = [
        ranks.run(REFERENCE | {"activation_checkpointing": kind}, LONG, steps=(1, 1, 0))
        for kind in kinds
    ]

    none, selective, full = (run.peak_memory_bytes() for run in runs)
    assert full < 0.95 * selective < 0.9 * none


def test_micro_batches_lower_the_peak(ranks):
    plain = ranks.run(REFERENCE | {"activation_checkpointing": "none"}, LONG, steps=(1, 1, 0))

    saving = ranks.run({"micro_batch": 2}, LONG, steps=(1, 1, 0))

    assert saving.peak_memory_bytes() < 0.6 * plain.peak_memory_bytes()


def test_a_tight_budget_runs_out_of_memory_in_a_stage_of_a_pipeline(ranks):
    run = ranks.run({"pp": 2, "micro_batch": 8}, LONG, memory_budget_bytes=40 * MIB)

    failed = classify(run.result)
    assert failed is not None
    assert failed.kind is FailureKind.OUT_OF_MEMORY


def test_a_generous_budget_changes_nothing(ranks):
    expected = ranks.run(ZBV, SMALL).losses()

    losses = ranks.run(ZBV, SMALL, memory_budget_bytes=500 * MIB).losses()

    assert losses == expected


def test_the_budget_does_not_bind_the_profiler(ranks):
    run = ranks.run(REFERENCE, SMALL, steps=(1, 1, 4), memory_budget_bytes=100 * MIB)

    assert run.steps()


def test_a_trace_holds_the_profiled_steps_and_no_other(ranks):
    run = ranks.run(TWO_RANKS, SMALL, steps=(1, 2, 2))

    for rank in range(2):
        steps = [span for span in run.spans(rank) if span["name"].startswith("ProfilerStep")]
        assert [step["name"] for step in steps] == ["ProfilerStep#3", "ProfilerStep#4"]
        assert steps[0]["ts"] + steps[0]["dur"] <= steps[1]["ts"]


def test_profiling_begins_after_the_last_timed_step(ranks):
    run = ranks.run(TWO_RANKS, SMALL, steps=(1, 2, 2))
    lines = (run.folder / "rank0.progress.jsonl").read_text().splitlines()
    beats = [json.loads(line) for line in lines]

    profiled = [beat["at_ns"] for beat in beats if beat["phase"] == "profile"]

    assert min(profiled) > run.steps()[0]["timed"][-1][1]
    assert (beats[0]["phase"], beats[-1]["phase"]) == ("setup", "done")


def test_nothing_is_profiled_unless_asked(ranks):
    run = ranks.run(REFERENCE, SMALL)

    assert run.steps()
    assert list(run.folder.glob("*trace*")) == []


def test_an_exception_in_a_rank_says_where_it_was(ranks):
    run = ranks.run(
        LAYOUTS["ddp_in_micro_batches"], SMALL, entry="training_entries:fail_in_a_timed_step"
    )

    assert [rank.status for rank in run.result.ranks] == [1, 1]
    (error,) = [error for error in run.documents(".error.json") if error["rank"] == 1]
    assert (error["type"], error["message"]) == ("ZeroDivisionError", "made to fail")
    assert error["phase"] == "timed"
    assert "ZeroDivisionError: made to fail" in (run.folder / "rank1.log").read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"entry": "nowhere:train"}, r"job\.json: entry: nowhere:train cannot be loaded: .*"),
        ({"device": "tpu"}, r'job\.json: job: device must be cpu or cuda, got "tpu"'),
        (
            {"workload": SMALL | {"text_file": "no/such/text"}},
            r"text_file: no/such/text cannot be read: .*",
        ),
    ],
    ids=["entry", "device", "text_file"],
)
def test_a_bad_job_fails_in_setup_with_one_line(ranks, changes, message):
    workload = changes.pop("workload", SMALL)

    run = ranks.run(REFERENCE, workload, **changes)

    (error,) = run.documents(".error.json")
    assert error["phase"] == "setup"
    assert error["type"].endswith("JobError")
    assert re.fullmatch(message, error["message"])


def test_a_rank_starts_cold_with_its_whole_budget(ranks, tmp_path):
    job = (ranks.run(REFERENCE, SMALL).folder / "job.json").read_text()
    limited = json.loads(job) | {"memory_budget_bytes": 80 * MIB}
    (tmp_path / "job.json").write_text(json.dumps(limited))
    numbers = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}

    command = [sys.executable, "-P", "-m", "evaluator.rank.main", "job.json"]
    environment = {"PATH": os.defpath, "PYTHONPATH": str(ROOT)} | numbers | meeting
    subprocess.run(command, cwd=tmp_path, check=True, env=environment)

    steps = json.loads((tmp_path / "rank0.steps.json").read_text())
    assert steps["tokens_per_step"] == TOKENS_PER_STEP
