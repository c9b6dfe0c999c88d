"""What one rank knows about itself when the job's entry is called."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

import torch

from evaluator.rank.entry import AnyJob
from evaluator.rank.job import DeviceKind, Job
from evaluator.rank.job_file import JobError

JobT_co = TypeVar("JobT_co", bound=AnyJob, covariant=True)

_CPU_INFO = Path("/proc/cpuinfo")
_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_LOCAL_RANK = (
    *("LOCAL_RANK", "PALS_LOCAL_RANKID", "MPI_LOCALRANKID"),
    *("OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"),
)
_WORLD_SIZE = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankNumbers:
    """The numbers that a launcher gives each rank in its environment."""

    rank: int
    local_rank: int
    world_size: int


# Not slotted: a frozen class with slots cannot be called through an alias that names its job.
@dataclass(frozen=True, kw_only=True)
class Context(Generic[JobT_co]):
    """The rank's number, its device and its job: the only argument of an entry."""

    rank: int
    local_rank: int
    device: torch.device
    job: JobT_co

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


RankContext: TypeAlias = Context[Job]
"""What entries of the training and inference workloads are given."""


def read_rank_numbers() -> RankNumbers:
    """Read what torchrun, mpirun or srun told; raises `JobError` if a number is missing."""
    return RankNumbers(
        rank=_number(_RANK), local_rank=_number(_LOCAL_RANK), world_size=_number(_WORLD_SIZE)
    )


def place(numbers: RankNumbers, job: AnyJob) -> Context[AnyJob]:
    """Give the rank its device; raises `JobError` if the launcher started another world."""
    if numbers.world_size != job.world_size:
        raise JobError(
            f"WORLD_SIZE is {numbers.world_size}, but the job's world_size is {job.world_size}"
        )
    if job.device is DeviceKind.CUDA:
        device = torch.device("cuda", numbers.local_rank)
    else:
        device = torch.device("cpu")
    return Context(rank=numbers.rank, local_rank=numbers.local_rank, device=device, job=job)


def pin_to_cores(local_rank: int, thread_count: int) -> None:
    """Pin this process, and every thread it starts later, to its own cores.

    Unpinned ranks wander between cores and wait for each other; cores are shared in turn
    when there are fewer of them than ranks.
    """
    allowed = sorted(os.sched_getaffinity(0))
    first = local_rank * thread_count
    own = {allowed[(first + i) % len(allowed)] for i in range(thread_count)}
    os.sched_setaffinity(0, own)


def _number(names: Sequence[str]) -> int:
    """The number in the first of these variables that is set."""
    given = next((name for name in names if name in os.environ), names[0])
    try:
        return int(os.environ[given])
    except (KeyError, ValueError) as error:
        raise JobError(f"the environment gives no number in {given}") from error
