"""Every launcher by its name, as `[launch] launcher` gives it, and the scheduler behind it."""

from collections.abc import Mapping
from importlib import import_module

from evaluator.launchers.cluster.scheduler import Scheduler
from records.errors import StudyError, suggestion
from records.study import LOCAL, Cluster

SCHEDULERS = {
    "slurm": ("slurm", "Slurm"),
    "slurm-step": ("slurm", "SlurmStep"),
    "psij": ("psij", "Psij"),
    "kubernetes": ("kubernetes", "Kubernetes"),
    "ray": ("ray", "Ray"),
    "ssh": ("ssh", "Ssh"),
}
"""The module and the class of each scheduler."""
LAUNCHERS = (LOCAL, *SCHEDULERS)
IN_OUR_JOB = (LOCAL, "slurm-step")
"""Those that use what the scheduler's job was given in which the search runs, if it runs in one."""


def scheduler_named(name: str, cluster: Cluster, environment: Mapping[str, str]) -> Scheduler:
    """Return the scheduler of a launcher; raises `StudyError` when there is none of that name.

    `environment` is ours without secrets.
    """
    if name not in SCHEDULERS:
        raise StudyError(f"[launch] launcher {name!r} is unknown; {suggestion(name, LAUNCHERS)}")
    module, class_name = SCHEDULERS[name]
    # Each is loaded when it is needed: they may bring an SDK with them.
    loaded = import_module(f"evaluator.launchers.cluster.schedulers.{module}")
    scheduler: Scheduler = getattr(loaded, class_name)(cluster, environment)
    return scheduler
