"""Watch a running job: heartbeats, logs, hangs, stacks and exit codes, until nothing of it is left.

Heartbeats are written by a job under test: nothing in them is believed without a check.
"""

import json
import operator
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fcntl import F_SETPIPE_SZ, fcntl
from functools import partial
from pathlib import Path

from evaluator.launchers.limits import Limits, children, descendants, send_signal
from evaluator.rank.protocol import (
    NO_SPY,
    STACKS_SIGNAL,
    LastHeartbeat,
    Phase,
    RankExit,
    RankFile,
    Reason,
)

READ_BYTES = 1 << 20
PATIENCE = 2.0
"""How many times its longest step a rank may be silent for, if that is longer than the limit."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a rank had entered at `at_s` of the monotonic clock; a step counts over all phases."""

    phase: Phase
    step: int | None
    at_s: float


class GrowingFile:
    """The lines that came to a file since the last look; a line that is not whole waits.

    A line is left out where `most_bytes`, the most that is read in a look, do not hold it.
    """

    def __init__(self, path: Path, most_bytes: int = -1) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._read_bytes = 0

    def new_lines(self) -> list[bytes]:
        """Lines that are whole now; none where there is no file."""
        piece = b""
        with suppress(OSError):  # the job may remove it, or put something else in its place
            if self._path.is_file():
                with self._path.open("rb") as file:
                    file.seek(self._read_bytes)
                    piece = file.read(self._most_bytes)
        whole, newline, _ = piece.rpartition(b"\n")
        is_full = not newline and len(piece) == self._most_bytes
        self._read_bytes += len(piece if is_full else whole + newline)
        return whole.splitlines()


class Heartbeats:
    """One rank's heartbeats: the last one, and the longest time between two that it has shown."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank = rank
        self.last: Heartbeat | None = None
        self.longest_step_s = 0.0
        self._started_s = time.monotonic()
        self._file = GrowingFile(folder / RankFile.PROGRESS.of(rank), READ_BYTES)

    def read(self) -> Iterator[Heartbeat]:
        """Beats that came since the last look."""
        for line in self._file.new_lines():
            beat = self._parse(line)
            if beat is not None:
                self._note(beat)
                yield beat

    def silent_s(self, now_s: float) -> float:
        """How long ago the last beat was, or the start if there was none."""
        return now_s - (self.last.at_s if self.last else self._started_s)

    def last_sign(self, now_s: float) -> LastHeartbeat | None:
        """The last beat, with those that came since the last look; None where there was none."""
        for _ in self.read():
            pass
        if self.last is None:
            return None
        silent_s = max(0.0, self.silent_s(now_s))
        return LastHeartbeat(
            rank=self.rank, phase=self.last.phase, step=self.last.step, silent_s=silent_s
        )

    def _note(self, beat: Heartbeat) -> None:
        if self.last is not None and self.last.step is not None:
            self.longest_step_s = max(self.longest_step_s, beat.at_s - self.last.at_s)
        self.last = beat

    def _parse(self, line: bytes) -> Heartbeat | None:
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            fields = json.loads(line)
            phase, step, at_ns = Phase(fields["phase"]), fields["step"], fields["at_ns"]
            if isinstance(at_ns, int) and (step is None or isinstance(step, int)):
                earliest_s = self.last.at_s if self.last else self._started_s
                return Heartbeat(phase, step, min(max(at_ns / 1e9, earliest_s), time.monotonic()))
        return None


def all_hang(ranks: Sequence[Heartbeats], hang_after_s: float, now_s: float) -> bool:
    """Whether ranks that are at work were all silent for too long, and one of them in a step.

    The first step is let pass: in it, programs are compiled and connections made.
    """
    at_work = [rank for rank in ranks if rank.last and rank.last.phase is not Phase.DONE]
    in_a_step = any(rank.last is not None and rank.last.step for rank in at_work)
    longest_s = max((rank.longest_step_s for rank in at_work), default=0.0)
    limit_s = max(hang_after_s, PATIENCE * longest_s)
    return in_a_step and all(rank.silent_s(now_s) > limit_s for rank in at_work)


HEAD_BYTES = 8 << 20
TAIL_BYTES = 1 << 20
LOG_READ_BYTES = 1 << 18
PIPE_BYTES = 1 << 20


class Log:
    """The first and the last part of what is written to a named pipe.

    The head is in the file as it arrives; the tail is added at the end, after a line that says how
    much was left out between them. A slow disk delays no writer until the pipe is full.
    """

    def __init__(self, pipe: Path, path: Path) -> None:
        os.mkfifo(pipe, 0o600)
        # Open for writing too, so that it never ends while writers come and go.
        self.fileno = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        with suppress(OSError):  # the user's share of large pipes may be used up
            fcntl(self.fileno, F_SETPIPE_SZ, PIPE_BYTES)
        self._path = path
        self._head_bytes = 0
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._left_out_bytes = 0

    def take(self) -> bool:
        """Take what is in the pipe, or a part of it; False if there is nothing."""
        with suppress(BlockingIOError):
            self._keep(os.read(self.fileno, LOG_READ_BYTES))
            return True
        return False

    def close(self) -> None:
        """Take the rest, once all writers have ended, and add the tail to the file."""
        while self.take():
            pass
        os.close(self.fileno)
        if self._left_out_bytes:
            self._write(f"\n[{self._left_out_bytes} bytes were left out here]\n".encode())
        for piece in self._tail:
            self._write(piece)

    def _keep(self, piece: bytes) -> None:
        head = piece[: HEAD_BYTES - self._head_bytes]
        if head:
            self._write(head)
            self._head_bytes += len(head)
        rest = piece[len(head) :]
        if not rest:
            return
        self._tail.append(rest)
        self._tail_bytes += len(rest)
        while self._tail_bytes - len(self._tail[0]) >= TAIL_BYTES:
            dropped = len(self._tail.popleft())
            self._tail_bytes -= dropped
            self._left_out_bytes += dropped

    def _write(self, piece: bytes) -> None:
        with suppress(OSError), self._path.open("ab") as file:  # a full disk ends no watch
            file.write(piece)


LOOK_EVERY_S = 0.5
PEER_GRACE_S = 1.0
FAILED_GRACE_S = 5.0
"""Time that a command has to end, and say why, once all of its ranks have left an error."""
TERM_GRACE_S = 2.0
KILL_LIMIT_S = 20.0
END_POLL_S = 0.01


class Process:
    """A process that the job was started as: a rank, or the command if `rank` is None."""

    def __init__(self, rank: int | None, pid: int) -> None:
        self.rank = rank
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.code: int | None = None
        self.ended_at_ns: int | None = None

    def reap(self) -> None:
        """Keep how it ended: an exit status, or the number of a signal, negative."""
        _, status = os.waitpid(self.pid, 0)
        self.code = os.waitstatus_to_exitcode(status)
        os.close(self.pidfd)

    def exit(self) -> RankExit:
        """How it ended."""
        code = self.code
        status = code if code is not None and code >= 0 else None
        by = -code if code is not None and code < 0 else None
        return RankExit(rank=self.rank, status=status, signal=by, ended_ns=self.ended_at_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a job is held to; its deadline is on the monotonic clock."""

    deadline_s: float
    hang_after_s: float | None
    limits: Limits
    all_failed: Callable[[], bool]
    """Whether every rank has said that it failed; some commands then lock up."""


