"""Puts a launch on record: how it was started, where, and how it ended."""

import platform
from collections.abc import Callable
from dataclasses import dataclass

from evaluator.failures.endings import rank_ends
from evaluator.job import Job, JobResult
from evaluator.places import VISIBLE_DEVICES
from records.launched import Launched


def _unknown() -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where launches are made: the scheduler's job that we are in, and which machine this is.

    `machine` gives the digest of its description, and may wait until there is one.
    """

    job_id: str | None = None
    machine: Callable[[], str | None] = _unknown


def launched(job: Job, result: JobResult, launcher: str, site: Site) -> Launched:
    """Give what it takes to start a job again, and how it ended this time."""
    devices = job.environment.get(VISIBLE_DEVICES)
    return Launched(
        argv=job.argv,
        environment={**result.environment, **job.environment},
        files=tuple(job.files),
        folders=job.folders,
        launcher=launcher,
        job_id=site.job_id,
        machine=site.machine(),
        hosts=(platform.node(),),
        cores=job.cores,
        devices=tuple(devices.split(",")) if devices else (),
        reason=result.reason,
        wall_s=result.wall_s,
        ranks=rank_ends(result),
    )
