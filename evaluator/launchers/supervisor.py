"""The process above all processes of a job: starts them, watches them, leaves none behind.

Speaks JSON lines with the launcher: requests in, events out. It imports the standard library only,
so that it is small, starts fast and has a single thread. Whatever a job starts is below it and
becomes its child when its own parent ends; when its input closes it ends what runs, and then
itself. Ranks of a warm start are forked by a process that it keeps; a cold start is the job's own
command.
"""

import json
import os
import select
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import NoReturn, TypedDict

from evaluator.launchers.limits import (
    Limits,
    keep_elastic_errors,
    memory_kill_count,
    remove_special_files,
    remove_stale_shared_memory,
    shared_memory,
)
from evaluator.launchers.watch import Heartbeats, JobEnd, Log, Process, Terms, Watch, take_stacks
from evaluator.rank import start
from evaluator.rank.protocol import (
    COMMAND_LOG,
    RENDEZVOUS_VARIABLE,
    Ended,
    Launch,
    RankExit,
    RankFile,
    Reason,
    adopt_orphans,
    command_log,
    confine,
    die_with,
    read_lines,
    write_line,
)

FORK_LIMIT_S = 60.0
READ_BYTES = 1 << 16


class Answer(TypedDict):
    """The forked processes, or why there are none; neither when it has only become ready."""

    pids: list[int]
    error: str | None


