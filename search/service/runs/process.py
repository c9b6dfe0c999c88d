"""The process that searches one study: started apart from us, found again, ended in order.

It is `cclsearch resume STUDY --json` in a session of its own: what it prints goes to a file, so it
outlives the service, and whoever comes back reads on where the file ends.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

EVENTS = "events.jsonl"
ERRORS = "errors.txt"
ERROR = "error: "
MOST_READ_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Known:
    """A process by its number and the moment it started: no other will ever have both."""

    pid: int
    started_ticks: int

    @classmethod
    def of(cls, pid: int) -> "Known | None":
        """The process that has this number now."""
        fields = _stat(pid)
        return None if fields is None else cls(pid, int(fields[19]))

    @property
    def lives(self) -> bool:
        """Whether it has not ended; one that only waits to be reaped has."""
        fields = _stat(self.pid)
        return fields is not None and fields[0] != "Z" and int(fields[19]) == self.started_ticks

    def interrupt(self) -> None:
        """Ask it to end in order, as Ctrl-C does; every finished trial is on record."""
        if self.lives:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """End it at once; what it launched ends with it."""
        if self.lives:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


class Runner:
    """Starts searches over the records in `store`; each has a folder for what it prints."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def folder(self, study_id: str) -> Path:
        """Where a study's events and errors are."""
        return self._store / "service" / "runs" / study_id

    def start(self, study_id: str, more_trials: int | None = None) -> Known:
        """Start the search of a study on record, from where it is; raises `OSError`."""
        folder = self.folder(study_id)
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-P", "-m", "search", "resume", study_id, "--json"]
        command += ["--store", str(self._store)]
        command += [] if more_trials is None else ["--trials", str(more_trials)]
        with (folder / EVENTS).open("ab") as events, (folder / ERRORS).open("wb") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=events,
                stderr=errors,
                start_new_session=True,
            )
        self._children[process.pid] = process
        # Until it is reaped, which only we do, its number is its own.
        return Known.of(process.pid) or Known(process.pid, 0)

    def reap(self) -> None:
        """Let processes of ours that ended go."""
        for pid, process in [*self._children.items()]:
            if process.poll() is not None:
                del self._children[pid]

    def gave_up(self, study_id: str) -> str | None:
        """Why a search ended by itself, in its own words; None where it did not say."""
        said = (line for line in self._errors(study_id) if line.startswith(ERROR))
        return next((line.removeprefix(ERROR) for line in said), None)

    def last_words(self, study_id: str) -> str | None:
        """The last line that a search wrote beside its events."""
        return next((line for line in reversed(self._errors(study_id)) if line.strip()), None)

    def _errors(self, study_id: str) -> list[str]:
        try:
            with (self.folder(study_id) / ERRORS).open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_READ_BYTES))
                return file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return []


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on; None where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
