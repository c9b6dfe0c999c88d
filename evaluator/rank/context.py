"""What one rank knows about itself when the job's entry is called."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch

from evaluator.rank.job import DeviceKind, Job
from evaluator.rank.job_file import JobError

_CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankNumbers:
    """The numbers that a launcher gives each rank in its environment."""

    rank: int
    local_rank: int
    world_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankContext:
    """The rank's number, its device and its job: the only argument of an entry."""

    rank: int
    local_rank: int
    device: torch.device
    job: Job

    @property
    def device_name(self) -> str:
        """What the hardware calls itself."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        for line in _CPU_INFO.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
        return platform.machine()


def read_rank_numbers() -> RankNumbers:
    """Read RANK, LOCAL_RANK and WORLD_SIZE; raises `JobError` if a launcher left one out."""
    return RankNumbers(
        rank=_number("RANK"), local_rank=_number("LOCAL_RANK"), world_size=_number("WORLD_SIZE")
    )


def place(numbers: RankNumbers, job: Job) -> RankContext:
    """Give the rank its device; raises `JobError` if the launcher started another world."""
    if numbers.world_size != job.world_size:
        raise JobError(
            f"WORLD_SIZE is {numbers.world_size}, but the job's world_size is {job.world_size}"
        )
    if job.device is DeviceKind.CUDA:
        device = torch.device("cuda", numbers.local_rank)
    else:
        device = torch.device("cpu")
    return RankContext(rank=numbers.rank, local_rank=numbers.local_rank, device=device, job=job)


def pin_to_cores(local_rank: int, thread_count: int) -> None:
    """Pin this process, and every thread it starts later, to its own cores.

    Unpinned ranks wander between cores and wait for each other; cores are shared in turn
    when there are fewer of them than ranks.
    """
    allowed = sorted(os.sched_getaffinity(0))
    first = local_rank * thread_count
    own = {allowed[(first + i) % len(allowed)] for i in range(thread_count)}
    os.sched_setaffinity(0, own)


def _number(name: str) -> int:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError) as error:
        raise JobError(f"the environment gives no number in {name}") from error
