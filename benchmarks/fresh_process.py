"""Runs a command as a fresh process and tells what it cost, all its own processes together."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from time import perf_counter

POLL_S = 0.05
PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a process and those below it took; `output` is what it printed."""

    cpu_s: float
    wall_s: float
    peak_bytes: int
    """Most memory at one moment, pages that processes share counted once."""
    output: str


class ProcessFailed(Exception):
    """A command ended with another status than 0."""


class ProcessStopped(ProcessFailed):
    """A command was stopped at its time limit; `cost` is what it had taken by then."""

    def __init__(self, cost: Cost) -> None:
        super().__init__(f"stopped after {cost.wall_s:.0f} s, with {cost.cpu_s:.0f} s of CPU")
        self.cost = cost


def run_fresh(argv: Sequence[str | Path], timeout_s: float = 1800) -> Cost:
    """Run a command to its end.

    Raises ProcessFailed when it goes wrong, ProcessStopped when it takes too long.
    """
    with TemporaryFile() as printed, TemporaryFile() as told:
        started = perf_counter()
        words = [str(word) for word in argv]
        process = subprocess.Popen(words, stdout=printed, stderr=told, start_new_session=True)
        watch = _Watch(process.pid)
        spent_s: list[float] = []

        def stop() -> None:
            spent_s.append(sum(map(cpu_seconds, descendants(process.pid))))
            os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(timeout_s, stop)
        timer.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
        finally:
            timer.cancel()
            watch.stop()
        wall_s = perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if spent_s:
            raise ProcessStopped(
                Cost(cpu_s=spent_s[0], wall_s=wall_s, peak_bytes=watch.peak_bytes, output="")
            )
        printed.seek(0)
        told.seek(0)
        if process.returncode:
            lines = told.read().decode(errors="replace").strip().splitlines()
            last = " | ".join(lines[-3:])
            raise ProcessFailed(f"status {process.returncode} after {wall_s:.0f} s: {last}")
        return Cost(
            cpu_s=usage.ru_utime + usage.ru_stime,
            wall_s=wall_s,
            peak_bytes=max(usage.ru_maxrss * 1024, watch.peak_bytes),
            output=printed.read().decode(),
        )


class _Watch:
    """Looks at the memory of a process and its descendants as often as it is cheap to."""

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0
        self._pid = pid
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stopped.wait(POLL_S):
            family = descendants(self._pid)
            # alone, the kernel keeps a better record than looking now and then
            if len(family) > 1:
                self.peak_bytes = max(self.peak_bytes, sum(map(shared_out_bytes, family)))


def descendants(pid: int) -> list[int]:
    """A process and everything below it."""
    family = [pid]
    for parent in family:
        for children in PROC.glob(f"{parent}/task/*/children"):
            try:
                family += map(int, children.read_text(encoding="ascii").split())
            except OSError:
                continue
    return family


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and of its children that have ended; 0 when it has ended itself."""
    try:
        text = (PROC / f"{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def shared_out_bytes(pid: int) -> int:
    """Memory of a process, of each shared page its share; 0 when it has ended."""
    try:
        lines = (PROC / f"{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def environment_of(requirements: Sequence[str], name: str) -> Path:
    """The Python of an environment that holds other projects, made on first use and kept."""
    folder = Path.home() / ".cache" / "cclsearch-peers" / name
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        print(f"installing {' '.join(requirements)} into {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", *requirements]
        subprocess.run(pip, check=True, stdout=sys.stderr)
        (folder / "complete").touch()
    return python
