"""What runs on a node of a cluster: it meets the search, and runs launches under a supervisor.

Standard library only: it travels as a zip with the modules that it needs. It ends everything below
it when the search is gone, and itself when the search does not come back or its scheduler ends it.
"""

import fcntl
import os
import platform
import re
import select
import selectors
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NoReturn

from evaluator.launchers.cluster.channel import Channel, ChannelLost, Meeting, Message
from evaluator.launchers.connection import Connection, kill_orphans
from evaluator.launchers.watch import Heartbeats
from evaluator.rank.protocol import Phase, proc_sizes

END_WITH_STDIN = "--end-with-stdin"
"""For what starts agents as its own children: an agent then ends when its input does."""
NODE_VARIABLES = ("CCLSEARCH_NODE", "SLURMD_NODENAME", "NODE_NAME")
FOLDER_PREFIX = "cclsearch-agent-"
CONNECT_LIMIT_S = 5.0
MEET_EVERY_S = 0.5
BEAT_EVERY_S = 0.5
IDLE_BEAT_S = 5.0
REDUCTION_LIMIT_S = 600.0
FOLDER = "{folder}"
"""Stands for the folder of a job that every node has for itself."""
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
SIOCGIFADDR = 0x8915
LINK_SCOPE = "20"
PIECE_BYTES = 1 << 20
_SECRET = re.compile("KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE|ANTHROPIC", re.IGNORECASE)
_OF_A_TASK = re.compile(
    "CCLSEARCH_|PMI|OMPI_|PYTHON|SLURM_(PROCID|LOCALID|NODEID|NTASKS|NPROCS|TASK|STEP|SRUN|LAUNCH)"
)
"""What a scheduler tells its task, which is the agent: libraries would take ranks for it."""


def main(words: Sequence[str]) -> int:
    """Serve the search of a meeting's file until it is over; return an exit status."""
    meeting, ends_with_stdin = Path(words[0]), END_WITH_STDIN in words
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leave)
    kill_orphans()
    agent = Agent(meeting, stdin=0 if ends_with_stdin else None)
    try:
        agent.serve()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        agent.close()
    return 0


def temporary_folder(parent: Path) -> tuple[Path, int]:
    """Make a folder for this agent, and remove those of agents that were killed.

    An agent holds a lock on its folder, which is the handle: agents of containers or nodes that
    share the disk do not see each other's processes.
    """
    for folder in parent.glob(f"{FOLDER_PREFIX}*"):
        with suppress(OSError):
            handle = _locked(folder)
            try:
                if os.fstat(handle).st_uid == os.getuid():
                    shutil.rmtree(folder)
            finally:
                os.close(handle)
    made = Path(tempfile.mkdtemp(prefix=f".{FOLDER_PREFIX}", dir=parent))
    handle = _locked(made)
    return made.rename(parent / made.name.removeprefix(".")), handle


def _locked(folder: Path) -> int:
    """Open a folder with a lock on it; raises `OSError` where another process has that."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle


def _leave(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


class _Over(Exception):
    """The search has no more work for this agent."""


@dataclass(kw_only=True)
class _Launch:
    """What runs: its number, the folder of the job, and what its ranks show."""

    id: int
    folder: Path
    is_ours: bool
    """Whether the folder is this node's own: its files go to the search over the connection."""
    ranks: Sequence[Heartbeats]
    phase: str = ""
    has_begun: bool = False
    reduction: Sequence[str] = ()
    """What our Python runs once the ranks have ended well, to reduce their traces."""
    reducer: "subprocess.Popen[bytes] | None" = None
    ended: object = None
    """How it ended, while its traces are reduced."""


