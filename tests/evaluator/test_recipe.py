import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from evaluator.evaluate import TrialEvaluator
from evaluator.rank.job import parse_job
from evaluator.recipes.builtin import BuiltinRecipe
from records.errors import StudyError
from records.trial import Config

GOLDEN = """{
 "entry": "evaluator.workloads.training:train",
 "world_size": 2,
 "device": "cpu",
 "init_method": "env://",
 "workload": {
  "layer_count": 2,
  "hidden_size": 32,
  "head_count": 2,
  "kv_head_count": 2,
  "ffn_size": 64,
  "vocab_size": 64,
  "sequence_length": 32,
  "global_batch": 8,
  "precision": "fp32",
  "seed": 42
 },
 "config": {
  "dp_replicate": 1,
  "dp_shard": 2,
  "tp": 1,
  "pp": 1,
  "micro_batch": 4,
  "activation_checkpointing": "none"
 },
 "measure": {
  "warmup_steps": 1,
  "timed_steps": 5,
  "profiled_steps": 1
 },
 "memory_budget_bytes": null,
 "threads_per_rank": 1
}"""


def test_the_job_of_a_configuration_is_written_out_in_full(study):
    job = BuiltinRecipe().job(study, Config({"dp_shard": 2, "micro_batch": 4}))

    assert job.files == {"job.json": GOLDEN}
    assert job.world_size == 2
    assert job.module == "evaluator.workloads.training"
    assert job.timeout_s == 60
    assert job.environment == {}
    assert parse_job(GOLDEN).world_size == 2


def test_a_cold_start_names_no_path_of_this_machine(study):
    job = BuiltinRecipe().job(study, Config({"tp": 2}))

    python = Path(sys.executable).name
    assert " ".join(job.argv) == (
        f"{python} -P -m torch.distributed.run --standalone --nproc-per-node=2 "
        f"--no-python {python} -P -m evaluator.rank.main job.json"
    )


def test_a_memory_budget_and_threads_reach_the_job(study):
    launch = replace(study.launch, memory_budget_bytes=1 << 20, threads_per_rank=3)
    job = BuiltinRecipe().job(replace(study, launch=launch), Config({"tp": 2}))

    document = json.loads(job.files["job.json"])
    assert (document["memory_budget_bytes"], document["threads_per_rank"]) == (1 << 20, 3)


@pytest.mark.parametrize(
    ("knobs", "world_size"),
    [
        ({}, 1),
        ({"dp_replicate": 2, "dp_shard": 3, "tp": 5, "pp": 7}, 210),
        ({"micro_batch": 8, "activation_checkpointing": "full"}, 1),
    ],
)
def test_the_degrees_multiply_to_the_ranks_that_are_started(knobs, world_size, study):
    assert BuiltinRecipe().job(study, Config(knobs)).world_size == world_size


def test_a_knob_that_is_not_the_recipes_is_refused(study):
    with pytest.raises(StudyError, match="'cp' is not a knob of the builtin recipe; it has dp_rep"):
        BuiltinRecipe().job(study, Config({"cp": 2}))


@pytest.mark.parametrize("size", ["layer_count", "kv_head_count", "vocab_size"])
def test_a_model_size_that_is_missing_is_named(size, study):
    unsized = replace(study, workload=replace(study.workload, **{size: None}))

    with pytest.raises(StudyError, match=rf"\[workload\] {size} is missing"):
        BuiltinRecipe().job(unsized, Config({"tp": 2}))


def test_inference_is_refused(study):
    inference = replace(study, workload=replace(study.workload, phase="inference"))

    with pytest.raises(StudyError, match="phase 'inference': the builtin recipe only trains"):
        BuiltinRecipe().job(inference, Config({"tp": 2}))


def test_what_is_on_record_starts_the_same_training_by_hand(launcher, study, tmp_path):
    untraced = replace(study, measure=replace(study.measure, profiled_steps=0))
    warm, cold = tmp_path / "warm", tmp_path / "cold"
    warm.mkdir()
    cold.mkdir()
    config = Config({"dp_shard": 2, "micro_batch": 2})
    measured = TrialEvaluator(BuiltinRecipe(), launcher, print).evaluate(untraced, config, warm)

    (cold / "job.json").write_text((warm / "job.json").read_text())
    record = json.loads((warm / "launch.json").read_text())
    subprocess.run(
        record["argv"],
        cwd=cold,
        env={"PATH": f"{Path(sys.executable).parent}:{os.defpath}", **record["environment"]},
        timeout=record["timeout_s"],
        check=True,
        capture_output=True,
    )

    samples = [json.loads((cold / f"rank{rank}.steps.json").read_text()) for rank in (0, 1)]
    assert tuple(samples[0]["losses"]) == measured.measurement.losses
    assert sum(rank["tokens_per_step"] for rank in samples) == 8 * 32
