"""Raw samples in files beside a result file, which are read only when they are asked for."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from evaluator.readers.files import open_regular
from evaluator.timing.interval.summary import Samples
from evaluator.traces.errors import TraceError
from records.errors import shown

SAMPLE_BYTES: Final = 4
FILE_BYTES: Final = 256 << 20
"""More than any benchmark writes for one state, and little enough to hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """Why a file gives no samples; `present` is whether it is there with something in it."""

    document: Path
    why: str
    present: bool

    @property
    def warning(self) -> str:
        """The reason with the result file that has it."""
        return f"{self.document}: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFile:
    """A file of `count` little-endian float32, `name` as the result file `document` has it."""

    document: Path
    name: str
    count: int

    @property
    def path(self) -> Path | None:
        """Where it is, or None where that is outside the folder of the result file."""
        folder = self.document.parent.resolve()
        places = [folder / self.name, *self._moved(folder)]
        try:
            inside = [path for place in places if (path := place.resolve()).is_relative_to(folder)]
            found = [path for path in inside if path.exists()]
        except (OSError, ValueError, RuntimeError):  # a name no file can have, or a loop of links
            return None
        return next(iter(found or inside), None)

    def read(self) -> Samples | Unread:
        """The samples as float64, never more than `FILE_BYTES` of them."""
        path = self.path
        if path is None:
            return self._unread("names no file inside the folder", present=True)
        if not 0 <= self.count <= FILE_BYTES // SAMPLE_BYTES:
            return self._unread(f"cannot hold {self.count} samples", present=True)
        try:
            with open_regular(path) as file:
                size_bytes = os.fstat(file.fileno()).st_size
                if size_bytes == 0:
                    return self._unread("is empty", present=False)
                if size_bytes != self.count * SAMPLE_BYTES:
                    return self._unread(
                        f"holds {size_bytes} bytes, which are not {self.count} samples",
                        present=True,
                    )
                content = file.read(size_bytes)
        except FileNotFoundError:
            return self._unread("does not exist", present=False)
        except (OSError, TraceError) as error:
            return self._unread(f"cannot be read: {error}", present=True)
        if len(content) != size_bytes:
            return self._unread("was cut while it was read", present=True)
        return np.frombuffer(content, dtype="<f4").astype(np.float64)

    def _moved(self, folder: Path) -> list[Path]:
        """Older nvbench wrote where the file was seen from the folder that it was started in."""
        parts = self.name.replace("\\", "/").split("/")
        own = {f"{self.document.name}{ending}" for ending in ("-bin", "-freqs-bin")}
        return [folder.joinpath(*parts[at:]) for at, part in enumerate(parts) if part in own]

    def _unread(self, why: str, *, present: bool) -> Unread:
        return Unread(document=self.document, why=f"{shown(self.name)} {why}", present=present)
