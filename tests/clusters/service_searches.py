"""Studies that the service submits to Slurm: its queue survives both sides."""

import os
import signal
from contextlib import closing

import pytest

from records.store.store import Store
from records.trial import Measured
from tests.search.loop.test_kill import survivors
from tests.support.service import Serving, configured, searching

TRIALS = 2
SLURMS = ("plain",)


@pytest.fixture
def folder(shared_folder):
    """What a service needs whose only environment is the Slurm; its launches wait for `hold`."""
    configured(shared_folder, f'launcher = "slurm"\ncluster = {{shared_dir = "{shared_folder}"}}\n')
    study = shared_folder / "study.toml"
    retries = study.read_text().replace("infrastructure_retries = 0", "infrastructure_retries = 2")
    study.write_text(retries)
    (shared_folder / "hold").touch()
    return shared_folder


def serving(slurm, folder):
    return Serving(folder, **slurm.environment)


def submitted(service):
    """The id of a study whose first launch has begun."""
    study_id = service.submit(trials=TRIALS)
    next(name for name, _ in service.events(study_id) if name == "config_decided")
    return study_id


def ended(service, study_id):
    """Wait until the study has ended; return its status."""
    assert [name for name, _ in service.events(study_id)][-1] == "end"
    return service.client.get(f"/studies/{study_id}").json()["status"]


def check_nothing_is_lost(event, slurm, folder, study_id, record_property):
    slurm.wait_until_idle()
    with closing(Store(folder / "store")) as records:
        history, runs = list(records.history(study_id)), records.runs(study_id)
    record_property(
        "counted",
        {
            "launcher": "slurm, by the service",
            "accounts": "yes" if slurm.accounting else "no",
            "event": event,
            "trials kept": sum(isinstance(trial.outcome, Measured) for trial in history),
            "launches": sum(trial.attempts for trial in history),
            "lost": f"{len(runs) - 1} searches",
            "jobs left": len(slurm.queue()),
            "processes left": len(searching(folder / "store")),
            "seconds": "-",
        },
    )
    assert [trial.ordinal for trial in history] == list(range(TRIALS))
    assert all(isinstance(trial.outcome, Measured) for trial in history)
    assert all(trial.outcome.launched.job_id for trial in history)
    assert slurm.queue() == []
    assert searching(folder / "store") == {}


def test_a_study_that_is_submitted_to_the_service_runs_on_the_cluster(
    slurm, folder, record_property
):
    (folder / "hold").unlink()
    with serving(slurm, folder) as service:
        study_id = service.submit(trials=TRIALS)
        assert ended(service, study_id) == "finished"
        assert service.stop() == (0, "stopped; nothing was under way")
    check_nothing_is_lost("none", slurm, folder, study_id, record_property)


@pytest.mark.parametrize("also", ["the job", "the search", "the search and the job"])
def test_a_study_ends_although_service_and_something_else_were_lost(
    slurm, folder, record_property, also
):
    with serving(slurm, folder) as first:
        study_id = submitted(first)
        first.kill()
    ((search,),) = searching(folder / "store").values()
    if "search" in also:
        os.kill(search, signal.SIGKILL)
        assert survivors([search]) == []
    if "job" in also:
        slurm.run("scancel", slurm.queue()[0].split()[0])
    (folder / "hold").unlink()

    with serving(slurm, folder) as second:
        assert ended(second, study_id) == "finished"
        assert second.stop() == (0, "stopped; nothing was under way")
    check_nothing_is_lost(
        f"loss of the service and {also}", slurm, folder, study_id, record_property
    )
