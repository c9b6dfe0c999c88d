"""Which job a rank reads, by the entry that its file names, and where such ranks meet."""

import json
import subprocess
import sys

import pytest

from evaluator.rank.job import DeviceKind, JobError
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
def test_a_wrong_job_is_told_in_one_line(read, document, complaint):
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
        timeout=60,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    samples = json.loads((tmp_path / "rank0.steps.json").read_text())
    assert (len(samples["warmup"]), len(samples["timed"]), samples["losses"]) == (1, 2, [])
