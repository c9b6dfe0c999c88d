"""The bundle: one study with its files in one file, which is a tar archive compressed by zstd.

It begins with `manifest.json`, goes on with `study.jsonl`, one change of the record on each line,
and then has `files/DIGEST` for every file, by rising digest. Headers hold nothing but a name and a
size, so that the same records make the same bytes.
"""

import tarfile
from dataclasses import dataclass
from typing import Final

from records.entries import KINDS, Entry
from records.strict import STRICT

SUFFIX: Final = ".cclsearch"
FORMAT: Final = "cclsearch.bundle"
VERSION: Final = 1
MANIFEST: Final = "manifest.json"
STUDY: Final = "study.jsonl"
FILES: Final = "files/"
MOST_MANIFEST_BYTES: Final = 8 << 20
BLOCK_BYTES: Final = tarfile.BLOCKSIZE
END: Final = bytes(2 * BLOCK_BYTES)
KIND_NAMES: Final = {kind: name for name, kind in KINDS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One file of a bundle: the SHA-256 of its content, and its size."""

    __pydantic_config__ = STRICT

    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a bundle holds; `missing` are files that the record cites and that could not be added.

    `notes` say what was redacted or left out, one sentence each.
    """

    __pydantic_config__ = STRICT

    format: str
    version: int
    study_id: str
    study_name: str
    made_by: str
    study: Member
    files: tuple[Member, ...]
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def header(name: str, size_bytes: int) -> bytes:
    """The block before a member of this name and size."""
    told = tarfile.TarInfo(name)
    told.size = size_bytes
    return told.tobuf(tarfile.GNU_FORMAT)


def padding(size_bytes: int) -> bytes:
    """What fills the last block of a member."""
    return bytes(-size_bytes % BLOCK_BYTES)


def kind_of(entry: Entry) -> str:
    """The name under which a bundle, as a journal, holds an entry."""
    return KIND_NAMES[type(entry)]
