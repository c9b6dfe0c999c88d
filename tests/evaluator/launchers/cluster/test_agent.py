"""What an agent has on its node: a folder for itself, and an environment for its jobs."""

import os

from evaluator.launchers.cluster import agent
from evaluator.launchers.cluster.agent import temporary_folder


def test_the_folder_of_an_agent_whose_process_is_not_seen_is_kept(tmp_path):
    other, lock = temporary_folder(tmp_path)  # as of a node with processes of its own

    ours, our_lock = temporary_folder(tmp_path)

    assert other.is_dir() and ours.is_dir() and other != ours
    os.close(lock)
    os.close(our_lock)


def test_the_folder_of_an_agent_that_was_killed_is_removed(tmp_path):
    killed, lock = temporary_folder(tmp_path)
    os.close(lock)

    ours, our_lock = temporary_folder(tmp_path)

    assert not killed.exists()
    assert [*tmp_path.iterdir()] == [ours]
    os.close(our_lock)


def test_jobs_see_no_secrets_of_a_node_and_nothing_that_is_meant_for_its_agent(monkeypatch):
    given = {"HF_TOKEN": "x", "SLURM_PROCID": "1", "PMI_RANK": "1", "SLURM_JOB_ID": "7"}
    for name, text in given.items():
        monkeypatch.setenv(name, text)

    assert given.keys() & agent._own_environment().keys() == {"SLURM_JOB_ID"}
