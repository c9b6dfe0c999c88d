"""The scheduler `ray` against a real Ray cluster of two nodes on this machine."""

from pathlib import Path

import pytest

from evaluator.launchers.cluster.scheduler import Gone, Running, SchedulerBusy, Waiting
from evaluator.launchers.cluster.schedulers.ray import Ray
from records.study import Cluster
from tests.clusters.contract import SchedulerContract, asked, lines_of, state_of_kind
from tests.clusters.ray_cluster import ADDRESS

pytest.importorskip("ray", reason="needs: pip install 'cclsearch[ray]'")


@pytest.fixture
def scheduler(ray_cluster) -> Ray:
    assert ray_cluster
    return Ray(Cluster(address=ADDRESS), {})


@pytest.fixture
def shared_folder(tmp_path) -> Path:
    return tmp_path


class TestRay(SchedulerContract):
    def test_it_names_its_nodes(self, scheduler):
        job = scheduler.submit(asked("sleep 1000"))
        state = state_of_kind(scheduler, job, Running)
        scheduler.cancel(job)

        assert sorted(state.nodes) == ["node1", "node2"]

    def test_files_come_with_the_request_and_are_ours_alone(self, scheduler, tmp_path):
        seen = tmp_path / "seen"
        script = f"stat -c %a agent.pyz >> {seen}; cat agent.pyz >> {seen}"

        job = scheduler.submit(asked(script, node_count=1, files={"agent.pyz": b"content\n"}))
        state_of_kind(scheduler, job, Gone)

        assert seen.read_text().splitlines() == ["600", "content"]

    def test_more_nodes_than_there_are_are_waited_for(self, scheduler):
        job = scheduler.submit(asked("true", node_count=3))
        lines = state_of_kind(scheduler, job, Waiting)
        scheduler.cancel(job)

        assert isinstance(lines, Waiting)

    @pytest.mark.usefixtures("ray_cluster")
    def test_an_excluded_node_is_not_taken(self):
        elsewhere = Ray(Cluster(address=ADDRESS, exclude=("node2",)), {})
        job = elsewhere.submit(asked("sleep 1000", node_count=1))
        state = state_of_kind(elsewhere, job, Running)
        elsewhere.cancel(job)

        assert state.nodes == ("node1",)

    @pytest.mark.usefixtures("ray_cluster")
    def test_the_time_limit_ends_the_job(self):
        short = Ray(Cluster(address=ADDRESS, time_limit_s=3.0), {})
        job = short.submit(asked("sleep 1000"))

        assert state_of_kind(short, job, Gone).kind == "time_limit"

    def test_an_agent_that_fails_is_named_with_its_words(self, scheduler):
        job = scheduler.submit(asked("echo no such thing >&2; exit 3"))
        state = state_of_kind(scheduler, job, Gone)

        assert state.kind == "ended"
        assert "exit status 3: no such thing" in state.words

    def test_a_node_that_is_lost_is_named(self, scheduler, ray_cluster, tmp_path):
        job = scheduler.submit(asked(f"echo >> {tmp_path / 'started'}; sleep 1000"))
        lines_of(tmp_path / "started", 2)
        ray_cluster.kill_second()
        state = state_of_kind(scheduler, job, Gone)
        ray_cluster.start_second()

        assert state.kind == "node_failed"
        assert "node2" in state.words


def test_a_cluster_that_does_not_answer_is_asked_again_later():
    with pytest.raises(SchedulerBusy, match=r"no Ray cluster answers at http://127\.0\.0\.1:1"):
        Ray(Cluster(address="http://127.0.0.1:1"), {}).state("any")
