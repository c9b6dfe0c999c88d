"""Redacts the files of a trial: traces event by event, JSON by its values, other texts by lines."""

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from evaluator.readers.files import LARGE_LIMITS, pieces
from evaluator.traces.errors import TraceError
from search.exporting.asked import is_trace
from search.exporting.redaction.traces import TraceChanges, rewrite_trace

MOST_JSON_BYTES = 16 << 20
_LINE_BYTES = 1 << 20
_PLAIN_TEXT = (".json", ".jsonl", ".log", ".txt", ".py", ".toml", ".yaml", ".yml", ".sh", ".csv")


def redact_file(path: Path, name: str, to: Path, changes: TraceChanges) -> str | None:
    """Write a file's redacted content, compressed as its name says; or why that cannot be done."""
    plain = name.removesuffix(".gz").removesuffix(".zst")
    if not plain.endswith(_PLAIN_TEXT):
        return "not a kind of file whose texts are known"
    try:
        with to.open("wb") as file, _packed(file, name) as out:
            if is_trace(plain) and plain.endswith(".json") and _is_chrome(path):
                rewrite_trace(path, out, changes)
            elif plain.endswith(".json") and (whole := _small(path)) is not None:
                value = changes.redactor.value(json.loads(whole))
                out.write(json.dumps(value, ensure_ascii=False, indent=1).encode())
            else:
                for line in _lines(path):
                    out.write(_redacted_line(line, plain, changes).encode("utf-8", "replace"))
    except (TraceError, ValueError, RecursionError) as error:
        return " ".join(str(error).replace(str(path), name).split())[:200]
    return None


@contextmanager
def _packed(file: BinaryIO, name: str) -> Iterator[BinaryIO]:
    """A place to write to that compresses as files of this name are, with nothing but content."""
    if name.endswith(".gz"):
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=6) as out:
            yield cast(BinaryIO, out)
    elif name.endswith(".zst"):
        with zstandard.ZstdCompressor().stream_writer(file, closefd=False) as out:
            yield cast(BinaryIO, out)
    else:
        yield file


def _is_chrome(path: Path) -> bool:
    """Whether a file names trace events anywhere; its fields may come after them."""
    end = b""
    for piece in pieces(path, LARGE_LIMITS, 1 << 20):
        if b'"traceEvents"' in end + piece or b'"ph"' in end + piece:
            return True
        end = piece[-20:]
    return False


def _small(path: Path) -> bytes | None:
    """A whole file, unless it is large."""
    found = b""
    for piece in pieces(path, LARGE_LIMITS, 1 << 20):
        found += piece
        if len(found) > MOST_JSON_BYTES:
            return None
    return found


def _lines(path: Path) -> Iterator[str]:
    """Lines of a text with their ends; refuses one that no text has."""
    rest = b""
    for piece in pieces(path, LARGE_LIMITS, 1 << 20):
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield f"{line.decode('utf-8', 'replace')}\n"
        if len(rest) > 64 * _LINE_BYTES:
            raise ValueError("a line without end")
    if rest:
        yield rest.decode("utf-8", "replace")


def _redacted_line(line: str, name: str, changes: TraceChanges) -> str:
    if name.endswith((".jsonl", ".json")):
        try:
            value = changes.redactor.value(json.loads(line))
        except (ValueError, RecursionError):
            return changes.redactor.text(line)
        return f"{json.dumps(value, ensure_ascii=False)}\n"
    return changes.redactor.text(line)
