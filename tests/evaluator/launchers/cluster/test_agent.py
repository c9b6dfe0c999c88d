"""What an agent has on its node: a folder for itself, and an environment for its jobs."""

import os
import subprocess
import sys

from evaluator.launchers.cluster import agent
from evaluator.launchers.cluster.agent import temporary_folder
from evaluator.launchers.cluster.allocation import agent_zip


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


def test_an_agent_in_a_python_that_is_too_old_says_so_and_ends(tmp_path):
    (tmp_path / "agent.pyz").write_bytes(agent_zip())
    as_old = "import runpy, sys; sys.version_info = (3, 9, 2); runpy.run_path('agent.pyz')"

    ended = subprocess.run(
        [sys.executable, "-c", as_old], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert ended.returncode == 1
    assert ended.stderr.startswith("the agent needs Python 3.10 or later, and on ")
    assert f"{sys.executable} is 3." in ended.stderr
