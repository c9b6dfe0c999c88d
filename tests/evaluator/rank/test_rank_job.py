"""The job file of a rank: what it may say, which class reads it, and where such ranks meet."""

import copy
import json
import subprocess
import sys
from dataclasses import asdict

import pytest

from evaluator.rank.job import (
    Checkpointing,
    Config,
    DeviceKind,
    Job,
    JobError,
    Measure,
    Precision,
    Schedule,
    parse,
)
from evaluator.rank.main import read_job
from evaluator.workloads.collectives.operations import (
    Collective,
    Compression,
    DType,
    ExchangeJob,
    Operation,
    ReduceOp,
    Repeated,
)
from tests.evaluator.conftest import rank_workload

JOB = {
    "entry": "package.module:function",
    "world_size": 4,
    "device": "cpu",
    "init_method": "file:///somewhere/store",
    "workload": asdict(rank_workload(global_batch=16)),
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
}


def job_text(section: str | None, key: str, value: object) -> str:
    job = copy.deepcopy(JOB)
    target = job if section is None else job[section]
    target[key] = value
    return json.dumps(job)


def test_a_job_file_becomes_values_with_defaults_and_is_written_as_it_was():
    job = parse(Job, json.dumps(JOB))

    assert job.workload.precision is Precision.FP32
    assert job.config.activation_checkpointing is Checkpointing.SELECTIVE
    assert (job.config.dp, job.micro_batch_count, job.memory_budget_bytes) == (2, 2, None)
    assert job.config.pipeline_schedule is Schedule.ONE_F_ONE_B
    assert (job.config.cp, job.config.compile, job.config.threads_per_rank) == (1, False, 1)
    assert parse(Job, json.dumps(asdict(job))) == job
    limited = parse(Job, job_text(None, "memory_budget_bytes", 12345))
    assert limited.memory_budget_bytes == 12345


def test_the_ranks_of_a_layout_are_the_product_of_its_degrees():
    config = Config(dp_replicate=2, dp_shard=3, tp=5, cp=7, pp=11, ep=3)

    assert (config.dp, config.world_size) == (6, 2310)


def test_steps_that_depend_on_each_other_s_times_are_asked_for_in_numbers():
    asked = JOB["measure"] | {"max_timed_steps": 20, "step_precision": 0.1, "stop_above_s": 2}

    measure = parse(Job, json.dumps(JOB | {"measure": asked})).measure

    assert (measure.most_timed_steps, measure.step_precision) == (20, 0.1)
    assert (measure.stop_above_s, measure.is_fixed) == (2, False)


@pytest.mark.parametrize("most", [None, 3, 5])
def test_the_number_of_timed_steps_is_fixed_where_no_more_may_be_timed(most):
    measure = Measure(warmup_steps=0, timed_steps=5, profiled_steps=0, max_timed_steps=most)

    assert (measure.most_timed_steps, measure.is_fixed) == (5, True)


@pytest.mark.parametrize(
    ("section", "key", "value", "complaint"),
    [
        (None, "entry", 3, "job: entry must be a text, got 3"),
        (None, "device", "tpu", 'job: device must be cpu or cuda, got "tpu"'),
        (None, "workload", [], "workload must be an object, got []"),
        (None, "extra", 1, "job: unknown extra"),
        (None, "memory_budget_bytes", 0, "memory_budget_bytes must be a whole number of at least"),
        ("workload", "layer_count", "4", "workload: layer_count must be a whole number"),
        ("workload", "layer_count", True, "workload: layer_count must be a whole number"),
        ("workload", "precision", "fp8", 'workload: precision must be fp32 or bf16, got "fp8"'),
        ("config", "tp", 0, "config: tp must be a whole number of at least 1, got 0"),
        ("config", "tp", 2, "config: its degrees make 8 ranks, but world_size is 4"),
        ("config", "compile", 1, "config: compile must be true or false, got 1"),
        ("config", "pipeline_schedule", "2f2b", "config: pipeline_schedule must be gpipe or 1f1b"),
        ("workload", "text_file", "", 'workload: text_file must be a text, got ""'),
        ("config", "optimizer", "adam", "config: unknown optimizer"),
        ("measure", "timed_steps", 0, "measure: timed_steps must be a whole number of at least 1"),
        ("measure", "step_precision", 0, "measure: step_precision must be a number above 0, got 0"),
        ("measure", "step_precision", True, "step_precision must be a number above 0, got true"),
        ("measure", "stop_above_s", "1", 'stop_above_s must be a number above 0, got "1"'),
        ("measure", "stop_above_s", float("inf"), "stop_above_s must be a number above 0, got Inf"),
        ("measure", "stop_above_s", float("nan"), "stop_above_s must be a number above 0, got NaN"),
    ],
)
def test_a_wrong_job_is_told_in_one_line(section, key, value, complaint):
    with pytest.raises(JobError) as error:
        parse(Job, job_text(section, key, value))

    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_key_is_named():
    job = copy.deepcopy(JOB)
    del job["measure"]["timed_steps"]

    with pytest.raises(JobError, match="measure: timed_steps is missing"):
        parse(Job, json.dumps(job))