class Agent:
    """Connects, and connects again; keeps a supervisor and its warm process meanwhile."""

    def __init__(self, meeting: Path, stdin: int | None) -> None:
        self._path = meeting
        self._stdin = stdin
        self._temporary, self._lock = temporary_folder(Path(tempfile.gettempdir()))
        self._supervisor: Connection | None = None
        self._environment: Mapping[str, str] = {}
        self._next_beat_s = 0.0
        self._reduced_by_s = 0.0
        self._launch: _Launch | None = None
        self._channel: Channel | None = None

    def serve(self) -> None:
        """Serve one connection after another until the search is over or stays away."""
        with suppress(_Over):
            while True:
                meeting = self._meet()
                assert self._channel is not None
                with suppress(ChannelLost):
                    self._channel.send({"said": "hello", **_facts(self._channel, meeting)})
                    self._converse(self._channel, meeting.silence_s)
                self._channel.close()
                if self._launch is not None:  # nobody waits for it any more
                    self._end_supervisor()

    def close(self) -> None:
        """End everything below."""
        if self._channel is not None:
            with suppress(ChannelLost):
                self._channel.send({"said": "leaving"})
        self._end_supervisor()
        if self._channel is not None:
            self._channel.close()
        shutil.rmtree(self._temporary, ignore_errors=True)
        os.close(self._lock)

    def _meet(self) -> Meeting:
        """Connect to the search; raises `_Over` where it has ended, or stays away."""
        given_up_s: float | None = None
        while True:
            try:
                meeting = Meeting.of(self._path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise _Over from error
            for address in meeting.addresses:
                with suppress(ChannelLost):
                    self._channel = Channel.to(
                        address, meeting.port, meeting.secret, CONNECT_LIMIT_S
                    )
                    return meeting
            given_up_s = given_up_s or time.monotonic() + meeting.grace_s
            if time.monotonic() > given_up_s or self._input_ended(MEET_EVERY_S):
                _say(f"no search answers at {', '.join(meeting.addresses)} port {meeting.port}")
                raise _Over

    def _input_ended(self, wait_s: float) -> bool:
        if self._stdin is None:
            time.sleep(wait_s)
            return False
        return bool(select.select([self._stdin], [], [], wait_s)[0]) and not os.read(self._stdin, 1)

    def _converse(self, channel: Channel, silence_s: float) -> None:
        """Do what the search asks for; raises `ChannelLost` when it is gone or silent."""
        heard_s = time.monotonic()
        while True:
            with selectors.DefaultSelector() as selector:
                selector.register(channel, selectors.EVENT_READ)
                if self._supervisor is not None:
                    selector.register(self._supervisor, selectors.EVENT_READ)
                if self._stdin is not None:
                    selector.register(self._stdin, selectors.EVENT_READ)
                ready = {key.fileobj for key, _ in selector.select(BEAT_EVERY_S)}
            if self._stdin in ready and self._input_ended(0):
                raise _Over
            if channel in ready:
                message, _ = channel.receive()
                heard_s = time.monotonic()
                self._do(message, channel)
            elif time.monotonic() - heard_s > silence_s:
                raise ChannelLost("the search is silent")
            if self._supervisor is not None:
                self._pass_on(self._supervisor, channel)
            if self._launch is not None and self._launch.reducer is not None:
                self._await_reducer(self._launch, self._launch.reducer, channel)
            self._beat(channel)

    def _do(self, message: Message, channel: Channel) -> None:
        match message:
            case {"do": "ping"}:
                pass  # it lives
            case {"do": "clock"}:
                channel.send({"said": "clock", "now_s": time.time()})
            case {"do": "prove", "path": str(path)}:
                channel.send({"said": "proof", "is_shared": _prove(Path(path))})
            case {"do": "port"}:
                with socket.create_server(("", 0)) as server:
                    channel.send({"said": "port", "port": server.getsockname()[1]})
            case {"do": "prepare", "environment": dict(environment), **rest}:
                asked = {"modules": rest["modules"], "python": rest["python"], "launch": None}
                self._supervised(environment).send(asked)
            case {"do": "launch", "id": int(number), **rest}:
                self._start(number, rest)
            case {"do": "end", "id": int(number), "reason": str(reason)}:
                if self._launch is not None and self._launch.id == number:
                    self._end_launch(self._launch, reason, channel)
            case {"do": "leave"}:
                raise _Over
            case _:
                raise ChannelLost(f"it asks for {message.get('do')!r}, which is unknown here")

    def _start(self, number: int, request: Message) -> None:
        """Ask the supervisor for a launch, in the folder of the request or in one of our own."""
        match request:
            case {"environment": dict(environment), "launch": dict(launch), "files": dict(files)}:
                supervisor = self._supervised(environment)
            case _:
                raise ChannelLost("it asks for a launch without its parts")
        is_ours = launch["folder"] is None
        folder = self._temporary / uuid.uuid4().hex if is_ours else Path(launch["folder"])
        if is_ours:
            for name in ("", *launch["folders"]):
                (folder / name).mkdir(exist_ok=True)
            for name, text in files.items():
                (folder / name).write_text(text, encoding="utf-8")
        ranks = range(launch["first_rank"], launch["first_rank"] + launch["rank_count"])
        heartbeats = [Heartbeats(folder, rank) for rank in ranks]
        reduction = request.get("reduction")
        self._launch = _Launch(
            id=number,
            folder=folder,
            is_ours=is_ours,
            ranks=heartbeats,
            reduction=[str(word) for word in reduction] if isinstance(reduction, list) else (),
        )
        placed, argv = dict(launch["environment"]), list(launch["argv"])
        if is_ours:
            placed = {name: text.replace(FOLDER, str(folder)) for name, text in placed.items()}
            argv = [word.replace(FOLDER, str(folder)) for word in argv]
        if launch["init_method"] is not None and self._channel is not None:
            known = supervisor.environment
            network = _interface_variables(self._channel.own_address).items()
            placed = {name: text for name, text in network if name not in known} | placed
        asked = {
            **launch,
            "argv": argv,
            "folder": str(folder),
            # Ranks of a node meet at pipes and locks, which only its own disk is sure to have.
            "rendezvous": str(self._temporary / f"launch-{uuid.uuid4().hex[:12]}"),
            "environment": supervisor.environment_of(placed),
        }
        wanted = {"modules": request["modules"], "python": request["python"]}
        supervisor.send({**wanted, "launch": asked})

    def _supervised(self, environment: Mapping[str, str]) -> Connection:
        """Return the supervisor for this environment of all jobs, which a warm process imports."""
        temporary = tempfile.gettempdir()
        cache = {"TORCHINDUCTOR_CACHE_DIR": f"{temporary}/torchinductor_{os.getuid()}"}
        wanted = {**cache, **_own_environment(), **environment}
        paths = filter(None, (wanted.get("PYTHONPATH"), str(_own_zip())))
        wanted["PYTHONPATH"] = os.pathsep.join(paths)
        lives = self._supervisor is not None and self._supervisor.lives
        if not lives or self._environment != wanted:
            self._end_supervisor()
            self._supervisor, self._environment = Connection(wanted), wanted
        assert self._supervisor is not None
        return self._supervisor

    def _end_supervisor(self) -> str:
        last_words = ""
        if self._supervisor is not None:
            last_words = self._supervisor.end()
            self._supervisor = None
        if self._launch is not None and self._launch.reducer is not None:
            self._launch.reducer.kill()
            self._launch.reducer.wait()
        if self._launch is not None and self._launch.is_ours:
            shutil.rmtree(self._launch.folder, ignore_errors=True)
        self._launch = None
        return last_words

    def _end_launch(self, launch: _Launch, reason: str, channel: Channel) -> None:
        if launch.reducer is not None:
            launch.reducer.kill()
        elif launch.has_begun and self._supervisor is not None:
            self._supervisor.send({"reason": reason})
        else:  # it waits for its warm process, and would take a word for its end
            self._over(launch, {"reason": reason, "wall_s": 0.0}, channel)
            self._end_supervisor()

    def _pass_on(self, supervisor: Connection, channel: Channel) -> None:
        """Tell the search what the supervisor reports."""
        for event in supervisor.events(0):
            launch = self._launch
            if event is None:
                self._supervisor = None
                words = f"the process above the job was lost: {supervisor.end()}"
                lost = {"reason": "launcher_lost", "wall_s": 0.0, "message": words}
                if launch is not None:
                    self._over(launch, lost, channel)
            elif launch is None:
                continue
            elif "ended" in event:
                self._over(launch, event["ended"], channel)
            elif "refused" in event:
                self._launch = None
                channel.send({"said": "refused", "id": launch.id, "words": event["refused"]})
            else:
                launch.has_begun = True
                channel.send({"said": "begun", "id": launch.id})

    def _over(self, launch: _Launch, ended: object, channel: Channel) -> None:
        """Report the end of a launch, after its last signs of life and the files of its ranks."""
        self._next_beat_s = 0.0
        self._beat(channel)
        if launch.reduction and isinstance(ended, dict) and ended.get("reason") == "finished":
            self._start_reducer(launch, ended, channel)
            return
        if launch.is_ours:
            _send_files(launch, channel)
            shutil.rmtree(launch.folder, ignore_errors=True)
        self._launch = None
        channel.send({"said": "ended", "id": launch.id, "ended": ended})

    def _start_reducer(self, launch: _Launch, ended: object, channel: Channel) -> None:
        """Reduce traces in a process of its own, which takes as long as reading them."""
        words = [word.replace(FOLDER, str(launch.folder)) for word in launch.reduction]
        launch.reduction = ()
        try:
            launch.reducer = subprocess.Popen(
                [sys.executable, "-P", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_own_environment(),
                cwd=launch.folder,
            )
        except OSError as error:
            _say(f"traces stay as they are: {error}")
            self._over(launch, ended, channel)
            return
        launch.ended, self._reduced_by_s = ended, time.monotonic() + REDUCTION_LIMIT_S
        channel.send({"said": "reducing", "id": launch.id})

    def _await_reducer(
        self, launch: _Launch, reducer: "subprocess.Popen[bytes]", channel: Channel
    ) -> None:
        """Report the end of a launch once its traces are reduced, or are not in time."""
        if reducer.poll() is None and time.monotonic() < self._reduced_by_s:
            return
        reducer.kill()
        if reducer.wait() != 0:
            _say("traces stay as they are: is cclsearch installed for the Python here?")
        launch.reducer = None
        self._over(launch, launch.ended, channel)

    def _beat(self, channel: Channel) -> None:
        """Show that this node lives, and how its ranks do."""
        now_s = time.monotonic()
        if now_s < self._next_beat_s:
            return
        launch = self._launch
        self._next_beat_s = now_s + (IDLE_BEAT_S if launch is None else BEAT_EVERY_S)
        if launch is None:
            channel.send({"said": "beat"})
            return
        for rank in launch.ranks:
            for beat in rank.read():
                if rank.rank == 0 and beat.phase != launch.phase:
                    launch.phase = beat.phase
                    channel.send({"said": "phase", "id": launch.id, "phase": beat.phase})
        at_work = [rank for rank in launch.ranks if rank.last and rank.last.phase is not Phase.DONE]
        channel.send(
            {
                "said": "beat",
                "id": launch.id,
                "is_in_step": any(rank.last and rank.last.step for rank in at_work),
                "longest_step_s": max((rank.longest_step_s for rank in at_work), default=0.0),
                "silent_s": min((rank.silent_s(now_s) for rank in at_work), default=None),
            }
        )


class _Pieces:
    """A file for a tar to be written to, that sends what it is given."""

    def __init__(self, channel: Channel, launch: int) -> None:
        self._channel, self._launch = channel, launch

    def write(self, piece: bytes) -> int:
        """Send a piece."""
        self._channel.send({"said": "files", "id": self._launch}, piece)
        return len(piece)


def _send_files(launch: _Launch, channel: Channel) -> None:
    """Send the regular files that ranks of this node left."""
    pieces = _Pieces(channel, launch.id)
    with tarfile.open(mode="w|", fileobj=pieces, bufsize=PIECE_BYTES) as tar:  # type: ignore[call-overload] # it only writes
        for parent, _, names in os.walk(launch.folder):
            for name in names:
                path = Path(parent, name)
                try:
                    file = path.open("rb") if stat.S_ISREG(path.lstat().st_mode) else None
                except OSError:  # it is gone, or may not be read
                    continue
                if file is not None:
                    with file:
                        place = path.relative_to(launch.folder)
                        tar.addfile(tar.gettarinfo(arcname=str(place), fileobj=file), file)


def _facts(channel: Channel, meeting: Meeting) -> Message:
    """Return what the search is told of this node."""
    named = (os.environ.get(name) for name in NODE_VARIABLES)
    return {
        "name": meeting.name,
        "node": next((name for name in named if name), platform.node()),
        "address": channel.own_address,
        "version": own_version(),
        "python": platform.python_version(),
        "core_count": len(os.sched_getaffinity(0)),
        "memory_bytes": proc_sizes(Path("/proc/meminfo")).get("MemTotal"),
        "gpus": _gpus(),
    }


def own_version() -> str:
    """Return the digest of the zip that this agent came in."""
    return sha256(_own_zip().read_bytes()).hexdigest()


def _own_zip() -> Path:
    return Path(sys.path[0]).absolute()


def _gpus() -> list[str]:
    """Return the names of the GPUs of this node; none where the driver shows none."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=20, check=True
        )
        return [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return []


def interface_addresses() -> Iterator[tuple[str, str]]:
    """Yield each network interface that is up with its IPv4 address, then with those of IPv6.

    Addresses of IPv6 that hold on one link only are left out: they lead to no other node without
    the name of an interface there.
    """
    for _, name in socket.if_nameindex():
        request = struct.pack("256s", name.encode()[:15])
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            answer = fcntl.ioctl(probe, SIOCGIFADDR, request)
            yield name, socket.inet_ntoa(answer[20:24])
    with suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
            digits, _, _, scope, _, name = line.split()
            if scope != LINK_SCOPE:
                yield name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))


def _interface_variables(address: str) -> Mapping[str, str]:
    """Return what lets libraries use the network that leads to the search, unless told better."""
    interface = next((name for name, own in interface_addresses() if own == address), None)
    return {} if interface is None else dict.fromkeys(INTERFACE_VARIABLES, interface)


def _prove(path: Path) -> bool:
    """Copy what the search wrote next to it, so that each sees a file of the other."""
    try:
        text = path.read_text(encoding="utf-8")
        path.with_name(f"{path.name}-{uuid.uuid4().hex}").write_text(text, encoding="utf-8")
    except OSError as error:
        _say(f"{path}: {error.strerror}")
        return False
    return True


def _own_environment() -> Mapping[str, str]:
    """Return what jobs see of this node's environment: no secrets, and nothing of the agent's."""
    return {
        name: text
        for name, text in os.environ.items()
        if not _SECRET.search(name) and not _OF_A_TASK.match(name)
    }


def _say(words: str) -> None:
    """Write to the log that the scheduler keeps of us."""
    os.write(2, f"cclsearch agent on {platform.node()}: {words}\n".encode())
