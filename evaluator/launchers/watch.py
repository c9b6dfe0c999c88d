"""The watch over one running job: until it is over, and until nothing of it is left."""

import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from evaluator.launchers.beats import Beats, all_hang
from evaluator.launchers.descendants import children, descendants, tell
from evaluator.launchers.limits import Limits
from evaluator.launchers.logs import Log

LOOK_EVERY_S = 0.5
FAILED_GRACE_S = 5.0
"""For a command to end, and say why, whose ranks have all left an error."""
PEER_GRACE_S = 1.0
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

    def exit(self) -> Mapping[str, object]:
        """How it ended, as a document."""
        code = self.code
        return {
            "rank": self.rank,
            "status": code if code is not None and code >= 0 else None,
            "signal": -code if code is not None and code < 0 else None,
            "ended_ns": self.ended_at_ns,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a job is held to; its deadline is on the monotonic clock."""

    deadline_s: float
    hang_after_s: float | None
    limits: Limits
    all_failed: Callable[[], bool]
    """Whether every rank has said that it failed; some commands then lock up."""


@dataclass(slots=True, kw_only=True)
class Over:
    """Why a job was over and when, on the monotonic clock, with a message if that needs one."""

    reason: str
    at_s: float = field(default_factory=time.monotonic)
    message: str = ""


class Watch:
    """Reads a job's logs and beats and waits for its processes, all in one thread.

    `owner` is a descriptor that becomes readable when whoever wants the job is gone; `spared` is
    a child of ours that is not the job's.
    """

    def __init__(
        self,
        processes: Sequence[Process],
        *,
        logs: Sequence[Log],
        beats: Sequence[Beats],
        owner: int,
        spared: int | None,
    ) -> None:
        self._processes = processes
        self._beats = beats
        self._spared = spared
        self._next_look_s = time.monotonic() + LOOK_EVERY_S
        self._failed_since_s: float | None = None
        self._abandoned = False
        self._told_to_end = False
        self._selector = selectors.DefaultSelector()
        self._listen(owner, partial(self._abandon, owner))
        for log in logs:
            self._listen(log.fileno, log.take)
        for process in processes:
            self._listen(process.pidfd, partial(self._ended, process))

    def close(self) -> None:
        """Listen no longer."""
        self._selector.close()

    def until_over(self, terms: Terms) -> Over:
        """Wait until every process has ended by itself, or for the reason to end them."""
        deadline_s, failed = terms.deadline_s, False
        while any(process.code is None for process in self._processes):
            now_s = time.monotonic()
            self._serve(max(0.0, min(deadline_s, self._next_look_s) - now_s))
            now_s = time.monotonic()
            if self._abandoned:
                return Over(reason="stopped")
            if not failed and any(process.code for process in self._processes):
                deadline_s, failed = min(deadline_s, now_s + PEER_GRACE_S), True
            if now_s >= deadline_s:
                return Over(reason="rank_failed" if failed else "timeout")
            if now_s >= self._next_look_s and not failed and (over := self._look(terms)):
                return over
        return Over(reason="rank_failed" if failed else "finished")

    def end(self) -> None:
        """Tell what is left of the job to end, and kill what does not within the grace.

        Raises `TimeoutError` when the kernel does not let a process go.
        """
        self._serve(0)
        self._told_to_end = True
        for pid in self.living():
            tell(pid, signal.SIGTERM)
        deadline_s = time.monotonic() + TERM_GRACE_S
        while self._left() and time.monotonic() < deadline_s:
            self._serve(END_POLL_S)
        deadline_s = time.monotonic() + KILL_LIMIT_S
        while orphans := self._left():
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)  # what is below it comes to us
            self._serve(END_POLL_S)
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"process {orphans[0]} was killed and does not end")

    def living(self) -> list[int]:
        """The job's processes, those included that left their parents."""
        return descendants(os.getpid(), spared=self._spared)

    def _look(self, terms: Terms) -> Over | None:
        """Look after what nobody tells us by itself."""
        self._left()
        for beats in self._beats:
            for _ in beats.read():
                pass
        now_s = time.monotonic()
        self._next_look_s = now_s + LOOK_EVERY_S
        if terms.hang_after_s is not None and all_hang(self._beats, terms.hang_after_s, now_s):
            return Over(reason="hang")
        if self._failed_since_s is None and terms.all_failed():
            self._failed_since_s = now_s
        if self._failed_since_s is not None and now_s - self._failed_since_s > FAILED_GRACE_S:
            return Over(reason="rank_failed")
        overrun = terms.limits.overrun(self.living)
        return Over(reason=overrun.reason, message=overrun.message) if overrun else None

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

    def _abandon(self, owner: int) -> None:
        self._abandoned = True
        self._selector.unregister(owner)

    def _ended(self, process: Process) -> None:
        if not self._told_to_end:
            process.ended_at_ns = time.time_ns()
        self._selector.unregister(process.pidfd)
        process.reap()
