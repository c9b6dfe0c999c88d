"""Who may do what: tokens, and the role that each has."""

import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256

from records.errors import StudyError
from records.strict import STRICT


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


def known_as(token: str, known: Sequence[KnownToken]) -> KnownToken | None:
    """The token of these that this one is; takes the same time whichever it is."""
    digest, found = digest_of(token), None
    for one in known:
        if hmac.compare_digest(one.sha256, digest):
            found = one
    return found