EXCHANGE = {
    "entry": "evaluator.workloads.collectives.message_step:exchange",
    "world_size": 1,
    "device": "cpu",
    "init_method": "file://",
    "messages": [
        {
            "operation": {
                "collective": "all_reduce",
                "size_bytes": 64,
                "dtype": "float64",
                "reduce_op": "max",
            },
            "count": 2,
        },
        {"operation": {"collective": "barrier", "size_bytes": 0}},
    ],
    "setup": {"compression": "bf16", "in_flight": 2, "gloo_interfaces": "lo"},
    "measure": {"warmup_steps": 1, "timed_steps": 2, "profiled_steps": 0},
}


@pytest.fixture
def read(tmp_path):
    """Reads a job from a file."""

    def reading(document):
        path = tmp_path / "job.json"
        if document is not None:
            path.write_text(document if isinstance(document, str) else json.dumps(document))
        return read_job(path)

    return reading


def test_the_module_of_an_entry_tells_the_class_of_its_jobs(read):
    job = read(EXCHANGE)

    assert isinstance(job, ExchangeJob)
    assert job.messages == (
        Repeated(
            operation=Operation(
                collective=Collective.ALL_REDUCE,
                size_bytes=64,
                dtype=DType.FLOAT64,
                reduce_op=ReduceOp.MAX,
            ),
            count=2,
        ),
        Repeated(operation=Operation(collective=Collective.BARRIER, size_bytes=0)),
    )
    assert (job.device, job.setup.compression) == (DeviceKind.CPU, Compression.BF16)
    assert (job.threads_per_rank, job.memory_budget_bytes) == (1, None)


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ({**EXCHANGE, "entry": "no.such:thing"}, "job.json: entry: no.such:thing cannot be loaded"),
        ({**EXCHANGE, "entry": "json:no"}, "job.json: entry: json:no cannot be loaded"),
        ({**EXCHANGE, "entry": "exchange"}, "job.json: entry: expected 'package.module:function'"),
        ({**EXCHANGE, "entry": "x:"}, "job.json: entry: expected 'package.module:function'"),
        ({**EXCHANGE, "entry": 3}, "job.json: job: "),
        ({**EXCHANGE, "messages": {}}, "job.json: job: messages must be a list"),
        (
            {**EXCHANGE, "messages": [{"operation": {"collective": "shout", "size_bytes": 1}}]},
            "job.json: operation: collective must be all_reduce or ",
        ),
        (
            {**EXCHANGE, "entry": "evaluator.workloads.training:train"},  # its module names no JOB
            "job.json: job: unknown messages, setup",
        ),
        ("[]", "job.json: job must be an object, got []"),
        ("{", "job.json: not JSON"),
        (None, "job.json: [Errno 2]"),
    ],
)
def test_a_wrong_job_file_is_told_in_one_line(read, document, complaint):
    with pytest.raises(JobError) as error:
        read(document)

    assert str(error.value).startswith(complaint)
    assert "\n" not in str(error.value)


def test_ranks_that_are_started_by_hand_meet_in_their_folder_with_their_whole_budget(tmp_path):
    """What a cold rank imports takes more than this budget, and does not count."""
    (tmp_path / "job.json").write_text(json.dumps(EXCHANGE | {"memory_budget_bytes": 80 << 20}))
    numbers = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}

    ended = subprocess.run(
        [sys.executable, "-P", "-m", "evaluator.rank.main", "job.json"],
        cwd=tmp_path,
        env=numbers,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    samples = json.loads((tmp_path / "rank0.steps.json").read_text())
    assert (len(samples["warmup"]), len(samples["timed"]), samples["losses"]) == (1, 2, [])
