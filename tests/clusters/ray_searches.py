"""Whole searches by `ray` on two nodes of a real Ray cluster, and what may go wrong there."""

import os
import signal
import sys

import pytest

from evaluator.launchers.cluster.scheduler import Gone
from evaluator.launchers.cluster.schedulers.ray import Ray
from records.study import Cluster
from tests.clusters.ray_cluster import ADDRESS
from tests.clusters.whole_search import WholeSearch

EXIT_INTERRUPTED = 75


@pytest.fixture
def ray(ray_cluster):
    """The cluster with both nodes; a test that leaves a job on it fails."""
    scheduler = Ray(Cluster(address=ADDRESS), {})
    yield ray_cluster
    jobs = [job.submission_id for job in scheduler._client().list_jobs() if job.submission_id]
    assert [job for job in jobs if not isinstance(scheduler.state(job), Gone)] == []


@pytest.fixture
def search(ray, tmp_path, record_property):
    assert ray
    return WholeSearch(
        tmp_path, "ray", record_property, address=ADDRESS, python=sys.executable, test_nodes=False
    )


def test_a_search_has_the_traces_of_all_ranks_of_both_nodes(search):
    assert search.finish(search.start()) == 0, search.said
    search.check_nothing_is_lost("none")
    assert sorted(search.history[0].outcome.launched.hosts) == ["node1", "node2"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_search_that_is_ended_and_resumed_loses_no_trial(search, number):
    process = search.start()
    search.during_trial(1)
    process.send_signal(number)
    ended = search.finish(process)

    assert ended == (EXIT_INTERRUPTED if number == signal.SIGTERM else -signal.SIGKILL)
    assert search.finish(search.resume()) == 0, search.said
    search.check_nothing_is_lost(f"{number.name} of the search")


def test_a_launch_whose_agent_is_killed_is_repeated(search):
    process = search.start()
    search.during_trial(1)
    os.kill(search.processes()[0].pid, signal.SIGKILL)

    assert search.finish(process) == 0, search.said
    search.check_nothing_is_lost("kill -9 of an agent")


def test_a_launch_whose_node_is_lost_is_repeated_once_there_is_one_again(search, ray):
    process = search.start()
    search.during_trial(1)
    ray.kill_second()
    ray.start_second()

    assert search.finish(process) == 0, search.said
    search.check_nothing_is_lost("death of a node")


def test_a_launch_whose_job_is_stopped_by_someone_is_repeated_in_another(search):
    process = search.start()
    search.during_trial(1)
    Ray(Cluster(address=ADDRESS), {}).cancel(f"cclsearch-{search.id}-1")

    assert search.finish(process) == 0, search.said
    search.check_nothing_is_lost("stop of the job")
