"""Files kept for trials, each stored once under the SHA-256 of its content."""

import hashlib
import io
import os
import shutil
import tempfile
from pathlib import Path

from records.errors import StoreError
from records.trial import Artifact


class Artifacts:
    """A folder of content-addressed files; a file appears whole or not at all."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def keep(self, path: Path, name: str) -> Artifact:
        """Copy a file in and give its address; raises `StoreError` when that cannot be done."""
        try:
            data = path.open("rb")
        except OSError as error:
            raise StoreError(f"cannot keep {path}: {error.strerror}") from error
        with data:
            return self._keep(data, name)

    def keep_text(self, text: str, name: str) -> Artifact:
        """Keep a text as a file."""
        return self._keep(io.BytesIO(text.encode("utf-8", "surrogatepass")), name)

    def path(self, digest: str) -> Path:
        """Where the file with this digest lies."""
        return self._root / digest[:2] / digest

    def read(self, digest: str) -> bytes:
        """A file's content; raises `StoreError` when it is missing or no longer what was kept."""
        path = self.path(digest)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise StoreError(
                f"artifact {digest} is missing from {self._root}; restore it there"
            ) from error
        if hashlib.sha256(content).hexdigest() != digest:
            raise StoreError(f"{path} was changed since it was recorded; restore what it was")
        return content

    def _keep(self, data: io.BufferedReader | io.BytesIO, name: str) -> Artifact:
        digest = hashlib.file_digest(data, "sha256").hexdigest()
        target = self.path(digest)
        try:
            if not target.exists():
                data.seek(0)
                self._write(data, target)
        except OSError as error:
            raise StoreError(f"cannot keep {name} under {self._root}: {error.strerror}") from error
        return Artifact(name=name, digest=digest, size_bytes=target.stat().st_size)

    def _write(self, data: io.BufferedReader | io.BytesIO, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".incoming-")
        try:
            with os.fdopen(handle, "wb") as out:
                shutil.copyfileobj(data, out)
                out.flush()
                os.fsync(out.fileno())
            Path(temporary).replace(target)
        finally:
            Path(temporary).unlink(missing_ok=True)
