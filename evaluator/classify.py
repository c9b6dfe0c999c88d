"""Whose doing a failed job was: from exits, error files and logs to a kind and a first cause.

The first cause is that of the rank that failed by itself, not the noise of those that lost it.
"""

import re
import signal
from pathlib import Path

import msgspec

from evaluator.job import JobResult, RankExit
from records.trial import Failed, FailureKind, Stage

MAX_MESSAGE = 400
TAIL_BYTES = 1 << 16

_PEER_LOST = re.compile(
    r"connection (closed|reset|refused)|broken pipe|timed out waiting|connectFullMesh|"
    r"remote process exited|NCCL.*(unhandled system error|remote error)|DistNetworkError|"
    r"socket (timeout|error)",
    re.IGNORECASE,
)
_INFRASTRUCTURE = re.compile(
    r"no CUDA GPUs are available|CUDA driver|device-side unavailable|address already in use|"
    r"no space left on device|too many open files|already completing|"
    r"ECC error|fell off the bus|all CUDA-capable devices are busy",
    re.IGNORECASE,
)


class RankError(msgspec.Struct, frozen=True):
    """What a rank said when it failed."""

    rank: int
    phase: str
    type: str
    message: str
    out_of_memory: bool
    traceback: str


def classify(result: JobResult) -> Failed | None:
    """Give the failure of a job, or None when every rank finished."""
    match result.reason:
        case "launcher_lost" | "stopped":
            return _failed(FailureKind.INFRASTRUCTURE, result.message or "the launch was stopped")
        case "timeout":
            return _failed(FailureKind.HANG, _hang(result))
        case "finished" if all(rank.status == 0 for rank in result.ranks):
            return None
    return _first_cause(result)


def _first_cause(result: JobResult) -> Failed:
    errors = _rank_errors(result)
    memory = next((error for error in errors if error.out_of_memory), None)
    if memory is not None:
        return _failed(FailureKind.OUT_OF_MEMORY, _said(memory))
    killed = next((rank for rank in result.ranks if _died_by_itself(rank)), None)
    if killed is not None:
        return _failed(FailureKind.CRASH, _killed(killed, result.workdir))
    own = next((error for error in errors if not _PEER_LOST.search(_said(error))), None)
    if own is not None:
        known = _INFRASTRUCTURE.search(own.message)
        return _failed(FailureKind.INFRASTRUCTURE if known else FailureKind.CRASH, _said(own))
    if errors:
        return _failed(FailureKind.INFRASTRUCTURE, _said(errors[0]))
    rank = next(rank for rank in result.ranks if rank.status != 0)
    return _failed(
        FailureKind.CRASH,
        f"rank {rank.rank} ended with status {rank.status} and said nothing"
        f"{_last_line(result.workdir / f'rank{rank.rank}.log')}",
    )


def _died_by_itself(rank: RankExit) -> bool:
    """SIGKILL after another rank failed is ours; any other signal is the rank's own."""
    return rank.signal is not None and rank.signal != signal.SIGKILL


def _rank_errors(result: JobResult) -> list[RankError]:
    """Errors of the ranks, first to be written first."""
    paths = [result.workdir / f"rank{rank.rank}.error.json" for rank in result.ranks]
    written = sorted((p for p in paths if p.is_file()), key=lambda p: p.stat().st_mtime_ns)
    errors: list[RankError] = []
    for path in written:
        try:
            errors.append(msgspec.json.decode(path.read_bytes(), type=RankError))
        except msgspec.MsgspecError:
            continue  # killed while it wrote: its exit status still speaks
    return errors


def _said(error: RankError) -> str:
    first_line = next((line for line in error.message.splitlines() if line.strip()), "")
    return f"rank {error.rank} in {error.phase}: {error.type}: {first_line}"


def _killed(rank: RankExit, workdir: Path) -> str:
    name = signal.Signals(rank.signal or 0).name
    return f"rank {rank.rank} died of {name}{_last_line(workdir / f'rank{rank.rank}.log')}"


def _hang(result: JobResult) -> str:
    beats = _tail(result.workdir / "progress.jsonl")
    phase = re.findall(r'"phase": ?"(\w+)"', beats)
    where = f" in phase {phase[-1]}" if phase else " before its first sign of life"
    return f"no end after {result.wall_s:.0f} s{where}"


def _last_line(path: Path) -> str:
    lines = [line.strip() for line in _tail(path).splitlines() if line.strip()]
    return f": {lines[-1]}" if lines else ""


def _tail(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        return file.read().decode(errors="replace")


def _failed(kind: FailureKind, message: str) -> Failed:
    return Failed(stage=Stage.LAUNCH, kind=kind, message=message[:MAX_MESSAGE])
