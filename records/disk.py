"""What has to be safe on disk before it counts."""

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Force the content of a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
