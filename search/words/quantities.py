"""Numbers with the unit that a person reads them in."""

from records.errors import StudyError
from search.words.trial import number

ABSENT = "-"


def duration(seconds: float | None) -> str:
    """A time in s, ms or us, or a dash where there is none."""
    if seconds is None:
        return ABSENT
    for unit, size_s in (("s", 1.0), ("ms", 1e-3)):
        if abs(seconds) >= size_s:
            return f"{number(seconds / size_s)} {unit}"
    return f"{number(seconds * 1e6)} us" if seconds else "0"


def change(seconds: float) -> str:
    """A difference of two times, with its sign."""
    return f"+{duration(seconds)}" if seconds > 0 else duration(seconds)


def size(count: float | None) -> str:
    """Bytes in powers of 1000, or a dash where there are none."""
    if count is None:
        return ABSENT
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{number(count / factor)} {unit}"
    return f"{count:.0f} B"


def share(part: float | None) -> str:
    """A share of 0 to 1 in percent, or a dash where there is none."""
    return ABSENT if part is None else f"{part:.1%}"


def share_of(words: str, option: str) -> float:
    """The share that a text such as `5%` or `0.05` means; raises `StudyError` for other texts."""
    try:
        found = float(words.removesuffix("%")) / (100 if words.endswith("%") else 1)
    except ValueError:
        found = None
    if found is None or not 0 <= found < 1:
        raise StudyError(f"{option} {words!r} is no share from 0 to below 1; write it as in 5%")
    return found


def many(count: int, one: str, several: str | None = None) -> str:
    """How many of something: `1 launch`, `3 launches`; `several` is one with an s by default."""
    return f"{count} {one if count == 1 else several or f'{one}s'}"


def rate(bytes_per_s: float | None) -> str:
    """A bandwidth in GB/s, or a dash where there is none."""
    return ABSENT if bytes_per_s is None else f"{number(bytes_per_s / 1e9)} GB/s"