@dataclass(slots=True, kw_only=True)
class JobEnd:
    """Why a job was over and when, on the monotonic clock, with a message if that needs one."""

    reason: Reason
    at_s: float = field(default_factory=time.monotonic)
    message: str = ""


class Watch:
    """Reads a job's logs and heartbeats and waits for its processes, all in one thread.

    From `owner` comes a line with the reason to end a job, or its end when the caller is gone;
    `spared` is a child of ours that is not the job's.
    """

    def __init__(
        self,
        processes: Sequence[Process],
        *,
        logs: Sequence[Log],
        heartbeats: Sequence[Heartbeats],
        owner: int,
        spared: int | None,
    ) -> None:
        self._processes = processes
        self._heartbeats = heartbeats
        self._spared = spared
        self._next_look_s = time.monotonic() + LOOK_EVERY_S
        self._failed_since_s: float | None = None
        self._over: JobEnd | None = None
        self._ending = False
        self._selector = selectors.DefaultSelector()
        self._listen(owner, partial(self._heed, owner))
        for log in logs:
            self._listen(log.fileno, log.take)
        for process in processes:
            self._listen(process.pidfd, partial(self._ended, process))

    def close(self) -> None:
        """Listen no longer."""
        self._selector.close()

    def until_over(self, terms: Terms) -> JobEnd:
        """Wait until every process has ended by itself, or for the reason to end them."""
        deadline_s, failed = terms.deadline_s, False
        while any(process.code is None for process in self._processes):
            now_s = time.monotonic()
            self._serve(max(0.0, min(deadline_s, self._next_look_s) - now_s))
            now_s = time.monotonic()
            if self._over is not None:
                return self._over
            if not failed and any(process.code for process in self._processes):
                deadline_s, failed = min(deadline_s, now_s + PEER_GRACE_S), True
            if now_s >= deadline_s:
                return JobEnd(reason="rank_failed" if failed else "timeout")
            if now_s >= self._next_look_s and not failed and (over := self._look(terms)):
                return over
        return JobEnd(reason="rank_failed" if failed else "finished")

    def end(self) -> None:
        """End what is left of the job, and kill what does not end within the grace.

        Raises `TimeoutError` when the kernel does not let a process go.
        """
        self._serve(0)
        self._ending = True
        for pid in self.living():
            send_signal(pid, signal.SIGTERM)
        deadline_s = time.monotonic() + TERM_GRACE_S
        while self._left() and time.monotonic() < deadline_s:
            self._serve(END_POLL_S)
        deadline_s = time.monotonic() + KILL_LIMIT_S
        while orphans := self._left():
            for pid in orphans:
                send_signal(pid, signal.SIGKILL)  # what is below it comes to us
            self._serve(END_POLL_S)
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"process {orphans[0]} was killed and does not end")

    def living(self) -> list[int]:
        """The job's processes, those included that left their parents."""
        return descendants(os.getpid(), spared=self._spared)

    def _look(self, terms: Terms) -> JobEnd | None:
        """Check what no event reports."""
        self._left()
        for heartbeats in self._heartbeats:
            for _ in heartbeats.read():
                pass
        now_s = time.monotonic()
        self._next_look_s = now_s + LOOK_EVERY_S
        if terms.hang_after_s is not None and all_hang(self._heartbeats, terms.hang_after_s, now_s):
            return JobEnd(reason="hang")
        if self._failed_since_s is None and terms.all_failed():
            self._failed_since_s = now_s
        if self._failed_since_s is not None and now_s - self._failed_since_s > FAILED_GRACE_S:
            return JobEnd(reason="rank_failed")
        overrun = terms.limits.overrun(self.living)
        return JobEnd(reason=overrun[0], message=overrun[1]) if overrun else None

    def _left(self) -> list[int]:
        """Children of ours that are the job's and live, once those that ended are reaped."""
        started = {process.pid for process in self._processes if process.code is None}
        for pid in children(os.getpid()):
            if pid not in started and pid != self._spared:
                with suppress(ChildProcessError):  # of another thread of the listing
                    os.waitpid(pid, os.WNOHANG)
        for process in self._processes:
            if process.code is None and os.waitid(
                os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT
            ):
                self._ended(process)
        return [pid for pid in children(os.getpid()) if pid != self._spared]

    def _serve(self, wait_s: float) -> None:
        for key, _ in self._selector.select(wait_s):
            act: Callable[[], object] = key.data
            act()

    def _listen(self, descriptor: int, act: Callable[[], object]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, act)

    def _heed(self, owner: int) -> None:
        request, _, _ = os.read(owner, LOG_READ_BYTES).partition(b"\n")  # the first counts
        self._selector.unregister(owner)
        self._over = JobEnd(**json.loads(request)) if request else JobEnd(reason="launcher_lost")

    def _ended(self, process: Process) -> None:
        if not self._ending:
            process.ended_at_ns = time.time_ns()
        self._selector.unregister(process.pidfd)
        process.reap()


