import json
from pathlib import Path

import pytest
import torch

from evaluator.rank.progress import PROGRESS_NAME, Phase, Progress
from evaluator.rank.steps import LossError, StepClock, UnequalStepsError, finite_losses


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


def test_windows_follow_each_other(tmp_path):
    clock = clock_over(CountedWork(), tmp_path)

    instants = [instant for window in clock.run(Phase.TIMED, 4) for instant in window]

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

    lines = (tmp_path / PROGRESS_NAME).read_text().splitlines()
    beats = [json.loads(line) for line in lines]
    assert [(beat["phase"], beat["step"]) for beat in beats] == [("warmup", 0), ("timed", 1)]


def test_other_ranks_write_no_beats(tmp_path):
    clock_over(CountedWork(), tmp_path, rank=1).run(Phase.WARMUP, 1)

    assert list(tmp_path.iterdir()) == []


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
