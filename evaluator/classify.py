"""Whose doing a failed job was: from exits, error files and logs to a kind and a first cause.

The first cause is that of the rank that failed by itself, not the noise of those that lost it.
"""

import re
import signal
from dataclasses import dataclass
from pathlib import Path

import msgspec

from evaluator.job import JobResult, RankExit
from evaluator.readers.files import read_bytes
from evaluator.samples import RANK_FILE_LIMITS
from evaluator.traces import TraceError
from records.trial import Failed, FailureKind, Stage

MAX_MESSAGE = 400
TAIL_BYTES = 1 << 16

_PEER_LOST = re.compile(
    r"connection (closed|reset|refused|was likely closed)|broken pipe|timed out waiting|"
    r"connectFullMesh|remote process exited|NCCL.*(unhandled system error|remote error)|"
    r"DistNetworkError|socket (timeout|error)",
    re.IGNORECASE,
)
_INFRASTRUCTURE = re.compile(
    r"no CUDA GPUs are available|CUDA driver|device-side unavailable|address already in use|"
    r"no space left on device|too many open files|already completing|due to time limit|"
    r"ECC error|fell off the bus|all CUDA-capable devices are busy",
    re.IGNORECASE,
)

_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class RankError(msgspec.Struct, frozen=True):
    """What a rank said when it failed."""

    rank: int
    phase: str
    type: str
    message: str
    out_of_memory: bool
    traceback: str


@dataclass(frozen=True, slots=True)
class _Account:
    """What is known of how one rank failed; without a kind it only lost a peer."""

    kind: FailureKind | None
    message: str


def classify(result: JobResult) -> Failed | None:
    """Give the failure of a job, or None when every rank finished."""
    match result.reason:
        case "launcher_lost":
            return _failed(FailureKind.INFRASTRUCTURE, result.message)
        case "timeout":
            return _failed(FailureKind.HANG, _hang(result))
        case "finished" if all(rank.status == 0 for rank in result.ranks):
            return None
    return _first_cause(result)


def _first_cause(result: JobResult) -> Failed:
    """Memory wherever it ran out; else the first rank to end with a reason of its own."""
    in_order = sorted(result.ranks, key=lambda rank: _end(rank, result.workdir))
    accounts = [account for rank in in_order if (account := _account(rank, result))]
    causes = [_failed(account.kind, account.message) for account in accounts if account.kind]
    memory = [cause for cause in causes if cause.kind is FailureKind.OUT_OF_MEMORY]
    nobodys = _failed(FailureKind.INFRASTRUCTURE, accounts[0].message)
    return next(iter(memory or causes), nobodys)


def _end(rank: RankExit, workdir: Path) -> tuple[bool, float, bool]:
    """Sorts ranks by when they ended, those that had to be killed last; errors before signals."""
    ended_s = 0.0 if rank.ended_s is None else rank.ended_s
    return rank.ended_s is None, ended_s, not _error_path(rank, workdir).is_file()


def _account(rank: RankExit, result: JobResult) -> _Account | None:
    """Why a rank failed; None when it finished or was only killed because another failed."""
    error = _rank_error(_error_path(rank, result.workdir))
    if error is not None:
        said = f"{error.type}: {_first_line(error.message)}"
        kind = FailureKind.OUT_OF_MEMORY if error.out_of_memory else _kind(said, error.message)
        return _Account(kind, f"rank {rank.rank} in {error.phase}: {said}")
    if rank.signal is not None:
        return _killed(rank, result)
    last_line = _last_line(result.workdir / f"rank{rank.rank}.log")
    ended = f"rank {rank.rank} ended with status {rank.status}"
    if rank.status != 0:
        said = f": {last_line}" if last_line else " and said nothing"
        return _Account(_kind(last_line, last_line), f"{ended}{said}")
    if not (result.workdir / f"rank{rank.rank}.steps.json").exists():
        return _Account(FailureKind.CRASH, f"{ended} before its work was done")
    return None


def _killed(rank: RankExit, result: JobResult) -> _Account | None:
    phase = _phase(result.workdir)
    died = f"rank {rank.rank} died of {_signal_name(rank)}" + (f" in {phase}" if phase else "")
    if rank.signal == signal.SIGKILL and rank.ended_s is None:
        return None
    if rank.signal == signal.SIGKILL and result.memory_kill_count:
        said = f"{died}: the kernel killed it, the machine's memory was used up"
        return _Account(FailureKind.OUT_OF_MEMORY, said)
    if rank.signal in _FROM_OUTSIDE:
        return _Account(FailureKind.INFRASTRUCTURE, f"{died}, sent from outside")
    last_line = _last_line(result.workdir / f"rank{rank.rank}.log")
    return _Account(FailureKind.CRASH, f"{died}: {last_line}" if last_line else died)


def _kind(said: str, message: str) -> FailureKind | None:
    """Give whose doing an error is by its text; None when it only tells of a lost peer."""
    if _INFRASTRUCTURE.search(message):
        return FailureKind.INFRASTRUCTURE
    return None if _PEER_LOST.search(said) else FailureKind.CRASH


def _error_path(rank: RankExit, workdir: Path) -> Path:
    return workdir / f"rank{rank.rank}.error.json"


def _rank_error(path: Path) -> RankError | None:
    try:
        return msgspec.json.decode(read_bytes(path, RANK_FILE_LIMITS), type=RankError)
    except (TraceError, msgspec.MsgspecError):
        return None  # none, or none that can be read: its exit status still speaks


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _signal_name(rank: RankExit) -> str:
    names = (known.name for known in signal.Signals if known == rank.signal)
    return next(names, f"signal {rank.signal}")


def _hang(result: JobResult) -> str:
    phase = _phase(result.workdir)
    where = f" in phase {phase}" if phase else " before its first sign of life"
    return f"no end after {result.wall_s:.0f} s{where}"


def _phase(workdir: Path) -> str:
    """The phase that the job was in last, empty before the first."""
    phases = re.findall(r'"phase": ?"(\w+)"', _tail(workdir / "progress.jsonl"))
    return phases[-1] if phases else ""


def _last_line(path: Path) -> str:
    lines = [line.strip() for line in _tail(path).splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _tail(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        return file.read().decode(errors="replace")


def _failed(kind: FailureKind, message: str) -> Failed:
    return Failed(stage=Stage.LAUNCH, kind=kind, message=message[:MAX_MESSAGE])
