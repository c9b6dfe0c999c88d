import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from evaluator.rank.job import Measure
from evaluator.rank.protocol import Phase, Progress, RankFile
from evaluator.rank.steps import LossError, StepClock, UnequalStepsError, energy_j, finite_losses

SUCCEEDS = SimpleNamespace(
    nvmlInit_v2=lambda: 0,
    nvmlDeviceGetHandleByUUID=lambda *_: 0,
    nvmlDeviceGetTotalEnergyConsumption=lambda *_: 0,
)


class CountedWork:
    """Remembers its steps; feeds one more token from step `grows_at` on."""

    def __init__(self, grows_at: int = 1000) -> None:
        self.steps: list[int] = []
        self.losses: list[float] = []
        self._grows_at = grows_at

    def step(self, index: int) -> int:
        self.steps.append(index)
        return 64 + (index >= self._grows_at)

    def global_losses(self) -> list[float]:
        return self.losses


@pytest.fixture
def clock(tmp_path: Path) -> Callable[..., StepClock]:
    """Makes the clock of a rank's work."""

    def over(work: CountedWork, *, rank: int = 0) -> StepClock:
        return StepClock(work, device=torch.device("cpu"), progress=Progress(tmp_path, rank=rank))

    return over


def test_steps_are_numbered_on_through_the_phases_and_beat_as_they_begin(clock, tmp_path):
    work = CountedWork()
    timing = clock(work)
    with pytest.raises(RuntimeError, match="no step was run"):
        _ = timing.tokens_per_step

    warmup = timing.run(Phase.WARMUP, 1)
    timed = timing.run(Phase.TIMED, 2)
    clock(CountedWork(), rank=1)

    assert work.steps == [0, 1, 2]
    assert (len(warmup), len(timed), timing.tokens_per_step) == (1, 2, 64)
    instants = [instant for window in timed for instant in window]
    assert instants == sorted(instants)
    lines = (tmp_path / RankFile.PROGRESS.of(0)).read_text().splitlines()
    beats = [(beat["phase"], beat["step"]) for beat in map(json.loads, lines)]
    assert beats == [("warmup", 0), ("warmup", None), *(("timed", n) for n in (1, 2, None))]
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["rank0.progress.jsonl", "rank1.progress.jsonl"]


def test_a_fixed_number_of_steps_needs_no_word_between_ranks(clock):
    measure = Measure(warmup_steps=0, timed_steps=4, profiled_steps=0)

    timed, stopped = clock(CountedWork()).sample(measure)

    assert not dist.is_initialized()
    assert (len(timed), stopped) == (4, None)


class MarkingWork(CountedWork):
    """Marks one instant in each step."""

    def step(self, index: int) -> int:
        self._mark_ns = time.perf_counter_ns()
        return super().step(index)

    def marks_ns(self) -> list[int]:
        return [self._mark_ns]


def test_marks_stand_between_the_start_and_the_end_of_their_step(clock):
    windows = clock(MarkingWork()).run(Phase.TIMED, 2)

    assert [len(window) for window in windows] == [3, 3]
    instants = [instant for window in windows for instant in window]
    assert instants == sorted(instants)


def test_steps_that_feed_other_work_do_not_compare(clock):
    with pytest.raises(UnequalStepsError, match="step 1 fed 65 tokens, the one before 64"):
        clock(CountedWork(grows_at=1)).run(Phase.TIMED, 2)


@pytest.mark.parametrize("loss", [5.5, float("nan"), float("inf")])
def test_losses_are_kept_unless_one_is_no_number(loss):
    work = CountedWork()
    work.losses = [6.0, loss]

    if loss == 5.5:
        assert finite_losses(work) == [6.0, 5.5]
    else:
        with pytest.raises(LossError, match="the loss of step 1 is"):
            finite_losses(work)


@pytest.mark.parametrize(
    ("library", "uuid"),
    [(OSError("no such library"), "a"), (SimpleNamespace(), "a"), (SUCCEEDS, None)],
    ids=["no library", "no such call", "a torch without the name of a device"],
)
def test_a_device_whose_energy_cannot_be_read_has_none(library, uuid, monkeypatch):
    def load(_):
        if isinstance(library, OSError):
            raise library
        return library

    named = SimpleNamespace() if uuid is None else SimpleNamespace(uuid=uuid)
    monkeypatch.setattr("ctypes.CDLL", load)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: named)

    assert energy_j(torch.device("cuda")) is None
    assert energy_j(torch.device("cpu")) is None


FILL_THE_BUDGET = """
import ctypes, json, os
from evaluator.rank.steps import HostMemory

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
BLOCK = 1 << 16

def blocks(count):
    for _ in range(count):
        if not (block := libc.malloc(BLOCK)):
            return
        ctypes.memset(block, 1, BLOCK)
        yield block

def fill(freed_bytes):
    freed = list(blocks(freed_bytes // BLOCK))
    libc.malloc(BLOCK)  # what is freed below it stays in the heap
    for block in freed:
        libc.free(block)
    memory = HostMemory()
    with memory.budget(32 << 20):
        taken_bytes = BLOCK * sum(1 for _ in blocks(10_000))
    return taken_bytes, memory.peak_bytes()

for freed_bytes in (0, 24 << 20):
    if os.fork() == 0:
        print(json.dumps(fill(freed_bytes)), flush=True)
        os._exit(0)
    os.wait()
"""


def test_a_rank_gets_no_more_of_its_budget_where_blocks_were_free_when_it_began():
    """The process that ranks are forked from has free blocks where it compiled their modules."""
    done = subprocess.run(
        [sys.executable, "-c", FILL_THE_BUDGET], capture_output=True, text=True, check=True
    )

    (taken, peak), after_others = [json.loads(line) for line in done.stdout.splitlines()]
    assert (taken, peak) == (pytest.approx(48 << 20, rel=0.05), pytest.approx(taken, rel=0.05))
    assert after_others == [pytest.approx(taken, rel=0.05), pytest.approx(peak, rel=0.05)]
