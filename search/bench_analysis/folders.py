"""The folders of results that are analysed, each under a label that names it in files."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Final

from records.errors import StudyError, shown

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
"""What may become a part of a file's name."""
WINDOWS_PATH: Final = re.compile(r"[A-Za-z]:\\")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledFolder:
    """A folder of benchmark CSV files, and what its results are called."""

    label: str
    path: Path


def labelled_folders(texts: Sequence[str]) -> tuple[LabelledFolder, ...]:
    """What `LABEL:PATH` and `PATH` stand for; raises `StudyError` where labels are not clear."""
    if not texts:
        raise StudyError("there is nothing to analyse; give a folder, as in --dir c10d:results")
    folders = tuple(_labelled(text) for text in texts)
    twice = [label for label, count in Counter(each.label for each in folders).items() if count > 1]
    if twice:
        raise StudyError(
            f"several folders are labelled {', '.join(twice)}; "
            "give each a label of its own, as in --dir LABEL:PATH"
        )
    return folders


def _labelled(text: str) -> LabelledFolder:
    """A colon parts label and path, unless it belongs to a folder that is there or to a drive."""
    label, _, rest = text.partition(":")
    if WINDOWS_PATH.match(text):
        path, label = Path(text), PureWindowsPath(text).name
    elif NAME.fullmatch(label) and rest and (Path(rest).is_dir() or not Path(text).is_dir()):
        path = Path(rest)
    else:
        path, label = Path(text), Path(text).absolute().name
    if not NAME.fullmatch(label):
        raise StudyError(
            f"--dir {shown(text)}: {shown(label)} cannot be a label; give one of letters, digits "
            "and . _ + -, as in --dir LABEL:PATH"
        )
    return LabelledFolder(label=label, path=path)
