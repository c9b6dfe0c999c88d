"""What PSI/J and Ray say of a job, without either of them."""

import pytest

from evaluator.launchers.cluster.scheduler import Gone, Running, SchedulerError, Waiting
from evaluator.launchers.cluster.schedulers import psij, ray
from evaluator.launchers.cluster.schedulers.catalog import scheduler_named
from records.study import Cluster

NO_NODES = '{"cclsearch": {"waiting": "2 nodes are not free"}}'
NODES = '{"cclsearch": {"nodes": ["gpu1", "gpu2"], "ends_s": 1000.0}}'
LOST = (
    '{"cclsearch": {"nodes": ["gpu1"], "gone": "node_failed", "words": "gpu1 died", '
    '"node": "gpu1"}}'
)


@pytest.mark.parametrize("name", ["kubernetes", "psij", "ray"])
def test_a_launcher_whose_package_is_missing_says_what_to_install(name, monkeypatch):
    scheduler = scheduler_named(name, Cluster(), {})
    monkeypatch.setattr(f"{type(scheduler).__module__}.find_spec", lambda _: None)

    assert f"pip install 'cclsearch[{name}]'" in str(scheduler.missing())


@pytest.mark.parametrize(
    ("state", "words", "expected"),
    [
        ("QUEUED", "", Waiting("queued")),
        ("QUEUED", "Not enough nodes", Waiting("Not enough nodes")),
        ("ACTIVE", "", Running(ends_in_s=60.0)),
        ("COMPLETED", "", Gone("ended", "completed")),
        ("FAILED", "exit status 3", Gone("ended", "exit status 3")),
        ("CANCELED", "", Gone("cancelled", "cancelled")),
        (
            "FAILED",
            "The job exhausted its time limit.",
            Gone("time_limit", "The job exhausted its time limit."),
        ),
        (
            "FAILED",
            "job killed: walltime 60 exceeded",
            Gone("time_limit", "job killed: walltime 60 exceeded"),
        ),
        (
            "FAILED",
            "A node required by the job is down.",
            Gone("node_failed", "A node required by the job is down."),
        ),
    ],
)
def test_states_of_psij_are_told_apart(state, words, expected):
    assert psij.job_state(state, words, 60.0) == expected


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("The job exhausted its time limit.", "time_limit"),
        ("job killed: walltime 60 exceeded", "time_limit"),
        ("A node required by the job is down.", "node_failed"),
        ("JOB 7 CANCELLED DUE TO PREEMPTION", "preempted"),
    ],
)
def test_a_failed_job_of_psij_is_judged_by_the_words_of_the_batch_system(words, kind):
    assert psij.job_state("FAILED", words, None) == Gone(kind, words)


@pytest.mark.parametrize(
    ("status", "message", "printed", "expected"),
    [
        ("PENDING", "Job has not started yet.", "", Waiting("Job has not started yet.")),
        ("RUNNING", "", "", Waiting("RUNNING")),
        (
            "RUNNING",
            "",
            '{"cclsearch": {"waiting": "2 nodes are not free"}}',
            Waiting("2 nodes are not free"),
        ),
        (
            "RUNNING",
            "",
            f"a line of Ray's\n{NODES}\n",
            Running(nodes=("gpu1", "gpu2"), ends_in_s=100.0),
        ),
        ("SUCCEEDED", "", f"{NODES}\n{LOST}", Gone("node_failed", "gpu1 died", "gpu1")),
        (
            "STOPPED",
            "Job was intentionally stopped.",
            NODES,
            Gone("cancelled", "Job was intentionally stopped."),
        ),
        ("FAILED", "runtime_env failed", "", Gone("refused", "runtime_env failed")),
        ("FAILED", "exit code 1", NODES, Gone("ended", "exit code 1")),
    ],
)
def test_states_of_a_ray_job_are_told_apart(status, message, printed, expected):
    assert ray.job_state(status, message, printed, now_s=900.0) == expected


def test_options_of_ray_are_what_a_node_has_to_have():
    assert ray.resources(["CPU=16", "GPU=8"]) == {"CPU": 16.0, "GPU": 8.0}
    assert ray.resources([]) == {"CPU": 1.0}


def test_an_option_of_ray_without_an_amount_is_refused():
    with pytest.raises(SchedulerError, match=r'options \[.--gres=gpu:8.\].*\["CPU=16", "GPU=8"\]'):
        ray.resources(["--gres=gpu:8"])
