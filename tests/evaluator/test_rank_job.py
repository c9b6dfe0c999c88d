import copy
import json
from pathlib import Path

import pytest

from evaluator.rank.job import Checkpointing, JobError, Precision, parse_job, read_job

JOB = {
    "entry": "package.module:function",
    "world_size": 4,
    "device": "cpu",
    "init_method": "file:///somewhere/store",
    "workload": {
        "layer_count": 4,
        "hidden_size": 128,
        "head_count": 4,
        "kv_head_count": 4,
        "ffn_size": 352,
        "vocab_size": 512,
        "sequence_length": 128,
        "global_batch": 16,
        "precision": "fp32",
        "seed": 42,
    },
    "config": {
        "dp_replicate": 1,
        "dp_shard": 2,
        "tp": 1,
        "pp": 2,
        "micro_batch": 4,
        "activation_checkpointing": "selective",
    },
    "measure": {"warmup_steps": 2, "timed_steps": 5, "profiled_steps": 2},
    "memory_budget_bytes": None,
    "threads_per_rank": 1,
}


def job_text(section: str | None, key: str, value: object) -> str:
    job = copy.deepcopy(JOB)
    target = job if section is None else job[section]
    target[key] = value
    return json.dumps(job)


def test_a_job_file_becomes_values():
    job = parse_job(json.dumps(JOB))

    assert job.workload.precision is Precision.FP32
    assert job.config.activation_checkpointing is Checkpointing.SELECTIVE
    assert job.config.dp == 2
    assert job.micro_batch_count == 2
    assert job.memory_budget_bytes is None


def test_a_memory_budget_is_read():
    assert parse_job(job_text(None, "memory_budget_bytes", 12345)).memory_budget_bytes == 12345


@pytest.mark.parametrize(
    ("section", "key", "value", "complaint"),
    [
        (None, "entry", "module.function", "entry: expected 'package.module:function', got"),
        (None, "entry", 3, "job: entry must be a text, got 3"),
        (None, "device", "tpu", 'job: device must be cpu or cuda, got "tpu"'),
        (None, "workload", [], "workload: expected an object, got []"),
        (None, "extra", 1, "job: unknown extra"),
        (None, "memory_budget_bytes", 0, "memory_budget_bytes must be a whole number of at least"),
        ("workload", "layer_count", "4", "workload: layer_count must be a whole number"),
        ("workload", "layer_count", True, "workload: layer_count must be a whole number"),
        ("workload", "precision", "fp8", 'workload: precision must be fp32 or bf16, got "fp8"'),
        ("workload", "head_count", 3, "workload: hidden_size 128 does not divide by head_count 3"),
        ("workload", "kv_head_count", 3, "head_count 4 does not divide by kv_head_count 3"),
        ("workload", "hidden_size", 12, "does not divide by rotary pairs of 2"),
        ("workload", "layer_count", 5, "config: layer_count 5 does not divide by pp 2"),
        ("config", "tp", 0, "config: tp must be a whole number of at least 1, got 0"),
        ("config", "tp", 2, "config: dp_replicate × dp_shard × tp × pp = 8, but world_size is 4"),
        ("config", "micro_batch", 3, "global_batch 16 does not divide by dp × micro_batch = 6"),
        ("config", "micro_batch", 8, "pp 2 needs as many micro-batches to fill its stages"),
        ("config", "optimizer", "adam", "config: unknown optimizer"),
        ("measure", "timed_steps", 0, "measure: timed_steps must be a whole number of at least 1"),
    ],
)
def test_a_wrong_job_is_told_in_one_line(section, key, value, complaint):
    with pytest.raises(JobError) as error:
        parse_job(job_text(section, key, value))

    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_key_is_named():
    job = copy.deepcopy(JOB)
    del job["measure"]["timed_steps"]

    with pytest.raises(JobError, match="measure: timed_steps is missing"):
        parse_job(json.dumps(job))


@pytest.mark.parametrize(
    ("sizes", "complaint"),
    [
        ({"head_count": 4, "kv_head_count": 4}, "head_count 4 does not divide by tp 3"),
        ({"kv_head_count": 1}, "kv_head_count 1 does not divide by tp 3"),
        ({"ffn_size": 4}, "ffn_size 4 does not divide by tp 3"),
        ({"vocab_size": 4}, "vocab_size 4 does not divide by tp 3"),
        ({"sequence_length": 4}, "sequence_length 4 does not divide by tp 3"),
    ],
)
def test_tensor_parallelism_needs_equal_slices(sizes, complaint):
    job = copy.deepcopy(JOB)
    job["world_size"] = 3
    job["config"].update(dp_shard=1, tp=3, pp=1)
    job["workload"].update(hidden_size=192, head_count=3, kv_head_count=3)
    job["workload"].update(ffn_size=3, vocab_size=3, sequence_length=3)
    job["workload"].update(sizes)

    with pytest.raises(JobError, match=f"config: {complaint}"):
        parse_job(json.dumps(job))


def test_text_that_is_not_json_is_told():
    with pytest.raises(JobError, match="not JSON"):
        parse_job("{")


def test_an_unreadable_file_is_named(tmp_path: Path):
    with pytest.raises(JobError, match=r"absent\.json"):
        read_job(tmp_path / "absent.json")
