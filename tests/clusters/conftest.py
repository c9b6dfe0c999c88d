"""A real Slurm for the tests of this folder, which `make clusters` runs."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters.ray_cluster import RayCluster
from tests.clusters.slurm_cluster import FOLDER, SlurmCluster


def pytest_generate_tests(metafunc) -> None:
    """Run with each kind of Slurm, unless a test or its module names some."""
    marks = metafunc.definition.iter_markers("parametrize")
    if "running_slurm" in metafunc.fixturenames and all(
        "running_slurm" not in m.args for m in marks
    ):
        kinds = getattr(metafunc.module, "SLURMS", ("plain", "accounting"))
        metafunc.parametrize("running_slurm", kinds, indirect=True, scope="session")


@pytest.fixture(scope="session")
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


def pytest_terminal_summary(terminalreporter) -> None:
    """Print what the searches counted as one table."""
    reports = [each for kind in ("passed", "failed") for each in terminalreporter.getreports(kind)]
    found = [found for each in reports for found in each.user_properties]
    rows = [row for name, row in found if name == "counted"]
    for text in (text for name, text in found if name == "printed"):
        terminalreporter.section("what was measured")
        terminalreporter.write(text)
    if not rows:
        return
    widths = {name: max(len(str(row[name])) for row in (*rows, {name: name})) for name in rows[0]}
    terminalreporter.section("what happened, and what was left")
    for row in ({name: name for name in widths}, *rows):
        terminalreporter.write_line(
            "  ".join(str(row[name]).ljust(width) for name, width in widths.items()).rstrip()
        )


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    """A Ray cluster of two nodes."""
    pytest.importorskip("ray", reason="needs: pip install 'cclsearch[ray]'")
    running = RayCluster()
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def shared_folder(request) -> Path:
    """A folder that all nodes have; those of pytest may lie in a node's own /dev/shm."""
    folder = FOLDER.parent / "shared" / re.sub(r"\W+", "-", request.node.name).strip("-")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
