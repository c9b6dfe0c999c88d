"""The program and the files that start a user's script: found, startable, and still the same."""

import hashlib
import os
import shutil
from dataclasses import replace
from pathlib import Path

from records.errors import StudyError, shown
from records.files import open_regular
from records.scrub import expanded
from records.study import Command


def located(command: Command, folder: Path) -> Command:
    """The command with the files of `run` found in `folder`, and their digests.

    Raises `StudyError` for a word that can only be a file and is none.
    """
    program, *words = command.run
    has_path = os.sep in program
    run = ((_found(program, folder) if has_path else program), *(_found(w, folder) for w in words))
    paths = [Path(word) for word in run if Path(word).is_absolute() and Path(word).is_file()]
    return replace(command, run=run, file_digests={str(path): _digest(path) for path in paths})


def check_unchanged(command: Command) -> None:
    """Raise `StudyError` when a file is no longer what it was when the study was read."""
    for path, digest in command.file_digests.items():
        if _digest(Path(expanded(path))) != digest:
            raise StudyError(
                f"[command] {path} is not what it was when the study began, so its trials could "
                "not be compared; start a new study"
            )


def check_program(command: Command) -> None:
    """Raise `StudyError` when the program is not there or may not be executed."""
    program = expanded(command.run[0])
    if shutil.which(program) is None:
        instead = f'make it executable, or run = ["bash", {program!r}]'
        hint = instead if Path(program).is_file() else "give a program that is on the PATH"
        raise StudyError(f"[command] run: {shown(program)} cannot be started; {hint}")


def _found(word: str, folder: Path) -> str:
    path = folder.absolute() / word
    if path.is_file():
        return str(path)
    if not word.startswith("-") and path.suffix in {".sh", ".py"}:
        raise StudyError(f"[command] run: there is no file {path}")
    return word


def _digest(path: Path) -> str:
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise StudyError(
            f"[command] run: {path} cannot be read: {error.strerror or error}"
        ) from error
