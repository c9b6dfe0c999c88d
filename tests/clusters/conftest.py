"""A real Slurm for the tests of this folder, which `make clusters` runs."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters.slurm_cluster import FOLDER, SlurmCluster


@pytest.fixture(scope="session", params=["plain", "accounting"])
def running_slurm(request) -> Iterator[SlurmCluster]:
    """Two nodes and a controller."""
    if os.geteuid() != 0 or shutil.which("slurmctld") is None:
        pytest.skip("needs root and: python tests/clusters/slurm_cluster.py install --accounting")
    cluster = SlurmCluster(accounting=request.param == "accounting")
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def slurm(running_slurm) -> Iterator[SlurmCluster]:
    """The cluster with free nodes; a test that leaves a job in the queue fails."""
    yield running_slurm
    left = running_slurm.queue()
    running_slurm.run("scancel", "--user=root")
    running_slurm.wait_until_idle()
    assert left == []


@pytest.fixture
def shared_folder(request) -> Path:
    """A folder that all nodes have; those of pytest may lie in a node's own /dev/shm."""
    folder = FOLDER.parent / "shared" / re.sub(r"\W+", "-", request.node.name).strip("-")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
