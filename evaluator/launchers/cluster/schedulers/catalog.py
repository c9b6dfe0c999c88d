"""Every launcher by its name, as `[launch] launcher` gives it, and the scheduler behind it."""

from collections.abc import Mapping
from dataclasses import fields
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
_BATCH = ("partition", "account", "qos", "reservation", "time_limit_s")
TAKES: Mapping[str, tuple[str, ...]] = {
    "slurm": _BATCH,
    "slurm-step": (),
    "psij": ("executor", *_BATCH),
    "kubernetes": (
        *("address", "namespace", "image", "runtime", "volume_claim"),
        *("partition", "qos", "time_limit_s"),
    ),
    "ray": ("address", "time_limit_s"),
    "ssh": ("hosts",),
}
"""What each takes of `[cluster]` in addition to what means the same to all."""
_ANYWHERE = {each.name for each in fields(Cluster)} - {n for names in TAKES.values() for n in names}


def check_settings(launcher: str, cluster: Cluster) -> None:
    """Raise `StudyError` for a setting that the launcher would ignore."""
    defaults = Cluster()
    for each in fields(Cluster):
        is_given = getattr(cluster, each.name) != getattr(defaults, each.name)
        if is_given and each.name not in _ANYWHERE.union(TAKES[launcher]):
            takers = ", ".join(name for name, names in TAKES.items() if each.name in names)
            raise StudyError(
                f"[cluster] {each.name}: launcher {launcher!r} takes no {each.name} ({takers} "
                f"{'does' if ',' not in takers else 'do'}); leave it out"
            )
    if cluster.volume_claim is not None and cluster.shared_dir is None:
        raise StudyError(
            "[cluster] volume_claim needs shared_dir, the path at which pods have the volume"
        )


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
