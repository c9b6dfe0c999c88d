"""The folder that an agent has for itself on a disk that several nodes may share."""

import os

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
