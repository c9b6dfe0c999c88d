"""Files and folders that appear under their names only when all of them is written."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from records.errors import StoreError, StudyError


@contextmanager
def whole_file(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """A file to write and to read back, that gets its name at the end and is gone on any error.

    Raises `StudyError` when the name is taken and `force` is not given, `StoreError` when nothing
    can be written there.
    """
    if path.is_dir():
        raise StudyError(f"{path} is a folder; name a file with -o")
    if path.exists() and not force:
        raise StudyError(_taken(path))
    with _refusals(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with _refusals(path), os.fdopen(handle, "w+b") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
            os.fchmod(out.fileno(), 0o644)
        with _refusals(path):
            Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path, *, mark: str, force: bool) -> Iterator[Path]:
    """A folder to fill, that gets its name at the end and is gone on any error.

    With `force` it replaces a folder that holds a file called `mark`, and none that holds others'
    files. Raises as `whole_file`.
    """
    there = path.exists() and (not path.is_dir() or any(path.iterdir()))
    if there and not force:
        raise StudyError(_taken(path))
    if there and not (path / mark).is_file():
        raise StudyError(f"{path} holds something else, no {mark}; give another with -o")
    with _refusals(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}-"))
    try:
        with _refusals(path):
            yield temporary / "new"
            (temporary / "new").chmod(0o755)
            if path.exists():
                path.replace(temporary / "old")
            (temporary / "new").replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _taken(path: Path) -> str:
    return f"{path} is there already; give --force to replace it, or another name with -o"


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"cannot write {path}: {error.strerror or error}; free space, or give another with -o"
        ) from error
