import gzip
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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
REFERENCE = {"micro_batch": 16}
LAYOUTS = {
    "one_rank_in_micro_batches": {"micro_batch": 4},
    "ddp_in_micro_batches": {"dp_replicate": 2, "micro_batch": 2},
    "fsdp_in_micro_batches": {"dp_shard": 2, "micro_batch": 4},
    "tp": {"tp": 2, "micro_batch": 8, "activation_checkpointing": "selective"},
    "pp": {"pp": 4, "micro_batch": 2},
    "hsdp": {"dp_replicate": 2, "dp_shard": 2, "micro_batch": 4},
    "ddp_pp": {"dp_replicate": 2, "pp": 2, "micro_batch": 2},
    "fsdp_pp": {
        "dp_shard": 2,
        "pp": 2,
        "micro_batch": 2,
        "activation_checkpointing": "selective",
    },
    "replicated_tp": {"dp_replicate": 2, "tp": 2, "micro_batch": 4},
    "fsdp_tp": {"dp_shard": 2, "tp": 2, "micro_batch": 4, "activation_checkpointing": "full"},
    "tp_pp": {"tp": 2, "pp": 2, "micro_batch": 4},
}
FAULTY_ENTRY = """
from evaluator.workloads.training import train

def fail_in_step_2(context):
    work = train(context)
    plain_step = work.step
    def step(index):
        if index == 2 and context.rank == 1:
            raise ZeroDivisionError("made to fail")
        return plain_step(index)
    work.step = step
    return work
"""


@dataclass(frozen=True, slots=True)
class Run:
    """What the ranks of one job left behind."""

    folder: Path
    statuses: list[int | None]

    def documents(self, suffix: str) -> list[dict]:
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob(f"*{suffix}"))]

    def steps(self) -> list[dict]:
        assert set(self.statuses) == {0}, (self.folder / "rank0.log").read_text()
        return self.documents(".steps.json")

    def errors(self) -> list[dict]:
        return self.documents(".error.json")

    def losses(self) -> list[float]:
        reported = [step["losses"] for step in self.steps() if step["losses"]]
        assert all(losses == reported[0] for losses in reported)
        return reported[0]

    def peak_memory_bytes(self) -> int:
        return max(step["peak_memory_bytes"] for step in self.steps())


class Ranks:
    """Runs jobs on forked ranks, each in a folder of its own, and remembers what ran."""

    def __init__(self, server: subprocess.Popen[str], folder: Path) -> None:
        self._server = server
        self._folder = folder
        self._finished: dict[str, Run] = {}

    def run(self, config: dict, *, workload: dict = SMALL, steps=(1, 3, 0), **changes) -> Run:
        job = job_of(config, workload, steps) | changes
        text = json.dumps(job)
        if text not in self._finished:
            folder = self._folder / str(len(self._finished))
            folder.mkdir()
            self._finished[text] = self._launch(job, folder)
        return self._finished[text]

    def _launch(self, job: dict, folder: Path) -> Run:
        job["init_method"] = f"file://{folder}/store"
        (folder / "job.json").write_text(json.dumps(job))
        request = {
            "folder": str(folder),
            "job": "job.json",
            "world_size": job["world_size"],
            "environment": {},
            "timeout_s": 60.0,
            "grace_s": 5.0,
        }
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        ended = json.loads(self._server.stdout.readline())
        return Run(folder, [rank["status"] for rank in ended["ranks"]])


