"""Tokens, roles, sessions.

Who may do what: tokens, and the role that each has.

How a browser stays signed in: a signed cookie, which ends, and which is not the token itself.
"""

import hmac
import os
import re
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import sha256
from pathlib import Path

from records.errors import STRICT, StoreError, StudyError


class Role(IntEnum):
    """What a token allows; each role may do what those before it may."""

    READ = 1
    SUBMIT = 2
    ADMIN = 3

    @property
    def word(self) -> str:
        """Its name as it is configured and shown."""
        return self.name.lower()


ROLES = {role.word: role for role in Role}


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownToken:
    """A token that the service accepts: only its SHA-256 is kept."""

    __pydantic_config__ = STRICT

    name: str
    role: str
    sha256: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}", self.name):
            raise StudyError(f"[[token]] name {self.name!r} is no word of letters and digits")
        if self.role not in ROLES:
            known = ", ".join(ROLES)
            raise StudyError(f"[[token]] role {self.role!r} is unknown; known are {known}")
        if not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise StudyError(f"[[token]] sha256 of {self.name!r} is no SHA-256 in hex")

    @property
    def caller(self) -> "Caller":
        """Whoever has it."""
        return Caller(name=self.name, role=ROLES[self.role])


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who makes a request."""

    name: str
    role: Role

    def may_change_what(self, owner: str) -> bool:
        """Whether this caller may cancel or resume what `owner` submitted."""
        return self.role is Role.ADMIN or (self.role >= Role.SUBMIT and self.name == owner)


def new_token() -> str:
    """A token that nobody can guess."""
    return secrets.token_urlsafe(32)


def digest_of(token: str) -> str:
    """What is kept of a token."""
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def local_token(token: str) -> KnownToken:
    """What this machine's own user has, who may do everything."""
    return KnownToken(name="local", role=Role.ADMIN.word, sha256=digest_of(token))


def find_token(token: str, known: Sequence[KnownToken]) -> KnownToken | None:
    """The token of these that this one is; takes the same time whichever it is."""
    digest, found = digest_of(token), None
    for one in known:
        if hmac.compare_digest(one.sha256, digest):
            found = one
    return found


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


def load_key(folder: Path) -> bytes:
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