class LineProcess:
    """A process that speaks JSON lines: requests in, events out."""

    def __init__(
        self,
        *command: str,
        environment: Mapping[str, str] | None = None,
        preexec: Callable[[], object] | None = None,
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open until the process has ended
        # A separate session keeps the terminal's Ctrl-C from the job.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            start_new_session=True,
            bufsize=0,
            preexec_fn=preexec,
        )
        assert self._process.stdin and self._process.stdout
        self._requests, self._events = self._process.stdin, self._process.stdout
        self._pending = b""

    @property
    def pid(self) -> int:
        """Its process number."""
        return self._process.pid

    def fileno(self) -> int:
        """Return what becomes readable when there is an event, or the process is gone."""
        return self._events.fileno()

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def send(self, request: Mapping[str, object]) -> None:
        """Send one request; it is lost when the process is gone."""
        with suppress(BrokenPipeError):
            self._requests.write(json.dumps(request).encode() + b"\n")

    def lines(self, wait_s: float) -> list[bytes] | None:
        """The lines that arrive within `wait_s`, often none; None when the process is gone."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._events, selectors.EVENT_READ)
            if not selector.select(wait_s):
                return []
        data = os.read(self._events.fileno(), READ_BYTES)
        if not data:
            return None
        *lines, self._pending = (self._pending + data).split(b"\n")
        return lines

    def end(self, grace_s: float = 0.0) -> str:
        """Close its input, and kill it after a grace; return its last line, or how it ended."""
        self._requests.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        self._process.kill()
        status = self._process.wait()
        self._events.close()
        lines: list[str] = []
        if not self._errors.closed:
            with self._errors as errors:
                errors.seek(0)
                lines = errors.read().decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line), f"exit status {status}")


class WarmProcess(LineProcess):
    """Started by its first use or before; knows which modules it has imported, in which Python."""

    def __init__(self, modules: Sequence[str], python: str | None) -> None:
        supervisor = os.getpid()
        super().__init__(
            *start.command("evaluator.rank.forkserver", python, options=("-W", "ignore")),
            *modules,
            preexec=lambda: die_with(supervisor),
        )
        self.modules = tuple(modules)
        self.python = python
        self.ready = False

    def answer(self, wait_s: float) -> Answer | None:
        """The next thing it says, or None when nothing comes within `wait_s` or it has ended."""
        deadline_s = time.monotonic() + wait_s
        lines: list[bytes] | None = []
        while not lines and (left_s := deadline_s - time.monotonic()) > 0:
            lines = self.lines(left_s)
            if lines is None:
                return None
        said: Answer | None = json.loads(lines[0]) if lines else None
        return said


TEMPORARY = "tmp"
NOT_STARTED = 127


class LostError(Exception):
    """The processes of a launch could not be started, by no fault of theirs."""


def run_launch(
    launch: Launch, forker: WarmProcess | None, *, owner: int, spared: int | None
) -> Ended:
    """Run a job to its end, with everything that it started; return how it ended.

    It ends when the descriptor `owner` has a reason to, or closes; `spared` is a child of ours
    that is not the job's. Raises `TimeoutError` when a process of the job cannot be killed.
    """
    started_s, kill_count = time.monotonic(), memory_kill_count()
    folder, ranks = Path(launch["folder"]), _ranks(launch)
    heartbeats = [Heartbeats(folder, rank) for rank in ranks]
    processes: Sequence[Process] = ()
    over = None
    with ExitStack() as opened:
        rendezvous = opened.enter_context(_rendezvous(launch))
        logs = _open_logs(launch, rendezvous, cold=forker is None)
        for log in logs:
            opened.callback(log.close)
        limits = Limits(
            [folder, rendezvous],
            launch["rank_count"],
            launch["disk_bytes"],
            maps_freely=launch["maps_freely"],
            cores=launch["cores"],
            niceness=launch["niceness"],
        )
        try:
            processes = _start(launch, forker, limits)
        except LostError as error:
            over = JobEnd(reason="launcher_lost", message=str(error))
        watch = opened.enter_context(
            closing(Watch(processes, logs=logs, heartbeats=heartbeats, owner=owner, spared=spared))
        )
        terms = Terms(
            deadline_s=started_s + launch["timeout_s"],
            hang_after_s=launch["hang_after_s"],
            limits=limits,
            all_failed=lambda: all((folder / RankFile.ERROR.of(r)).exists() for r in ranks),
        )
        over = over or watch.until_over(terms)
        last = [sign for rank in heartbeats if (sign := rank.last_sign(over.at_s)) is not None]
        if over.reason in ("hang", "timeout"):
            take_stacks(
                watch.living(),
                rendezvous=rendezvous,
                folder=folder,
                ranks=ranks,
                environment=launch["environment"],
            )
        watch.end()
    kills_now = memory_kill_count()
    return Ended(
        reason=over.reason,
        message=over.message,
        ranks=_exits(processes, ranks),
        heartbeats=tuple(last),
        wall_s=over.at_s - started_s,
        memory_kill_count=None
        if kills_now is None or kill_count is None
        else kills_now - kill_count,
    )


def _ranks(launch: Launch) -> range:
    return range(launch["first_rank"], launch["first_rank"] + launch["rank_count"])


@contextmanager
def _rendezvous(launch: Launch) -> Iterator[Path]:
    """A folder for the launch alone; what the job left elsewhere goes away with it."""
    folder, before = Path(launch["folder"]), shared_memory()
    rendezvous = Path(launch["rendezvous"])
    rendezvous.mkdir(mode=0o700)
    try:
        (rendezvous / TEMPORARY).mkdir()
        yield rendezvous
    finally:
        keep_elastic_errors(rendezvous / TEMPORARY, folder, launch["first_rank"])
        remove_special_files(folder)
        remove_stale_shared_memory(before)
        shutil.rmtree(rendezvous, ignore_errors=True)


def _open_logs(launch: Launch, rendezvous: Path, *, cold: bool) -> list[Log]:
    """A log for every rank and for the command; there is a file for each that we start."""
    kept = {RankFile.LOG.of(rank): RankFile.LOG.of(rank) for rank in _ranks(launch)}
    folder, own = Path(launch["folder"]), command_log(launch["first_rank"])
    for name in [own] if cold else kept:
        (folder / name).touch()
    kept[COMMAND_LOG] = own
    return [Log(rendezvous / pipe, folder / name) for pipe, name in kept.items()]


def _environment(launch: Launch) -> dict[str, str]:
    """What the launch adds to the environment that it was asked to have."""
    return {
        **launch["environment"],
        "TMPDIR": str(Path(launch["rendezvous"], TEMPORARY)),
        RENDEZVOUS_VARIABLE: launch["rendezvous"],
    }


def _start(launch: Launch, forker: WarmProcess | None, limits: Limits) -> Sequence[Process]:
    if forker is not None:
        pids = _fork(forker, launch, limits)
        return [Process(rank, pid) for rank, pid in zip(_ranks(launch), pids, strict=True)]
    supervisor = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become_command(launch, limits, supervisor)
    return [Process(None, pid)]


def _fork(forker: WarmProcess, launch: Launch, limits: Limits) -> Sequence[int]:
    limited = {"environment": _environment(launch), "limits": limits.each_process}
    forker.send({**launch, **limited})
    answer = forker.answer(FORK_LIMIT_S)
    if answer is None:
        raise LostError(f"the process that forks the ranks was lost: {forker.end()}")
    if answer["error"] is not None:
        raise LostError(f"the ranks could not be forked: {answer['error']}")
    return answer["pids"]


def _become_command(launch: Launch, limits: Limits, supervisor: int) -> NoReturn:
    try:
        os.setsid()
        die_with(supervisor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        log = os.open(Path(launch["rendezvous"], COMMAND_LOG), os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for number in (signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        confine(limits.each_process)
        os.chdir(launch["folder"])
        os.execvpe(launch["argv"][0], list(launch["argv"]), _environment(launch))
    except OSError as error:
        with suppress(OSError):
            os.write(2, f"{launch['argv'][0]}: {error.strerror}\n".encode())
    finally:
        os._exit(NOT_STARTED)


def _exits(processes: Sequence[Process], ranks: Sequence[int]) -> tuple[RankExit, ...]:
    """How each rank ended; a command that ended well by itself answers for all of its ranks."""
    match exits := tuple(process.exit() for process in processes):
        case (RankExit(rank=None, status=0, ended_ns=int()) as command,):
            return tuple(replace(command, rank=rank) for rank in ranks)
    return exits


REQUESTS = 0
EVENTS = 1
START_LIMIT_S = 240.0
START_POLL_S = 0.05


class _Ending(TypedDict, total=False):
    """Why to end a job, where that has ended by itself."""

    reason: Reason


class Request(_Ending):
    """Modules to have imported, none for a cold start, and the job to run, if any.

    `python` imports them; None for ours.
    """

    modules: list[str]
    python: str | None
    launch: Launch | None


def supervise() -> None:
    """Run jobs as they are asked for until standard input closes."""
    adopt_orphans()
    warm: WarmProcess | None = None
    for line in read_lines(REQUESTS):
        request: Request = json.loads(line)
        if "reason" in request:
            continue
        if request["modules"]:
            warm = _warm_process(warm, request["modules"], request["python"])
        launch = request["launch"]
        if launch is None:
            continue
        forker = warm if request["modules"] else None
        refusal = None if forker is None else _await_ready(forker)
        if refusal is not None:
            warm = None
            write_line(EVENTS, {"refused": refusal})
            continue
        write_line(EVENTS, {})
        spared = None if warm is None else warm.pid
        ended = run_launch(launch, forker, owner=REQUESTS, spared=spared)
        write_line(EVENTS, {"ended": asdict(ended)})
    if warm is not None:
        warm.end()


def _warm_process(
    warm: WarmProcess | None, modules: Sequence[str], python: str | None
) -> WarmProcess:
    """The process that has these modules, and perhaps more, imported or is about to."""
    fits = warm is not None and warm.python == python and set(modules) <= set(warm.modules)
    if warm is not None and fits and warm.lives:
        return warm
    if warm is not None:
        warm.end()
    return WarmProcess(modules, python)


def _await_ready(warm: WarmProcess) -> str | None:
    """Wait until torch is imported; return why no job can be started, with the process ended."""
    deadline_s = time.monotonic() + START_LIMIT_S
    while not warm.ready:
        if warm.answer(START_POLL_S) is not None:
            warm.ready = True
        elif not warm.lives:
            return warm.end()
        elif time.monotonic() > deadline_s:
            warm.end()
            return f"importing torch took over {START_LIMIT_S:g} s"
        elif select.select([REQUESTS], [], [], 0)[0]:
            # The launcher sends nothing while a job is about to start: its end was closed.
            warm.end()
            return "the launcher is gone"
    return None


if __name__ == "__main__":
    supervise()
