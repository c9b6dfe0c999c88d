"""From exits, error files, logs and stacks of a failed job to a failure kind and a cause.

The first cause is that of the rank that failed by itself, not of those that lost it.
"""

import re
import shutil
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, assert_never

from evaluator.failures.logs import (
    KILLED,
    TOO_LARGE,
    Finding,
    Weight,
    cause,
    command_text,
    elastic_findings,
    last_line,
    log_text,
    rank_error,
    rank_finding,
    rank_number,
    read_by_rank,
    read_log,
    signal_name,
    stuck_places,
    weightiest,
)
from evaluator.ports import JobResult
from evaluator.rank.protocol import NO_SPY, LastHeartbeat, Phase, RankExit, RankFile
from records.machine import RankEnd
from records.trial import Failed, FailureKind, Stage

_KILLED: Final = (
    # torchrun lists how each rank ended, mpirun reports the first that died.
    re.compile(r"^ *rank *: *(?P<rank>\d+) .*\n *exitcode *: *-(?P<signal>\d+)\b", re.MULTILINE),
    re.compile(r"\bprocess rank (?P<rank>\d+) .{0,300}?\bsignal\s+(?P<signal>\d+)\b", re.DOTALL),
)
_CONSEQUENCES: Final = (signal.SIGTERM, signal.SIGABRT)
"""By which a launcher ends what is left, and a library a rank that lost another."""


@dataclass(frozen=True, slots=True)
class Killed:
    """A rank, and the number of the signal that ended it."""

    rank: int
    signal: int


def killed_rank(log: str) -> Killed | None:
    """The first rank in a command's output that was ended by a signal that no launcher sent."""
    for pattern in _KILLED:
        for found in pattern.finditer(log):
            killed = Killed(int(found["rank"]), int(found["signal"]))
            if killed.signal not in _CONSEQUENCES:
                return killed
    return None


MAX_MESSAGE = 400
MAX_WHERE = 100
FULL_DISK_BYTES = 16 << 20
ERROR_FILES = "rank*.error.json"
PHASES = tuple(Phase)

_FROM_OUTSIDE = (
    *(signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGPWR, signal.SIGXCPU),
    *(signal.SIGUSR1, signal.SIGUSR2),  # schedulers announce with them that they will end a job
)


def classify(result: JobResult) -> Failed | None:
    """Return the failure of a job, or None when every rank finished."""
    match result.reason:
        case "launcher_lost":
            return _failed(FailureKind.INFRASTRUCTURE, result.message)
        case "not_scheduled" | "preempted" | "node_failed":
            return _failed(FailureKind(result.reason), result.message)
        case "out_of_memory":
            return _failed(FailureKind.OUT_OF_MEMORY, result.message)
        case "disk_quota":
            return _failed(_whose_is_the_disk(result), result.message)
        case "timeout" | "hang":
            return _stuck(result)
        case "finished" if all(rank.status == 0 for rank in result.ranks):
            return None
        case "finished" | "rank_failed":
            return _first_cause(result)
        case unknown:
            assert_never(unknown)


_FAULTS = frozenset(
    {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP}
)
SHELL_ADDS = 128
"""A shell's status for a program that a signal ended is this much more than the signal."""


def failed_at_exit(result: JobResult, failed: Failed) -> bool:
    """Whether a job may have failed only while it ended: it hung, or a signal ended a process.

    A job that raised, or chose its exit status, may have found its own work wrong.
    """
    if failed.kind is FailureKind.OUT_OF_MEMORY:
        return False
    match result.reason:
        case "timeout" | "hang":
            return failed.kind is FailureKind.HANG
        case "finished" | "rank_failed":
            found = read_log(command_text(result.workdir))
            return (found is not None and found.by_signal) or any(
                rank.signal is not None or (rank.status or 0) - SHELL_ADDS in _FAULTS
                for rank in result.ranks
            )
        case _:
            return False


