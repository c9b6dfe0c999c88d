"""Callers: tokens with roles, browser sessions in signed cookies, and what each may use."""

import hmac
import math
import os
import re
import secrets
import time
from base64 import urlsafe_b64encode
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from ipaddress import IPv6Address, ip_address, ip_network
from pathlib import Path
from threading import Lock

from starlette.types import Scope

from records.errors import StoreError, Strict, StudyError

LIFE_S = 30 * 24 * 3600
KEY_BYTES = 32
SHAPE = re.compile(r"([0-9]{1,12})\.([0-9a-f]{64})\.([0-9a-f]{2,128})")


class Role(StrEnum):
    """What a token allows; each role may do what those before it may."""

    READ = "read"
    SUBMIT = "submit"
    ADMIN = "admin"

    def includes(self, other: "Role") -> bool:
        """Return whether this role may do what `other` may."""
        order = list(Role)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who makes a request."""

    name: str
    role: Role

    def may_change(self, owner: str) -> bool:
        """Return whether this caller may cancel or resume what `owner` submitted."""
        is_own = self.role.includes(Role.SUBMIT) and self.name == owner
        return self.role is Role.ADMIN or is_own


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownToken(Caller, Strict):
    """The token of a caller that the service accepts: only its SHA-256 is kept."""

    sha256: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}", self.name):
            raise StudyError(f"[[token]] name {self.name!r} is not a word of letters and digits")
        if not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise StudyError(f"[[token]] sha256 of {self.name!r} is not a SHA-256 in hex")


def new_token() -> str:
    """Return a token that cannot be guessed."""
    return secrets.token_urlsafe(32)


def digest_of(token: str) -> str:
    """Return the digest of a token, which is all that is stored of it."""
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def local_token(token: str) -> KnownToken:
    """Return the token of this machine's user, who may do everything."""
    return KnownToken(name="local", role=Role.ADMIN, sha256=digest_of(token))


def find_token(token: str, known: Sequence[KnownToken]) -> KnownToken | None:
    """Return the known token that this one is, in constant time."""
    digest, found = digest_of(token), None
    for one in known:
        if hmac.compare_digest(one.sha256, digest):
            found = one
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """Makes and reads cookies, which end with the token that they were made for."""

    key: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES), repr=False)
    clock: Callable[[], float] = time.time

    def begin(self, token: KnownToken) -> str:
        """Return the value of a cookie for this token."""
        ends = str(int(self.clock()) + LIFE_S)
        return f"{ends}.{self._signature(token, ends)}.{token.name.encode().hex()}"

    def holder(self, value: str, known: Sequence[KnownToken]) -> KnownToken | None:
        """Return the token that a cookie was made for; None for a forged or expired one."""
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
    """Return the key of a service's cookies, made at its first start and readable by it alone.

    It is stored, so that sessions and the local link survive a restart. Raise `StoreError`.
    """
    path = folder / "key"
    try:
        if not path.exists():
            write_privately(path, secrets.token_bytes(KEY_BYTES))
        open_to = path.stat().st_mode & 0o077
        key = path.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot use {path}: {error.strerror}") from error
    if open_to or len(key) != KEY_BYTES:
        raise StoreError(
            f"{path} is open to others, or damaged; remove it, and everyone signs in again"
        )
    return key


def write_privately(path: Path, content: bytes) -> None:
    """Write a file that its owner alone can read, whole or not at all; raise `OSError`."""
    incoming = path.with_suffix(".incoming")
    incoming.unlink(missing_ok=True)
    handle = os.open(incoming, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    incoming.replace(path)


MOST_CALLERS = 10_000


class Rates:
    """A token bucket for each of the most recent callers, refilled evenly."""

    def __init__(
        self, *, per_s: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_s, self._burst, self._clock = per_s, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By caller, what is left and when it was that much; the most recent last."""

    def allow(self, who: str) -> bool:
        """Count a request of this caller; return whether it is allowed."""
        now_s = self._clock()
        before, at_s = self._buckets.pop(who, (self._burst, now_s))
        left = min(self._burst, before + (now_s - at_s) * self._per_s)
        allowed = left >= 1
        self._buckets[who] = left - 1 if allowed else left, now_s
        while len(self._buckets) > MOST_CALLERS:
            self._buckets.popitem(last=False)
        return allowed


def address_of(scope: Scope) -> str:
    """Return where a request comes from; IPv6 addresses are grouped by their /64 network."""
    client = scope.get("client")
    try:
        address = ip_address(client[0] if client else "")
    except ValueError:
        return "unknown"
    if isinstance(address, IPv6Address):
        inside = address.ipv4_mapped
        return str(inside or ip_network((int(address), 64), strict=False))
    return str(address)


class TooManyError(StudyError):
    """A limit of the service is reached."""


class Slots:
    """A limited number of slots for each caller, and for all; safe in several threads."""

    def __init__(self, refusal: str, each: int, most: float = math.inf) -> None:
        self._refusal, self._each, self._most = refusal, each, most
        self._taken = Counter[str]()
        self._lock = Lock()

    def take(self, who: str) -> None:
        """Take a slot; raise `TooManyError` where none is free."""
        with self._lock:
            if self._taken[who] >= self._each or self._taken.total() >= self._most:
                raise TooManyError(self._refusal)
            self._taken[who] += 1

    def release(self, who: str) -> None:
        """Release a slot."""
        with self._lock:
            self._taken[who] -= 1
            if not self._taken[who]:
                del self._taken[who]

    def total(self) -> int:
        """Return how many slots are taken."""
        with self._lock:
            return self._taken.total()
