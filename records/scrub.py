"""Takes secrets and home folders out of texts before they are written.

Knows nothing of where secrets are: the reader of the environment passes them in.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from records.codec import with_texts
from records.trial import FailureKind, Purpose, Stage

T = TypeVar("T")

MARK = "***"
"""Replaces a secret."""
HOME = "~"
LEAST_SECRET_CHARS = 8
"""A shorter value appears in texts by chance."""
_WORDS = (
    *(*Stage, *FailureKind, *Purpose, "measured", "finished", "rank_failed", "disk_quota"),
    *("launcher_lost", "most_steps", "training", "inference", "communication", "minimize"),
    *("maximize", "doubling", "ccl-search"),
)
"""What records are made of: one of these is not a secret."""

_END = r"(?![\w-]|\.\w)"
_HOMES = (r"(?:home|Users)/\w(?:[\w.@+-]*\w)?", f"root{_END}")
"""Homes of anybody, without the slash that they begin with."""
_SHARED = ("", "home", "Users", "tmp", "usr", "var", "opt", "etc", "mnt", "srv", "dev")
"""What a home may be set to that is not a user's own."""
_HOME_IN_PATH = re.compile(r"(?<![^:=])~(?=[/:]|$)")

# Each begins with letters that stand for themselves: those the engine finds fast in a long log.
_TOKENS = tuple(
    re.compile(pattern)
    for pattern in (
        r"sk-(?:ant|proj|svcacct|admin|or|live|test)-[\w-]{12,}",
        r"sk-(?<![A-Za-z0-9]sk-)[A-Za-z0-9]{32,}",
        r"hf_[A-Za-z0-9]{30,}",
        r"gh[oprsu]_[A-Za-z0-9]{36,}",
        r"github_pat_\w{22,}",
        r"glpat-[\w-]{20,}",
        r"A(?:KIA|SIA)[0-9A-Z]{16}",
        r"AIza[\w-]{35}",
        r"xox[abeoprs]-[\w-]{10,}",
        r"eyJ(?<![\w-]eyJ)[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,}",
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:[^-]|-(?!----))*"
        r"(?:-----END [A-Z ]{0,40}-----)?",
        r"(?P<kept>[Bb]earer\s{1,9})[\w.~+/=-]{12,}",
        r"(?P<kept>://[^\s/:@\"'<>]{0,200}:)[^\s/\"'<>]{1,500}(?=@)",
    )
)


class Scrubber:
    """Writes secrets as `***` and home folders as `~`; doing it twice is doing it once.

    `secrets` are values that are known to be secret, `homes` the folders of this user: both are
    taken out wherever they stand. Tokens of known forms and homes of others are found by form.
    """

    def __init__(self, *, homes: Iterable[str] = (), secrets: Iterable[str] = ()) -> None:
        known = [secret for secret in secrets if not any(secret in word for word in _WORDS)]
        self._values = sorted(set(_forms(known)), key=lambda form: (-len(form), form))
        own = [re.escape(name) + _END for home in homes if (name := home.strip("/")) not in _SHARED]
        self._own_home = _folder(own) if own else None
        self._home = _folder([*own, *_HOMES])

    def text(self, text: str) -> str:
        """A text for people: without any secret, and with every home folder as `~`."""
        return _until_same(lambda each: self._home.sub(HOME, self._without_tokens(each)), text)

    def secrets(self, text: str) -> str:
        """A text that says where things are: without any secret."""
        return _until_same(self._without_tokens, text)

    def known(self, text: str) -> str:
        """A text that a digest names, as a policy's: without the values known to be secret."""
        return _until_same(self._without_values, text)

    def path(self, text: str) -> str:
        """A path, or several, that `expanded` makes whole: with this user's home as `~`."""
        return self._own_home.sub(HOME, text) if self._own_home else text

    def content(self, content: bytes) -> bytes:
        """What a file holds, as a text for people; bytes that are no text stay."""
        return self.text(content.decode(errors="surrogateescape")).encode(errors="surrogateescape")

    def value(self, value: T) -> T:
        """One of our values with each of its texts as one for people."""
        return with_texts(value, self.text)

    def _without_tokens(self, text: str) -> str:
        text = self._without_values(text)
        for pattern in _TOKENS:
            text = pattern.sub(lambda found: f"{found.groupdict().get('kept') or ''}{MARK}", text)
        return text

    def _without_values(self, text: str) -> str:
        for value in self._values:
            text = text.replace(value, MARK)
        return text


def expanded(text: str) -> str:
    """A path, or several with `:` between them, with the home folder of this user."""
    home = own_home()
    return text if home is None else _HOME_IN_PATH.sub(lambda _: home, text)


def own_home() -> str | None:
    """The home folder of this user; None of a user that this machine does not know."""
    try:
        return str(Path.home())
    except RuntimeError:
        return None


def _forms(secrets: Iterable[str]) -> Iterator[str]:
    """How a secret may appear in a text: unchanged, line by line, and as JSON or URLs quote it."""
    for secret in secrets:
        for part in (secret, *secret.splitlines()):
            if len(part) >= LEAST_SECRET_CHARS:
                yield part
                yield quote(part, safe="")
                for ascii_only in (True, False):
                    once = json.dumps(part, ensure_ascii=ascii_only)[1:-1]
                    yield once
                    yield json.dumps(once)[1:-1]


def _folder(names: Iterable[str]) -> re.Pattern[str]:
    """A pattern for these folders, where a path may begin."""
    begins = r"/(?:(?<![\w.~*-]/)|(?<=-[BIL]/))"
    return re.compile(rf"{begins}(?:{'|'.join(names)})")


def _until_same(change: Callable[[str], str], text: str) -> str:
    """Change until nothing is left: what is taken out may leave a new match where it stood."""
    while (changed := change(text)) != text:
        text = changed
    return text
