import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from evaluator.rank.job import Measure
from evaluator.rank.protocol import Phase, Progress, progress_name
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


def clock_over(work: CountedWork, folder: Path, *, rank: int = 0) -> StepClock:
    return StepClock(work, device=torch.device("cpu"), progress=Progress(folder, rank=rank))


def test_steps_are_numbered_on_through_the_phases(tmp_path):
    work = CountedWork()
    clock = clock_over(work, tmp_path)

    warmup = clock.run(Phase.WARMUP, 2)
    timed = clock.run(Phase.TIMED, 3)

    assert work.steps == [0, 1, 2, 3, 4]
    assert (len(warmup), len(timed)) == (2, 3)
    assert clock.tokens_per_step == 64


def test_a_fixed_number_of_steps_needs_no_word_between_ranks(tmp_path):
    clock = clock_over(CountedWork(), tmp_path)

    timed, stopped = clock.sample(Measure(warmup_steps=0, timed_steps=4, profiled_steps=0))

    assert not dist.is_initialized()
    assert (len(timed), stopped) == (4, None)


def test_windows_follow_each_other(tmp_path):
    clock = clock_over(CountedWork(), tmp_path)

    instants = [instant for window in clock.run(Phase.TIMED, 4) for instant in window]

    assert instants == sorted(instants)


class MarkingWork(CountedWork):
    """Marks one instant in each step."""

    def step(self, index: int) -> int:
        self._mark_ns = time.perf_counter_ns()
        return super().step(index)

    def marks_ns(self) -> list[int]:
        return [self._mark_ns]


def test_marks_stand_between_the_start_and_the_end_of_their_step(tmp_path):
    clock = clock_over(MarkingWork(), tmp_path)

    windows = clock.run(Phase.TIMED, 2)

    assert [len(window) for window in windows] == [3, 3]
    instants = [instant for window in windows for instant in window]
    assert instants == sorted(instants)


def test_steps_that_feed_other_work_do_not_compare(tmp_path):
    clock = clock_over(CountedWork(grows_at=1), tmp_path)

    with pytest.raises(UnequalStepsError, match="step 1 fed 65 tokens, the one before 64"):
        clock.run(Phase.TIMED, 2)


def test_no_tokens_are_claimed_before_a_step(tmp_path):
    clock = clock_over(CountedWork(), tmp_path)

    with pytest.raises(RuntimeError, match="no step was run"):
        _ = clock.tokens_per_step


def test_rank_0_writes_each_beat_at_once(tmp_path):
    clock = clock_over(CountedWork(), tmp_path)

    clock.run(Phase.WARMUP, 1)
    clock.run(Phase.TIMED, 1)

    lines = (tmp_path / progress_name(0)).read_text().splitlines()
    beats = [json.loads(line) for line in lines]
    assert [(beat["phase"], beat["step"]) for beat in beats] == [
        ("warmup", 0),
        ("warmup", None),
        ("timed", 1),
        ("timed", None),
    ]


def test_every_rank_beats_into_a_file_of_its_own(tmp_path):
    for rank in range(2):
        clock_over(CountedWork(), tmp_path, rank=rank).run(Phase.WARMUP, 1)

    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["rank0.progress.jsonl", "rank1.progress.jsonl"]


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_fails(loss):
    work = CountedWork()
    work.losses = [6.0, loss]

    with pytest.raises(LossError, match="the loss of step 1 is"):
        finite_losses(work)


def test_losses_are_kept_as_they_are():
    work = CountedWork()
    work.losses = [6.0, 5.5]

    assert finite_losses(work) == [6.0, 5.5]


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
