"""One study read from outside, as the store takes it."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from records.entries import Entry
from records.study import Study, digest
from records.trial import Repeat, Trial

ID_CHARS: Final = 60
DIGEST_CHARS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A study that ended elsewhere, with all its trials, and `id` to record it under.

    The id is the same whenever the same history is read, so that nothing is recorded twice.
    `files` are what the trials cite, each a file of its own, there until the next one is asked for
    or the reading ends. `entries` are given where another store of ours had the study: then these
    are its records, to the letter, and the rest only tells of them.
    """

    id: str
    study: Study
    trials: Sequence[Trial]
    repeats: Sequence[Repeat] = ()
    summary: str | None = None
    files: Iterable[Path] = ()
    entries: Sequence[Entry] = ()


def stable_id(name: str, content: str) -> str:
    """A readable id that follows from a name and from the text that the study was read from."""
    plain = re.sub("[^A-Za-z0-9_.]+", "-", name).strip("-.")[:ID_CHARS] or "study"
    return f"{plain}-{digest(content)[:DIGEST_CHARS]}"
