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


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who makes a request."""

    name: str
    role: Role


def new_token() -> str:
    """A token that nobody can guess."""
    return secrets.token_urlsafe(32)


def digest_of(token: str) -> str:
    """What is kept of a token."""
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def caller_of(token: str, known: Sequence[KnownToken]) -> Caller | None:
    """Who has this token; takes the same time whichever it is."""
    digest, found = digest_of(token), None
    for one in known:
        if hmac.compare_digest(one.sha256, digest):
            found = Caller(name=one.name, role=ROLES[one.role])
    return found
