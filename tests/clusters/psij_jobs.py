"""The scheduler `psij` against a real Slurm, and against PSI/J's own executor for one machine."""

import os
import signal
from importlib.util import find_spec

import pytest

from evaluator.launchers.cluster.scheduler import Gone, SchedulerError, Waiting
from evaluator.launchers.cluster.schedulers.psij import Psij
from records.study import Cluster
from tests.clusters.contract import SchedulerContract, asked, state_of_kind

pytestmark = [
    pytest.mark.skipif(find_spec("psij") is None, reason="needs: pip install 'cclsearch[psij]'"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # PSI/J leaves pipes open
]


class TestPsijOnSlurm(SchedulerContract):
    @pytest.fixture
    def scheduler(self, slurm, monkeypatch):
        for name, value in slurm.variables.items():
            monkeypatch.setenv(name, value)  # PSI/J runs Slurm's commands in our environment
        environment = {"PATH": os.environ["PATH"], **slurm.variables}
        return Psij(Cluster(executor="slurm", time_limit_s=300), environment)

    def test_a_job_of_an_earlier_process_is_seen_again(self, scheduler, slurm):
        request = asked("sleep 1000")
        scheduler.submit(request)
        later = Psij(scheduler._cluster, scheduler._environment)

        job = later.find(request.name)
        later.cancel(job)

        assert isinstance(state_of_kind(later, job, Gone), Gone)
        assert slurm.queue() == []

    def test_an_unknown_partition_is_refused_in_slurms_own_words(self, scheduler):
        cluster = Cluster(executor="slurm", partition="nowhere")

        with pytest.raises(SchedulerError, match="invalid partition specified: nowhere"):
            Psij(cluster, scheduler._environment).submit(asked("true"))

    def test_a_controller_that_restarts_ends_no_job(self, scheduler, slurm):
        job = scheduler.submit(asked("sleep 1000"))
        slurm.stop_controller()
        slurm.start_controller()

        state_of_kind(scheduler, job, (Waiting,))
        scheduler.cancel(job)


class TestPsijOnThisMachine(SchedulerContract):
    finds_by_name = False

    @pytest.fixture
    def scheduler(self):
        return Psij(Cluster(executor="local"), {"PATH": os.environ["PATH"]})

    @pytest.fixture
    def shared_folder(self, tmp_path):
        return tmp_path


def test_an_unknown_executor_is_refused_with_those_that_there_are():
    with pytest.raises(SchedulerError, match=r"executor is 'slrum'; did you mean 'slurm'\?"):
        Psij(Cluster(executor="slrum"), {}).submit(asked("true"))


def test_children_that_end_are_no_business_of_psij():
    scheduler = Psij(Cluster(executor="local"), {"PATH": os.environ["PATH"]})
    state_of_kind(scheduler, scheduler.submit(asked("true")), Gone)

    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