def _stuck(result: JobResult) -> Failed:
    """A job that was given up on; a rank that failed before the others waited is the cause."""
    accounts = _reported_accounts(result)
    # Memory may run out in a command whose other ranks then wait for the one that ended.
    found = read_log(command_text(result.workdir))
    if found is not None and found.kind is FailureKind.OUT_OF_MEMORY:
        accounts.append(_of_rank(found))
    first = weightiest(accounts)
    if first is not None and first.weight is Weight.CAUSE:
        return _as_found(first)
    silent_s = min((beat.silent_s for beat in result.heartbeats), default=result.wall_s)
    given_up = (
        f"no sign of life for {silent_s:.0f} s"
        if result.reason == "hang"
        else f"no end after {result.wall_s:.0f} s"
    )
    stacks = stuck_places(result.workdir)
    if not stacks and (result.workdir / NO_SPY).exists():
        stacks = "no stacks of its ranks, because the job's PATH has no py-spy (pip install py-spy)"
    return _failed(
        FailureKind.HANG,
        f"{given_up}{_progress(result.heartbeats)}{f': {stacks}' if stacks else ''}",
    )


def _first_cause(result: JobResult) -> Failed:
    """What the first rank that failed by itself says, unless memory ran out anywhere."""
    in_order = sorted(result.ranks, key=lambda rank: _failure_time(rank, result))
    first = weightiest([account for rank in in_order for account in _accounts(rank, result)])
    if first is None:
        return _failed(FailureKind.CRASH, "ranks failed and left no reason")
    if first.why == TOO_LARGE.why:
        first = replace(first, kind=_whose_is_the_disk(result))
    return _as_found(first)


def _failure_time(rank: RankExit, result: JobResult) -> tuple[bool, int, bool]:
    """Sort key: when a rank failed, unknown last; errors before signals.

    A rank's error file says when it raised. Its process may end later, in another order than its
    peers', or be killed because one of them ended.
    """
    number = rank.rank
    error = None if number is None else rank_error(result.workdir / RankFile.ERROR.of(number))
    failed_ns = rank.ended_ns if error is None else error.failed_ns
    return failed_ns is None, failed_ns or 0, error is None


def _accounts(rank: RankExit, result: JobResult) -> Iterator[Finding]:
    """Why a rank failed; nothing when it finished or was ended because another failed."""
    if rank.rank is None:
        yield from _of_command(rank, result)
        return
    error = rank_error(result.workdir / RankFile.ERROR.of(rank.rank))
    if error is not None:
        yield rank_finding(error)
    elif rank.ended_ns is not None:
        log = log_text(result.workdir / RankFile.LOG.of(rank.rank))
        account = _exit_account(f"rank {rank.rank}", rank, result, log)
        unfinished = not (result.workdir / RankFile.STEPS.of(rank.rank)).exists()
        if account is not None:
            yield account
        elif unfinished:
            yield _crash(f"rank {rank.rank} ended with status 0 ", "before its work was done")


def _of_command(command: RankExit, result: JobResult) -> Iterator[Finding]:
    """What the ranks that a command started left, then how the command itself ended."""
    yield from _reported_accounts(result)
    yield from map(_of_rank, elastic_findings(result.workdir))
    killed = killed_rank(command_text(result.workdir))
    if killed is not None:
        how = f"rank {killed.rank} died of {signal_name(killed.signal)}"
        yield _signal_account(how, killed.signal, None, result) or _crash(how, "")
    account = _exit_account("the command", command, result, command_text(result.workdir))
    if account is not None:
        yield account


def _reported_accounts(result: JobResult) -> list[Finding]:
    """What all error files of ranks say, the first to fail first."""
    paths = [path for path in result.workdir.glob(ERROR_FILES) if rank_number(path) is not None]
    errors = [error for path in paths if (error := rank_error(path))]
    return [rank_finding(error) for error in sorted(errors, key=lambda error: error.failed_ns)]


def _of_rank(found: Finding) -> Finding:
    return found if found.rank is None else replace(found, who=f"rank {found.rank}: ")


def _exit_account(who: str, ended: RankExit, result: JobResult, text: str) -> Finding | None:
    """What the exit and the log of a process say; None when it ended well."""
    if ended.status == 0:
        return None
    found = read_log(text)
    if ended.signal is not None:
        how = f"{who} died of {signal_name(ended.signal)}{_phase(ended, result)}"
        return _signal_account(how, ended.signal, found, result) or _unexplained_account(
            how, text, result
        )
    how = f"{who} ended with status {ended.status}"
    if found is None:
        return _unexplained_account(how, text, result)
    if found.why == KILLED.why and result.memory_kill_count:
        return _killed_for_memory(how)
    if ended.rank is None:
        return replace(found, who=f"{how}: ") if found.rank is None else _of_rank(found)
    if found.weight is Weight.END:  # that it ended is known; its peers only lost it
        found = replace(found, weight=Weight.CAUSE, why="")
    return replace(found, who=f"{how}: ")


