"""How a browser stays signed in: a signed cookie, which ends, and which is not the token itself."""

import hmac
import os
import re
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from records.errors import StoreError
from search.service.callers.roles import KnownToken

LIFE_S = 30 * 24 * 3600
KEY_BYTES = 32
SHAPE = re.compile(r"([0-9]{1,12})\.([0-9a-f]{64})\.([0-9a-f]{2,128})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """Makes and reads cookies; none of them outlives the token that it was made for."""

    key: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES), repr=False)
    clock: Callable[[], float] = time.time

    def begin(self, token: KnownToken) -> str:
        """The value of a cookie for whoever showed this token."""
        ends = str(int(self.clock()) + LIFE_S)
        return f"{ends}.{self._signature(token, ends)}.{token.name.encode().hex()}"

    def holder(self, value: str, known: Sequence[KnownToken]) -> KnownToken | None:
        """The token that a cookie was made for; None for any that is not ours, or has ended."""
        match = SHAPE.fullmatch(value)
        if match is None or int(match[1]) <= self.clock():
            return None
        for token in known:
            own = hmac.compare_digest(self._signature(token, match[1]), match[2])
            if own and token.name.encode().hex() == match[3]:
                return token
        return None

    @property
    def local_token(self) -> str:
        """The token of this machine's own user, the same as long as the key is."""
        return urlsafe_b64encode(self._mac("local token")).decode().rstrip("=")

    def _signature(self, token: KnownToken, ends: str) -> str:
        return self._mac(f"session\n{token.name}\n{token.sha256}\n{ends}").hex()

    def _mac(self, text: str) -> bytes:
        return hmac.digest(self.key, text.encode(), sha256)


def kept_key(folder: Path) -> bytes:
    """The key of a service's cookies, made at its first start; nobody else may read it.

    It is kept so that browsers and the link of this machine's user outlive the service. Raises
    `StoreError`.
    """
    path = folder / "key"
    try:
        if not path.exists():
            _write(path, secrets.token_bytes(KEY_BYTES))
        open_to = path.stat().st_mode & 0o077
        key = path.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot use {path}: {error.strerror}") from error
    if open_to or len(key) != KEY_BYTES:
        raise StoreError(
            f"{path} is open to others, or damaged; remove it, and everyone signs in again"
        )
    return key


def _write(path: Path, key: bytes) -> None:
    incoming = path.with_suffix(".incoming")
    incoming.unlink(missing_ok=True)
    handle = os.open(incoming, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(key)
        file.flush()
        os.fsync(file.fileno())
    incoming.replace(path)
