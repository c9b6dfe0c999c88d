"""A real Slurm on one machine, whose nodes have host names and networks of their own.

    python tests/clusters/slurm_cluster.py install [--accounting]   # Debian's packages
    python tests/clusters/slurm_cluster.py start [--nodes 2] [--accounting]
    python tests/clusters/slurm_cluster.py stop

Needs root on Debian or Ubuntu. `start` prints what to export for Slurm's commands. Everything it
writes lies in build/clusters/slurm. Nodes share all files except /dev/shm, and reach this machine
under its host name.
"""

import argparse
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "build" / "clusters" / "slurm"
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge", "iproute2")
ACCOUNTING_PACKAGES = ("slurmdbd", "mariadb-server")
NETWORK = "10.213.0"
BRIDGE = "cclsearch0"
CONTROLLER_PORT, NODE_PORT, ACCOUNTING_PORT, DATABASE_PORT = 26817, 26818, 26819, 26820
READY_LIMIT_S = 60.0
END_LIMIT_S = 20.0

CONFIGURATION = """\
ClusterName=loopback
SlurmctldHost={host}({network}.254)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={controller_port}
SlurmdPort={node_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
ReturnToService=2
KillWait=5
MinJobAge=10
MaxJobCount=20
SlurmdTimeout=10
BatchStartTimeout=10
MessageTimeout=5
SchedulerParameters=bf_interval=2,sched_interval=2
{accounting}
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1
PartitionName=urgent Nodes=ALL PriorityTier=2
PartitionName=single Nodes=ALL MaxNodes=1
"""
WITHOUT_ACCOUNTING = "AccountingStorageType=accounting_storage/none"
WITH_ACCOUNTING = f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={ACCOUNTING_PORT}
AccountingStoragePass={{folder}}/munge.socket
AccountingStorageEnforce=associations,limits,qos
"""
ACCOUNTING_CONFIGURATION = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost=localhost
DbdPort={accounting_port}
PidFile={folder}/slurmdbd.pid
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass=loopback
StorageLoc=slurm
"""
# What a node has for itself: a name, a network and /dev/shm.
NODE = """\
hostname {name}
mount --bind {folder}/hosts /etc/hosts
mount -t tmpfs tmpfs /dev/shm
exec slurmd -D -N {name}
"""


