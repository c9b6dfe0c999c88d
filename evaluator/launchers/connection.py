"""A supervisor as its launcher holds it, and how what it left is found when either was killed.

Standard library only: agents on other nodes have supervisors too.
"""

import json
import os
import signal
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from evaluator.launchers.limits import send_signal, stat_fields
from evaluator.launchers.supervisor import LineProcess
from evaluator.rank.start import command

MARKER = "CCLSEARCH_LAUNCH_OF"
EXIT_LIMIT_S = 30.0


class Connection(LineProcess):
    """A supervisor that runs; `environment` is all that it and the jobs see of ours."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        # Everything below it inherits the marker, so that it can be found when we are gone.
        owner = f"{os.getpid()}-{_start_ticks(os.getpid())}-{_pid_namespace()}"
        marker = f"{owner}-{uuid.uuid4().hex}"
        self.environment = {**environment, MARKER: marker}
        super().__init__(
            *command("evaluator.launchers.supervisor", None), environment=self.environment
        )

    def events(self, wait_s: float) -> Iterator[dict[str, object] | None]:
        """Events that arrive within `wait_s`; None when the supervisor is gone.

        One with `refused` says why a job cannot be started, one with `ended` how it ended; with
        neither it begins: its ranks are warm.
        """
        lines = self.lines(wait_s)
        if lines is None:
            yield None
            return
        yield from (json.loads(line) for line in lines)

    def environment_of(self, job: Mapping[str, str]) -> Mapping[str, str]:
        """Return what a job sees: ours, with its own over it and in front of our PYTHONPATH."""
        ours = self.environment
        both = [given["PYTHONPATH"] for given in (job, ours) if "PYTHONPATH" in given]
        paths = {"PYTHONPATH": os.pathsep.join(both)} if both else {}
        return {**ours, **job, **paths}

    def end(self, grace_s: float = EXIT_LIMIT_S) -> str:
        """End it and all it started; return the last line it wrote, or how it ended.

        It ends what runs when its input closes; what it left because it was killed, we kill.
        """
        last_words = super().end(grace_s)
        _kill_marked({self.environment[MARKER]})
        return last_words


def kill_orphans() -> None:
    """Kill what is left of launchers that were killed together with their supervisors."""
    orphaned = set()
    for _, marker in _marked():
        pid, start_ticks, namespace, *_ = [*marker.split("-"), "", ""]
        # We see into containers on this machine, and do not know who lives there.
        if namespace == _pid_namespace() and _start_ticks(int(pid)) != start_ticks:
            orphaned.add(marker)
    if orphaned:
        _kill_marked(orphaned)


def _kill_marked(markers: set[str]) -> None:
    """Kill until none is left: one may have been forking while we looked."""
    deadline_s = time.monotonic() + EXIT_LIMIT_S
    while time.monotonic() < deadline_s:
        found = [pid for pid, marker in _marked() if marker in markers]
        if not found:
            return
        for pid in found:
            send_signal(pid, signal.SIGKILL, lambda pid: _marker(pid) in markers)
        time.sleep(0.01)


def _marked() -> Iterator[tuple[int, str]]:
    """Living processes of launches, and whose."""
    for path in Path("/proc").glob("[0-9]*"):
        marker = _marker(int(path.name))
        if marker is not None:
            yield int(path.name), marker


def _marker(pid: int) -> str | None:
    """The marker in the environment that a process was started with; an ended one has none."""
    with suppress(OSError):
        prefix = f"{MARKER}=".encode()
        for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if variable.startswith(prefix):
                return variable.removeprefix(prefix).decode(errors="replace")
    return None


def _pid_namespace() -> str:
    """What tells our process numbers from those of containers."""
    return str(Path("/proc/self/ns/pid").stat().st_ino)


def _start_ticks(pid: int) -> str | None:
    fields = stat_fields(pid)
    return fields[19] if fields else None
