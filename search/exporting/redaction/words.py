"""Puts a word in the place of each name, address and path of a text, always the same for one."""

import re
from collections import Counter
from functools import lru_cache
from ipaddress import ip_address
from pathlib import PurePosixPath

from search.exporting.redaction.names import Known

_SEGMENT = r"[^\s/:;,'\"`()<>\[\]{}|&*?!$\\]"
_FOUND = re.compile(
    rf"(?P<contact>[\w.+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+)"
    rf"|(?P<path>(?:file://|(?<![\w./~@-])|(?<=\s-[A-Z]))"
    rf"(?:~{_SEGMENT}*)?/(?:{_SEGMENT}+/)+{_SEGMENT}*"
    rf"|~{_SEGMENT}*/{_SEGMENT}+"
    rf"|/(?:home|Users)/(?:{_SEGMENT}+/)*{_SEGMENT}*)"
    rf"|(?P<ip4>(?<![\w.])\d{{1,3}}(?:\.\d{{1,3}}){{3}}(?![\w.]))"
    rf"|(?P<ip6>(?<![\w:])(?=[0-9a-fA-F:]*:[0-9a-fA-F]*:)[0-9a-fA-F:]{{3,39}}(?![\w:]))"
)
_USER = re.compile(rf"/(?:home|Users)/({_SEGMENT}+)")
_LIBRARY = re.compile(r"/(?:site-packages|dist-packages|lib/python3[\d.]*)/.*", re.DOTALL)
_SYSTEM = ("/bin/", "/sbin/", "/lib/", "/lib64/", "/usr/", "/dev/", "/proc/", "/sys/")
"""Places that every machine has."""
_VERSIONS = ("packages", "software")
"""Fields of numbers that look like addresses, and are none."""
_VERSION = re.compile(r"[\d.]+")
_REMEMBERED = 100_000


class Redactor:
    """Redacts texts and JSON values by what is known, and learns users from their home folders.

    `counts` says how often something of each kind was replaced. `exact` are texts to replace as
    they are: digests of what redaction changes.
    """

    def __init__(self, known: Known) -> None:
        self.known = known
        self.counts: Counter[str] = Counter()
        self.exact: dict[str, str] = {}
        self._places: dict[tuple[str, str], str] = {}
        self._names = _names_pattern(known)
        self._seen = lru_cache(maxsize=_REMEMBERED)(self._redacted)

    def text(self, text: str) -> str:
        """The text with words for names."""
        if text in self.exact:
            return self.exact[text]
        redacted, kinds = self._seen(text)
        self.counts.update(kinds)
        return redacted

    def value(self, value: object) -> object:
        """A JSON value with all of its texts redacted, names of fields too."""
        match value:
            case str():
                return self.text(value)
            case list():
                return [self.value(each) for each in value]
            case dict():
                return {
                    self.text(str(key)): (
                        self._versions(each) if key in _VERSIONS else self.value(each)
                    )
                    for key, each in value.items()
                }
            case _:
                return value

    def host(self, name: str) -> str:
        """What stands for a host, which is known from now on."""
        self.known.add("host", name)
        word = self.known.words.get(name.strip().lower(), name)
        self.counts["host"] += word != name
        return word

    def learnt(self) -> bool:
        """Whether names became known since the last call: what was redacted by then lacks them."""
        pattern = _names_pattern(self.known)
        if pattern == self._names:
            return False
        self._names = pattern
        self._seen.cache_clear()
        self.counts.clear()
        return True

    def _versions(self, value: object) -> object:
        if not isinstance(value, dict):
            return self.value(value)
        return {
            self.text(str(name)): each if _VERSION.fullmatch(str(each)) else self.value(each)
            for name, each in value.items()
        }

    def _redacted(self, text: str) -> tuple[str, tuple[str, ...]]:
        kinds: list[str] = []

        def place(match: re.Match[str]) -> str:
            kind, found = str(match.lastgroup), match.group()
            word = self._path(found) if kind == "path" else self._address(kind, found)
            if word != found:
                kinds.append(kind.rstrip("46"))
            return word

        def name(match: re.Match[str]) -> str:
            word = self.known.words[match.group().lower()]
            kinds.append(word.rstrip("0123456789"))
            return word

        text = _FOUND.sub(place, text)
        return (self._names.sub(name, text) if self._names else text), tuple(kinds)

    def _path(self, path: str) -> str:
        """Another folder and another file name, the same for the same; libraries keep theirs."""
        for user in _USER.findall(path):
            self.known.add("user", user)
        library = _LIBRARY.search(path)
        if library:
            return f"/{self._word('path', path[: library.start()])}{library.group()}"
        folder, _, name = path.rpartition("/")
        if path.startswith(_SYSTEM) or not folder:
            return path
        suffix = PurePosixPath(name).suffix
        kept = suffix if re.fullmatch(r"\.[a-z0-9]{1,6}", suffix) else ""
        file = f"{self._word('file', name)}{kept}" if name else ""
        return f"/{self._word('path', folder)}/{file}"

    def _address(self, kind: str, found: str) -> str:
        if kind == "contact":
            return self._word("contact", found)
        try:
            address = ip_address(found)
        except ValueError:
            return found
        if address.is_loopback or address.is_unspecified:
            return found
        return self._word("ip", found)

    def _word(self, kind: str, found: str) -> str:
        key = kind, found
        if key not in self._places:
            self._places[key] = self.known.next_word(kind)
        return self._places[key]


def _names_pattern(known: Known) -> re.Pattern[str] | None:
    if not known.words:
        return None
    names = "|".join(map(re.escape, sorted(known.words, key=lambda name: (-len(name), name))))
    return re.compile(rf"(?<![A-Za-z0-9])(?:{names})(?![A-Za-z0-9])", re.IGNORECASE)
