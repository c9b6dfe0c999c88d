"""Message sizes as they are typed, and the sizes of a sweep."""

import re

UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_SIZE = re.compile(r"(?P<number>[0-9]{1,15})\s*(?P<unit>[KMGT]?)(?:I?B)?")


def size_bytes(text: str) -> int | None:
    """Bytes of a size such as 4096, 64K, 1MiB or 64MB, all units of 1024; None for other texts."""
    found = _SIZE.fullmatch(text.strip().upper())
    return int(found["number"]) << UNITS[found["unit"]] if found else None


def size_chain(least: int, most: int, factor: int) -> tuple[int, ...]:
    """Sizes from `least` on, each `factor` times the last, none above `most`.

    `least` is above 0 and `factor` above 1.
    """
    sizes = []
    size = least
    while size <= most:
        sizes.append(size)
        size *= factor
    return tuple(sizes)
