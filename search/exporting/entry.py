"""Writes one trial as an entry of CCL-Bench: a folder with its card, traces and launch script.

The toolkit takes the first YAML file of a folder for the card and every JSON file beside it for a
trace, so there is one of the former, and all that is no trace lies below `record/`.
"""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from evaluator.readers.files import LARGE_LIMITS, pieces
from evaluator.traces.errors import TraceError
from records.artifacts import Artifacts
from records.errors import StoreError
from records.trial import Artifact, Trial
from search.context_launches import FOLDER
from search.exporting.asked import is_trace
from search.exporting.card import card_text
from search.exporting.checks import Check
from search.kept.files import is_inside

CARD = "workload_card.yaml"
RECORD = "record"
SCRIPT = "launch.sh"
_RANK = re.compile(r"rank[-_]?(\d{1,7})(?!\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What an entry is written of; `script` starts the trial again, None where none is known."""

    trial: Trial
    document: Mapping[str, object]
    card: Mapping[str, object]
    checks: tuple[Check, ...]
    artifacts: Artifacts
    script: str | None


def write_entry(entry: Entry, folder: Path, *, allow_missing: bool) -> tuple[str, ...]:
    """Fill a new folder; gives the names of files that are missing, where that is allowed.

    Raises `StoreError` for a file that is missing or was altered.
    """
    record = folder / RECORD
    record.mkdir(parents=True)
    (folder / CARD).write_text(card_text(entry.card), encoding="utf-8")
    if entry.script is not None:
        (folder / SCRIPT).write_text(entry.script, encoding="utf-8")
        (folder / SCRIPT).chmod(0o755)
    _write_json(record / "trial.json", entry.document)
    _write_json(record / "metrics.json", entry.document["metrics"])
    faults = {check.name: list(check.faults) for check in entry.checks}
    _write_json(record / "checks.json", faults)
    (record / "policy.py").write_text(
        entry.trial.policy.source, encoding="utf-8", errors="surrogatepass"
    )
    return tuple(_write_files(entry, folder, allow_missing))


def traces_of(trial: Trial) -> list[Artifact]:
    """The traces of a trial by rising rank, those that it left outside of any context."""
    found = [
        each
        for each in trial.outcome.artifacts
        if is_trace(each.name) and not PurePosixPath(each.name).is_relative_to(FOLDER)
    ]
    return sorted(found, key=lambda each: (_rank(each.name, len(found)), each.name))


def _write_files(entry: Entry, folder: Path, allow_missing: bool) -> Iterator[str]:
    traces = traces_of(entry.trial)
    for artifact in entry.trial.outcome.artifacts:
        if allow_missing and entry.artifacts.size(artifact.digest) is None:
            yield artifact.name
        elif artifact in traces and is_json(artifact.name):
            rank = traces.index(artifact)
            _unpack(artifact, entry.artifacts, folder / f"rank{rank}_trace.json")
        else:
            to = folder / RECORD / "files" / _inside(artifact.name)
            to.parent.mkdir(parents=True, exist_ok=True)
            entry.artifacts.copy(artifact.digest, to)


def is_json(name: str) -> bool:
    """Whether a trace is JSON, compressed or not."""
    return name.removesuffix(".gz").removesuffix(".zst").endswith(".json")


def _inside(name: str) -> str:
    """A file's name; raises `StoreError` where it leads out of a folder."""
    if not is_inside(name):
        raise StoreError(f"a file of the record is called {name[:80]!r}, which leads elsewhere")
    return name


def _unpack(artifact: Artifact, artifacts: Artifacts, to: Path) -> None:
    """Write a trace without compression, as the toolkit reads it."""
    with tempfile.TemporaryDirectory(dir=to.parent, prefix=".unpacking-") as scratch:
        copy = Path(scratch) / "copy"
        artifacts.copy(artifact.digest, copy)
        try:
            with to.open("wb") as out, closing(pieces(copy, LARGE_LIMITS)) as found:
                for piece in found:
                    out.write(piece)
        except TraceError as error:
            why = str(error).replace(str(copy), artifact.name)
            raise StoreError(f"{why}; leave it out with --no-traces --incomplete") from error


def _rank(name: str, count: int) -> int:
    """The rank that a trace's name tells; those that tell none come last."""
    found = _RANK.search(PurePosixPath(name).name)
    return int(found[1]) if found else count


def _write_json(path: Path, value: object) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    path.write_text(f"{text}\n", encoding="utf-8", errors="backslashreplace")
