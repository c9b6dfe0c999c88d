"""Where ranks may be that run beside those of other launches, apart from them.

On GPUs these are devices, on CPUs cores.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from evaluator.job import Job
from records.errors import StudyError
from records.study import Study

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Devices, by their names in CUDA_VISIBLE_DEVICES, or cores; one or the other."""

    devices: tuple[str, ...] = ()
    cores: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.devices) or len(self.cores)

    def needed(self, job: Job) -> int:
        """How many a job takes: a device for each rank, or a core for each of its threads."""
        return job.world_size * (1 if self.devices else job.threads_per_rank)

    def confine(self, job: Job, numbers: Sequence[int]) -> Job:
        """Give the job with these places only."""
        if self.devices:
            visible = ",".join(self.devices[number] for number in numbers)
            return replace(job, environment={**job.environment, VISIBLE_DEVICES: visible})
        return replace(job, cores=tuple(self.cores[number] for number in numbers))


def places_of(study: Study, visible_devices: str | None) -> Places:
    """The places that there are for a study on this machine, no more than its ranks may take.

    `visible_devices` is CUDA_VISIBLE_DEVICES as it is set for us; None where all GPUs are visible.
    """
    world_size = study.environment.world_size
    if study.environment.device == "cuda":
        listed = None if visible_devices is None else visible_devices.split(",")
        return Places(devices=tuple(listed or map(str, range(world_size)))[:world_size])
    if study.environment.device == "tpu":
        raise StudyError("parallel needs GPUs or cores to share out; on TPUs trials run one by one")
    most = world_size * study.launch.threads_per_rank
    return Places(cores=tuple(sorted(os.sched_getaffinity(0))[:most]))