ANSWER_LIMIT_S = 5.0
POLL_S = 0.1
SPY_LIMIT_S = 5.0
SPIED_COUNT = 16


def take_stacks(
    processes: Sequence[int],
    *,
    rendezvous: Path,
    folder: Path,
    ranks: Sequence[int],
    environment: Mapping[str, str],
) -> None:
    """Write `rank{r}.stacks.txt` for ranks that can be asked, `process{pid}.stacks.txt` of others.

    Others are those that py-spy can look into; without it on the job's PATH, a note says so.
    """
    paths = [rendezvous / RankFile.STACKS.of(rank) for rank in ranks]
    asked = _ask(processes, paths)
    for path, header_bytes in asked.values():
        stacks = path.read_bytes()[header_bytes:]
        if stacks:
            (folder / path.name).write_bytes(stacks)
    spy = py_spy(environment.get("PATH", os.defpath))
    others = [pid for pid in processes if pid not in asked][:SPIED_COUNT]
    if spy is not None:
        _spy(spy, others, folder)
    elif others and not asked:
        (folder / NO_SPY).write_text("py-spy is not on the PATH of the job\n", encoding="utf-8")


def py_spy(search_path: str) -> str | None:
    """Return the program that shows the stacks of any Python, on a job's PATH or beside ours."""
    return shutil.which("py-spy", path=f"{search_path}:{Path(sys.executable).parent}")


def _ask(processes: Sequence[int], paths: Sequence[Path]) -> dict[int, tuple[Path, int]]:
    """Signal each rank that said it listens; return its file and where in it the stacks begin."""
    asked: dict[int, tuple[Path, int]] = {}
    for path in paths:
        with suppress(OSError, ValueError):
            header = path.read_bytes()
            pid = int(header)
            if pid in processes:
                os.kill(pid, STACKS_SIGNAL)
                asked[pid] = path, len(header)
    # Until every file has grown beyond its header, and then no more for a moment.
    deadline_s, sizes = time.monotonic() + ANSWER_LIMIT_S, list[int]()
    while asked and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
        before, sizes = sizes, [path.stat().st_size for path, _ in asked.values()]
        headers = [header_bytes for _, header_bytes in asked.values()]
        if sizes == before and all(map(operator.gt, sizes, headers)):
            break
    return asked


def _spy(spy: str, processes: Sequence[int], folder: Path) -> None:
    deadline_s = time.monotonic() + SPY_LIMIT_S
    for pid in processes:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return
        with suppress(subprocess.SubprocessError, OSError):
            done = subprocess.run(
                [spy, "dump", "--pid", str(pid)],
                capture_output=True,
                check=True,
                timeout=left_s,
                stdin=subprocess.DEVNULL,
            )
            (folder / f"process{pid}.stacks.txt").write_bytes(done.stdout)