class SlurmCluster:
    """A Slurm that outlives this process; `stop` finds all of it by the files in its folder."""

    def __init__(
        self, folder: Path = FOLDER, *, node_count: int = 2, accounting: bool = False
    ) -> None:
        self.folder = folder.absolute()
        self.nodes = tuple(f"n{number}" for number in range(1, node_count + 1))
        self.accounting = accounting
        self.variables: Mapping[str, str] = {"SLURM_CONF": str(self.folder / "slurm.conf")}

    @property
    def environment(self) -> Mapping[str, str]:
        """What Slurm's commands need, and nothing else."""
        return {**_environment(), **self.variables}

    def start(self) -> None:
        """Start all daemons, and return when all nodes are idle; an earlier cluster is ended."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        (self.folder / "state").mkdir()
        self._start_network()
        self._write_configuration()
        self._start_munge()
        if self.accounting:
            self._start_accounting()
        self.start_controller()
        for name in self.nodes:
            self.start_node(name)
        self.wait_until_idle()

    def stop(self) -> None:
        """End all processes of the cluster and remove its network."""
        for space in Path("/run/netns").glob("cclsearch-*"):
            self.kill_node(space.name.removeprefix("cclsearch-"))
        for path in sorted(self.folder.glob("*.daemon")):
            self.kill(path.stem)
        for line in _told("ip", "-oneline", "link", "show", "type", "veth").splitlines():
            name = line.split(": ")[1].split("@")[0]
            if name.startswith("cclsearch"):
                subprocess.run(["ip", "link", "delete", name], check=False)
        for space in Path("/run/netns").glob("cclsearch-*"):
            _run("ip", "netns", "delete", space.name)
        if Path("/sys/class/net", BRIDGE).exists():
            _run("ip", "link", "delete", BRIDGE)

    def start_controller(self) -> None:
        """Start slurmctld with the state that it left."""
        self._daemon("slurmctld", ["slurmctld", "-D"])

    def stop_controller(self) -> None:
        """End slurmctld as a service is stopped: it writes its state."""
        self.kill("slurmctld", signal.SIGTERM)

    def fill_queue(self) -> None:
        """Submit held jobs until no more are accepted; jobs that ended lately count as well."""
        everything = ["squeue", "--noheader", "--states=all", "--format=%i"]
        _wait(lambda: not self.run(*everything), 2 * READY_LIMIT_S, "old jobs are not forgotten")
        sbatch = ["sbatch", "--hold", "--job-name=other", "--wrap=true"]
        with suppress(RuntimeError):
            while True:
                self.run("timeout", "5", *sbatch)

    def start_node(self, name: str) -> None:
        """Boot a node: slurmd in namespaces of its own."""
        script = NODE.format(name=name, folder=shlex.quote(str(self.folder)))
        inside = [f"--net=/run/netns/cclsearch-{name}", "unshare", "--uts", "--mount"]
        self._daemon(name, ["nsenter", *inside, "sh", "-ec", script])

    def kill_node(self, name: str) -> None:
        """End all processes of a node, as a power failure does."""
        while pids := _told("ip", "netns", "pids", f"cclsearch-{name}", check=False).split():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.1)
        (self.folder / f"{name}.daemon").unlink(missing_ok=True)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End a daemon by a signal."""
        path = self.folder / f"{name}.daemon"
        pid = int(path.read_text(encoding="ascii"))
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        _wait(lambda: not _lives(pid), END_LIMIT_S, f"{name} does not end")
        path.unlink()

    def run(self, *words: str, check: bool = True, stdin: str = "") -> str:
        """Run a command of Slurm; return what it prints."""
        return _told(*words, variables=self.variables, check=check, stdin=stdin)

    def queue(self) -> list[str]:
        """Id, state and reason of all jobs that have not ended."""
        return self.run("squeue", "--noheader", "--format=%i %T %r").splitlines()

    def processes(self) -> list[str]:
        """Command lines of what runs on the nodes, besides Slurm's own daemons."""
        spaces = (f"cclsearch-{name}" for name in self.nodes)
        pids = (pid for space in spaces for pid in _told("ip", "netns", "pids", space).split())
        found = []
        for pid in pids:
            with suppress(FileNotFoundError, ProcessLookupError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
                found.append(words.replace("\0", " ").strip())
        return [words for words in found if words and not words.startswith("slurmd ")]

    def wait_until_idle(self) -> None:
        """Return when every node is free."""

        def idle() -> bool:
            states = ["sinfo", "--noheader", "--Node", "--partition=main", "--format=%T"]
            return self.run(*states, check=False).split() == ["idle"] * len(self.nodes)

        _wait(idle, READY_LIMIT_S, f"nodes are not idle; their logs are in {self.folder}")

    def _start_network(self) -> None:
        _run("ip", "link", "add", BRIDGE, "type", "bridge")
        _run("ip", "address", "add", f"{NETWORK}.254/24", "dev", BRIDGE)
        _run("ip", "link", "set", BRIDGE, "up")
        hosts = ["127.0.0.1 localhost", f"{NETWORK}.254 {socket.gethostname()}"]
        for number, name in enumerate(self.nodes, 1):
            space, link = f"cclsearch-{name}", f"cclsearch-{name}"
            _run("ip", "netns", "add", space)
            _run(*f"ip link add {link} type veth peer name eth0 netns {space}".split())
            _run("ip", "link", "set", link, "master", BRIDGE, "up")
            _run(*f"ip -netns {space} address add {NETWORK}.{number}/24 dev eth0".split())
            for device in ("lo", "eth0"):
                _run("ip", "-netns", space, "link", "set", device, "up")
            hosts.append(f"{NETWORK}.{number} {name}")
        (self.folder / "hosts").write_text("\n".join([*hosts, ""]), encoding="ascii")

    def _write_configuration(self) -> None:
        memory_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20 * 3 // 4
        nodes = [
            f"NodeName={name} NodeAddr={NETWORK}.{number} CPUs={os.cpu_count()} "
            f"RealMemory={memory_mb} State=UNKNOWN"
            for number, name in enumerate(self.nodes, 1)
        ]
        accounting = WITH_ACCOUNTING if self.accounting else WITHOUT_ACCOUNTING
        text = CONFIGURATION.format(
            host=socket.gethostname().split(".")[0],
            network=NETWORK,
            folder=self.folder,
            controller_port=CONTROLLER_PORT,
            node_port=NODE_PORT,
            accounting=accounting.format(folder=self.folder),
            nodes="\n".join(nodes),
        )
        (self.folder / "slurm.conf").write_text(text, encoding="ascii")

    def _start_munge(self) -> None:
        key, socket_path = self.folder / "munge.key", self.folder / "munge.socket"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        files = [f"--{kind}-file={self.folder}/munge.{kind}" for kind in ("key", "pid", "seed")]
        options = ["--foreground", "--force", f"--socket={socket_path}", *files]
        self._daemon("munged", ["munged", *options])
        _wait(socket_path.exists, READY_LIMIT_S, "munged does not start")

    def _start_accounting(self) -> None:
        data = self.folder / "database"
        _run("mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root")
        where = [f"--socket={self.folder}/database.socket", f"--port={DATABASE_PORT}"]
        only_here = ["--user=root", "--bind-address=127.0.0.1"]
        self._daemon(
            "mariadbd", ["mariadbd", "--no-defaults", f"--datadir={data}", *where, *only_here]
        )
        database = ["mariadb", "--no-defaults", f"--socket={self.folder}/database.socket"]
        users = "create user slurm@127.0.0.1 identified by 'loopback'; grant all on slurm.* to "
        _wait_for_success([*database, "--execute", f"{users} slurm@127.0.0.1"], "the database")
        configuration = self.folder / "slurmdbd.conf"
        text = ACCOUNTING_CONFIGURATION.format(
            folder=self.folder, accounting_port=ACCOUNTING_PORT, database_port=DATABASE_PORT
        )
        configuration.write_text(text, encoding="ascii")
        configuration.chmod(0o600)
        self._daemon("slurmdbd", ["slurmdbd", "-D"])
        for what in ("cluster loopback", "account tests", "user root account=tests"):
            command = ["sacctmgr", "--immediate", "add", *what.split()]
            _wait_for_success(command, "slurmdbd", self.variables)

    def _daemon(self, name: str, command: Sequence[str]) -> None:
        """Start a process that outlives us; NAME.daemon holds its id, NAME.log what it says."""
        pid_file, log = self.folder / f"{name}.daemon", self.folder / f"{name}.log"
        script = f"echo $$ > {shlex.quote(str(pid_file))}; exec {shlex.join(command)}"
        with log.open("ab") as output:
            subprocess.run(
                ["setsid", "--fork", "sh", "-c", script],
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
                env=self.environment,
            )
        _wait(
            lambda: pid_file.exists() and bool(pid_file.read_text(encoding="ascii")),
            READY_LIMIT_S,
            f"{name} does not start",
        )


def install(*, accounting: bool) -> None:
    """Install the packages of Slurm; nothing of them is started."""
    packages = [*PACKAGES, *(ACCOUNTING_PACKAGES if accounting else ())]
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    _told("apt-get", "update", "--quiet", variables=quiet)
    options = ["--yes", "--quiet", "--no-install-recommends"]
    _told("apt-get", "install", *options, *packages, variables=quiet)


def _environment() -> dict[str, str]:
    """What every command sees: the daemons lie in folders of root."""
    return {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root", "LANG": "C"}


def _told(
    *words: str, variables: Mapping[str, str] | None = None, check: bool = True, stdin: str = ""
) -> str:
    done = subprocess.run(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**_environment(), **(variables or {})},
        input=stdin,
    )
    if check and done.returncode:
        raise RuntimeError(f"{shlex.join(words)}: {done.stdout.strip()}")
    return done.stdout


def _run(*words: str) -> None:
    _told(*words)


def _lives(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return status.rpartition(")")[2].split()[0] != "Z"
    return False


def _wait(done, limit_s: float, otherwise: str) -> None:
    deadline_s = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline_s:
            raise RuntimeError(otherwise)
        time.sleep(0.05)


def _wait_for_success(
    command: Sequence[str], what: str, variables: Mapping[str, str] | None = None
) -> None:
    def succeeds() -> bool:
        done = subprocess.run(
            command, capture_output=True, check=False, env={**_environment(), **(variables or {})}
        )
        return done.returncode == 0

    _wait(succeeds, READY_LIMIT_S, f"{what} does not answer {shlex.join(command)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("install", "start", "stop"))
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--accounting", action="store_true")
    given = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("a cluster with nodes of its own needs root: run this in a container")
    cluster = SlurmCluster(node_count=given.nodes, accounting=given.accounting)
    match given.action:
        case "install":
            install(accounting=given.accounting)
        case "start":
            cluster.start()
            print(*(f"export {name}={value}" for name, value in cluster.variables.items()))
        case "stop":
            cluster.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
