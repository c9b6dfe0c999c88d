"""A Ray cluster of two nodes on this machine."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from evaluator.launchers.cluster.scheduler import SchedulerBusy
from evaluator.launchers.cluster.schedulers.ray import Ray
from records.study import Cluster

FOLDER = Path("/tmp/cclsearch-ray")  # sockets lie in it, whose names must be short
START_LIMIT_S = 120.0
PORT, DASHBOARD = 26379, 28265
ADDRESS = f"http://127.0.0.1:{DASHBOARD}"


class RayCluster:
    """Two nodes, whose second can be killed and started again."""

    def __init__(self) -> None:
        head = (f"--port={PORT}", f"--dashboard-port={DASHBOARD}", f"--temp-dir={FOLDER}")
        self._nodes = {"node1": self._start("node1", "--head", *head)}
        self._wait_for("node1")
        self.start_second()

    def start_second(self) -> None:
        self._nodes["node2"] = self._start(
            "node2", "--node-ip-address=127.0.0.2", f"--address=127.0.0.1:{PORT}"
        )
        self._wait_for("node2")

    def kill_second(self) -> None:
        """End all processes of the node at once, as a machine does that loses its power."""
        node = self._nodes["node2"]
        os.killpg(node.pid, signal.SIGKILL)
        node.wait()

    def stop(self) -> None:
        for node in reversed(self._nodes.values()):
            os.killpg(node.pid, signal.SIGTERM)
            node.wait(60)
        shutil.rmtree(FOLDER, ignore_errors=True)

    def _wait_for(self, name: str) -> None:
        deadline_s = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline_s:
            with suppress(SchedulerBusy):
                if f"{name}: 1 CPU" in Ray(Cluster(address=ADDRESS), {}).facts()["nodes"]:
                    return
            time.sleep(1)
        raise RuntimeError(f"{name} of Ray does not start; its logs are in {FOLDER}")

    def _start(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        program = Path(sys.executable).with_name("ray")
        size = "--object-store-memory=80000000"
        where = (f"--node-name={name}", "--num-cpus=1", size)
        command = (program, "start", "--block", "--disable-usage-stats", *where, *options)
        environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
        return subprocess.Popen(command, env=environment, start_new_session=True)
