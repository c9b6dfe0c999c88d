"""Looks through what was redacted for any name that was to go."""

import re
from collections.abc import Iterable

from records.errors import StudyError
from search.exporting.redaction.names import Known

_OVERLAP_BYTES = 512


class LeftOver(StudyError):
    """A name is still in what was redacted; nothing was exported."""


def check_redacted(name: str, content: Iterable[bytes], known: Known) -> None:
    """Raise `LeftOver` where a known name stands in this content.

    Names of digits alone are not looked for: numbers that mean something else look the same.
    """
    names = [each.encode() for each in known.words if not each.isdecimal()]
    if not names:
        return
    pattern = re.compile(
        rb"(?<![A-Za-z0-9])(?:%b)(?![A-Za-z0-9])" % b"|".join(map(re.escape, names)),
        re.IGNORECASE,
    )
    text = b""
    for piece in content:
        # What touches either end may be part of a longer word.
        kept_bytes = len(text := text[-_OVERLAP_BYTES:])
        text += piece
        for found in pattern.finditer(text):
            is_cut = found.start() == 0 and kept_bytes == _OVERLAP_BYTES
            if found.end() < len(text) and not is_cut:
                raise _left(found.group(), name)
    if last := pattern.search(text[-_OVERLAP_BYTES:]):
        raise _left(last.group(), name)


def _left(found: bytes, name: str) -> LeftOver:
    return LeftOver(
        f"{found.decode(errors='replace')!r} is still in {name} after redaction, so nothing was "
        "written; leave the file out with --no-traces or --metrics-only"
    )