def job_of(config: dict, workload: dict, steps: tuple[int, int, int]) -> dict:
    unspread = {"dp_replicate": 1, "dp_shard": 1, "tp": 1, "pp": 1, "micro_batch": 1}
    config = unspread | {"activation_checkpointing": "none"} | config
    warmup_steps, timed_steps, profiled_steps = steps
    return {
        "entry": "evaluator.workloads.training:train",
        "world_size": config["dp_replicate"] * config["dp_shard"] * config["tp"] * config["pp"],
        "device": "cpu",
        "init_method": "env://",
        "workload": workload,
        "config": config,
        "measure": {
            "warmup_steps": warmup_steps,
            "timed_steps": timed_steps,
            "profiled_steps": profiled_steps,
        },
        "memory_budget_bytes": None,
        "threads_per_rank": 1,
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """A warm process that forks ranks, and can import the faulty entry."""
    modules = tmp_path_factory.mktemp("modules")
    (modules / "faulty.py").write_text(FAULTY_ENTRY)
    command = [sys.executable, "-P", "-m", "evaluator.rank.forkserver", "faulty"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ROOT}:{modules}")
        patch.setenv("OMP_NUM_THREADS", "1")
        server = subprocess.Popen(command, stdin=-1, stdout=-1, text=True)
    with server:
        assert json.loads(server.stdout.readline())["event"] == "ready"
        yield Ranks(server, tmp_path_factory.mktemp("jobs"))
        server.stdin.close()


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_learns_what_one_rank_learns(ranks, layout):
    expected = ranks.run(REFERENCE).losses()

    losses = ranks.run(layout).losses()

    assert losses == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_feeds_the_global_batch(ranks, layout):
    steps = ranks.run(layout).steps()

    assert sum(step["tokens_per_step"] for step in steps) == TOKENS_PER_STEP


def test_training_learns(ranks):
    losses = ranks.run(REFERENCE).losses()

    assert len(losses) == 4
    assert losses[-1] < losses[0] - 0.05


def test_another_seed_is_another_run(ranks):
    losses = ranks.run(REFERENCE, workload=SMALL | {"seed": 7}).losses()

    assert losses != pytest.approx(ranks.run(REFERENCE).losses(), abs=1e-3)


def test_bf16_spreads_as_well(ranks):
    workload = SMALL | {"precision": "bf16"}
    expected = ranks.run(REFERENCE, workload=workload).losses()

    losses = ranks.run(LAYOUTS["fsdp_pp"], workload=workload).losses()

    assert losses == pytest.approx(expected, abs=2e-2)


@pytest.mark.parametrize("kind", ["selective", "full"])
def test_activation_checkpointing_lowers_the_peak(ranks, kind):
    plain = ranks.run(REFERENCE, workload=LONG)

    saving = ranks.run(REFERENCE | {"activation_checkpointing": kind}, workload=LONG)

    assert saving.peak_memory_bytes() < 0.95 * plain.peak_memory_bytes()


def test_micro_batches_lower_the_peak(ranks):
    plain = ranks.run(REFERENCE, workload=LONG)

    saving = ranks.run({"micro_batch": 2}, workload=LONG)

    assert saving.peak_memory_bytes() < 0.6 * plain.peak_memory_bytes()


@pytest.mark.parametrize("layout", [REFERENCE, {"pp": 2, "micro_batch": 8}], ids=["one_rank", "pp"])
def test_a_tight_budget_runs_out_of_memory(ranks, layout):
    run = ranks.run(layout, workload=LONG, memory_budget_bytes=40 * MIB)

    assert 0 not in run.statuses
    assert any(error["out_of_memory"] for error in run.errors())


def test_a_generous_budget_changes_nothing(ranks):
    expected = ranks.run(LAYOUTS["fsdp_pp"]).losses()

    losses = ranks.run(LAYOUTS["fsdp_pp"], memory_budget_bytes=500 * MIB).losses()

    assert losses == expected


def test_the_budget_does_not_bind_the_profiler(ranks):
    run = ranks.run(REFERENCE, steps=(1, 1, 4), memory_budget_bytes=100 * MIB)

    assert run.statuses == [0]


def test_a_trace_holds_the_profiled_steps_and_no_other(ranks):
    run = ranks.run(LAYOUTS["fsdp_in_micro_batches"], steps=(1, 2, 2))

    for rank in range(2):
        spans = profiler_steps(run.folder / f"rank{rank}_trace.json.gz")
        assert [span["name"] for span in spans] == ["ProfilerStep#3", "ProfilerStep#4"]
        assert spans[0]["ts"] + spans[0]["dur"] <= spans[1]["ts"]


def test_profiling_begins_after_the_last_timed_step(ranks):
    run = ranks.run(LAYOUTS["fsdp_in_micro_batches"], steps=(1, 2, 2))
    lines = (run.folder / "progress.jsonl").read_text().splitlines()
    beats = [json.loads(line) for line in lines]

    profiled = [beat["at_ns"] for beat in beats if beat["phase"] == "profile"]

    assert len(profiled) == 2
    assert profiled[0] > run.steps()[0]["timed"][-1][1]
    assert (beats[0]["phase"], beats[-1]["phase"]) == ("setup", "done")


def test_nothing_is_profiled_unless_asked(ranks):
    run = ranks.run(REFERENCE)

    assert run.steps()
    assert list(run.folder.glob("*trace*")) == []


def test_an_exception_in_a_rank_says_where_it_was(ranks):
    run = ranks.run(LAYOUTS["ddp_in_micro_batches"], entry="faulty:fail_in_step_2")

    assert run.statuses == [1, 1]
    (error,) = [error for error in run.errors() if error["rank"] == 1]
    assert (error["type"], error["message"]) == ("ZeroDivisionError", "made to fail")
    assert (error["phase"], error["out_of_memory"]) == ("timed", False)
    assert "ZeroDivisionError: made to fail" in (run.folder / "rank1.log").read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"entry": "nowhere:train"}, r"entry: nowhere:train cannot be loaded: .*"),
        ({"device": "tpu"}, r'job\.json: job: device must be cpu or cuda, got "tpu"'),
    ],
    ids=["entry", "device"],
)
def test_a_bad_job_fails_in_setup_with_one_line(ranks, changes, message):
    run = ranks.run(REFERENCE, **changes)

    (error,) = run.errors()
    assert (error["phase"], error["type"]) == ("setup", "JobError")
    assert re.fullmatch(message, error["message"])


def test_a_rank_starts_cold_with_its_whole_budget(tmp_path, monkeypatch):
    job = job_of(REFERENCE, SMALL, (1, 1, 0)) | {"memory_budget_bytes": 80 * MIB}
    (tmp_path / "job.json").write_text(json.dumps(job))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("RANK", "LOCAL_RANK", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")

    command = [sys.executable, "-P", "-m", "evaluator.rank.main", "job.json"]
    subprocess.run(command, cwd=tmp_path, check=True)

    assert Run(tmp_path, [0]).steps()[0]["tokens_per_step"] == TOKENS_PER_STEP


def profiler_steps(trace: Path) -> list[dict]:
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return [
        event
        for event in events
        if event.get("ph") == "X" and event["name"].startswith("ProfilerStep")
    ]
