"""Whole searches by `ssh` on two real servers of it on this machine, one at an address of IPv6."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.clusters.whole_search import WholeSearch

SSHD = "/usr/sbin/sshd"
PORT = 20022


@pytest.fixture
def search(tmp_path, record_property):
    """A study on two hosts, each with a server that lets in whoever has the key."""
    if not Path(SSHD).exists() or shutil.which("ssh") is None:
        pytest.skip("needs: apt-get install openssh-server openssh-client")
    for name in ("host", "user"):
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(key, check=True)
    Path("/run/sshd").mkdir(exist_ok=True)  # which it wants as root
    options = [
        f"AuthorizedKeysFile={tmp_path}/user.pub",
        "StrictModes=no",
        "UsePAM=no",
        "PermitRootLogin=yes",
    ]
    servers = [
        subprocess.Popen(
            [SSHD, "-D", "-e", "-f", "/dev/null", "-h", tmp_path / "host", "-o"]
            + [f"ListenAddress={address}:{PORT}"]
            + [word for option in options for word in ("-o", option)],
            stderr=subprocess.DEVNULL,
        )
        for address in ("127.0.0.1", "[::1]")
    ]
    client = [
        *("-p", str(PORT), "-i", str(tmp_path / "user"), "-o", "IdentitiesOnly=yes"),
        *("-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={tmp_path}/known"),
    ]
    yield WholeSearch(
        tmp_path,
        "ssh",
        record_property,
        hosts=["127.0.0.1", "[::1]"],
        options=client,
        search_host="::1",
        shared_dir=str(tmp_path),
        test_nodes=False,
    )
    for server in servers:
        server.terminate()
        server.wait()


def test_a_search_over_ssh_has_the_traces_of_all_ranks_of_both_hosts(search):
    assert search.finish(search.start()) == 0, search.said
    search.check_nothing_is_lost("none")
    assert search.history[0].outcome.launched.hosts == ("127.0.0.1", "[::1]")


def test_a_search_over_ssh_that_is_killed_and_resumed_loses_no_trial(search):
    process = search.start()
    search.during_trial(1)
    process.kill()
    search.finish(process)
    search.until(lambda: not search.processes(), limit_s=30)

    assert search.finish(search.resume()) == 0, search.said
    search.check_nothing_is_lost("kill -9 of the search")


def test_a_launch_whose_agent_over_ssh_is_killed_is_repeated(search):
    process = search.start()
    search.during_trial(1)
    agents = [p for p in search.processes() if "agent.pyz" in " ".join(p.cmdline())]
    os.kill(agents[-1].pid, signal.SIGKILL)

    assert search.finish(process) == 0, search.said
    search.check_nothing_is_lost("kill -9 of an agent")