def _signal_account(how: str, by: int, found: Finding | None, result: JobResult) -> Finding | None:
    if by == signal.SIGKILL and result.memory_kill_count:
        return _killed_for_memory(how)
    if by in _FROM_OUTSIDE:
        return cause(FailureKind.INFRASTRUCTURE, ", sent from outside", who=how)
    return None if found is None else replace(found, who=f"{how}: ")


def _unexplained_account(how: str, text: str, result: JobResult) -> Finding:
    """The account of a process whose log has no line that we understand."""
    said = last_line(text)
    if not said and _disk_is_full(result):
        return cause(FailureKind.INFRASTRUCTURE, ": the disk of its folder is full", who=how)
    silent = "" if " died of " in how else " and said nothing"
    return _crash(how, f": {said}" if said else silent)


def _whose_is_the_disk(result: JobResult) -> FailureKind:
    """A job wrote too much by its own doing, unless there was hardly room for anything."""
    return FailureKind.INFRASTRUCTURE if _disk_is_full(result) else FailureKind.CRASH


def _disk_is_full(result: JobResult) -> bool:
    return shutil.disk_usage(result.workdir).free < FULL_DISK_BYTES


def _progress(heartbeats: Sequence[LastHeartbeat]) -> str:
    """How far the ranks were; of ranks in different places the one that is behind."""
    if not heartbeats:
        return " before its first sign of life"
    behind = min(heartbeats, key=_reached)
    step = "" if behind.step is None else f", step {behind.step}"
    together = all(_reached(beat) == _reached(behind) for beat in heartbeats)
    whose = "" if together else f", rank {behind.rank} behind the others"
    return f" in {behind.phase}{step}{whose}"


def _reached(beat: LastHeartbeat) -> tuple[int, int]:
    return PHASES.index(beat.phase), -1 if beat.step is None else beat.step


def _phase(rank: RankExit, result: JobResult) -> str:
    phases = [beat.phase for beat in result.heartbeats if beat.rank == rank.rank]
    return f" in {phases[0]}" if phases else ""


def _crash(who: str, said: str) -> Finding:
    return cause(FailureKind.CRASH, said, who=who)


def _killed_for_memory(who: str) -> Finding:
    said = ": the kernel killed it, the machine's memory was used up"
    return cause(FailureKind.OUT_OF_MEMORY, said, who=who)


def _as_found(found: Finding) -> Failed:
    """The failure that a finding is, with room for where it was."""
    where = found.where[:MAX_WHERE]
    return _failed(found.kind, f"{found.who}{found}"[: MAX_MESSAGE - len(where)] + where)


def _failed(kind: FailureKind, message: str) -> Failed:
    return Failed(stage=Stage.LAUNCH, kind=kind, message=message[:MAX_MESSAGE])


def rank_ends(result: JobResult) -> tuple[RankEnd, ...]:
    """Return how ranks ended, the command above them first where it failed.

    Of a job that went well nothing is read.
    """
    if result.reason == "finished" and all(each.status == 0 for each in result.ranks):
        return tuple(_end(each, None) for each in result.ranks)
    said = dict(_reported_errors(result.workdir))
    exits = {each.rank: each for each in result.ranks}
    killed = killed_rank(command_text(result.workdir))
    if killed is not None:
        exits.setdefault(killed.rank, RankExit(rank=killed.rank, signal=killed.signal))
    for rank in sorted(rank for rank in said if rank is not None):
        exits.setdefault(rank, RankExit(rank=rank))
    return tuple(_end(each, said.get(rank)) for rank, each in exits.items())


def _reported_errors(folder: Path) -> Iterator[tuple[int | None, Finding]]:
    """Errors that ranks reported; a rank's own file comes last, and so counts most."""
    yield from read_by_rank(command_text(folder)).items()
    for path in sorted(folder.glob("rank*.log")):
        found = read_log(log_text(path))
        if found is not None:
            yield rank_number(path), found
    for found in elastic_findings(folder):
        yield found.rank, found
    for path in sorted(folder.glob(ERROR_FILES)):
        error = rank_error(path)
        if error is not None:
            yield rank_number(path), rank_finding(error)


def _end(ended: RankExit, found: Finding | None) -> RankEnd:
    said = None if found is None else f"{found}{found.where}"[:MAX_MESSAGE]
    return RankEnd(rank=ended.rank, status=ended.status, signal=ended.signal, first_error=said)
