"""Redaction of names, addresses and paths in studies, traces and other files."""

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

import msgspec
import zstandard

from evaluator.traces.readers.chrome import ChromeFile
from evaluator.traces.readers.files import LARGE_LIMITS, pieces
from records.codec import with_texts
from records.errors import StudyError, TraceError
from records.machine import LaunchRecord
from records.store.artifacts import Artifacts
from records.store.store import Store
from records.trial import Artifact, Outcome
from search.transfer.bundle import artifacts_of, launches_of, removed_files
from search.transfer.tables import StudyExport, is_trace

_COMMON = {
    *("root", "user", "users", "admin", "ubuntu", "nobody", "guest", "runner", "shared", "public"),
    *("localhost", "localhost.localdomain", "cpu", "cuda", "gpu", "none", "true", "false"),
}
"""Names that many machines have and that are words besides: they tell nothing."""
_VARIABLES = {
    "host": ("HOSTNAME", "HOST", "SLURMD_NODENAME", "MASTER_ADDR"),
    "user": ("USER", "LOGNAME", "USERNAME", "SLURM_JOB_USER"),
    "job": ("SLURM_JOB_ID", "SLURM_JOBID", "PBS_JOBID", "LSB_JOBID", "JOB_ID"),
}
_ADDRESS = re.compile(r"[\d.:]+|[0-9a-fA-F:]+:[0-9a-fA-F:]*")


@dataclass(slots=True)
class Known:
    """Names by kind, each with the word that stands for it; it grows while texts are read."""

    words: dict[str, str] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)
    _given: set[str] = field(default_factory=set)

    def is_telling(self, name: str) -> bool:
        """Whether a name tells anybody anything, and is none of the words that stand for one."""
        key = name.strip().lower()
        return bool(key) and key not in _COMMON and key not in self._given

    def add(self, kind: str, name: str) -> None:
        """Take in a name, unless it is common or known; a host is known by its short name too."""
        name = name.strip()
        key = name.lower()
        if key in self.words or not self.is_telling(name):
            return
        if kind != "host":
            self.words[key] = self.next_word(kind)
        elif not _ADDRESS.fullmatch(name):
            short = key.partition(".")[0]
            word = self.words.get(short) or self.next_word(kind)
            self.words[key] = word
            if short not in _COMMON:
                self.words[short] = word

    def next_word(self, kind: str) -> str:
        """The next word for something of this kind: `host1`, `host2`, ..."""
        while True:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            word = f"{kind}{self._counts[kind]}"
            if word not in self.words:
                self._given.add(word)
                return word


def known_names(
    found: StudyExport, store: Store, hosts: Iterable[str], users: Iterable[str]
) -> Known:
    """The names in how trials were launched, and those given."""
    known, command = Known(), found.row.study.command
    for launched in launches(found):
        for host in launched.hosts:
            known.add("host", host)
        known.add("job", launched.job_id or "")
        _add_variables(known, launched.environment)
    digests = dict.fromkeys(each.machine for each in launches(found) if each.machine)
    machines = (store.machine(digest) for digest in digests)
    for host in (*hosts, *(machine.host for machine in machines if machine is not None)):
        known.add("host", host)
    for user in users:
        known.add("user", user)
    _add_variables(known, {} if command is None else command.environment)
    return known


def launches(found: StudyExport) -> Iterator[LaunchRecord]:
    """How all that is exported was launched."""
    for outcome in found.outcomes:
        yield from launches_of(outcome)


def _add_variables(known: Known, environment: Mapping[str, str]) -> None:
    for kind, variables in _VARIABLES.items():
        for variable in variables:
            known.add(kind, environment.get(variable, ""))


_OVERLAP_BYTES = 512


class NotRedacted(StudyError):
    """A name is still in what was redacted; nothing was exported."""


def check_redacted(name: str, content: Iterable[bytes], known: Known) -> None:
    """Raise `NotRedacted` where a known name stands in this content.

    Names of digits alone are not looked for: numbers that mean something else look the same.
    """
    names = [each.encode() for each in known.words if not each.isdecimal()]
    if not names:
        return
    pattern = re.compile(
        rb"(?<![A-Za-z0-9])(?:%b)(?![A-Za-z0-9])" % b"|".join(map(re.escape, names)),
        re.IGNORECASE,
    )
    text = b""
    for piece in content:
        # What touches either end may be part of a longer word.
        kept_bytes = len(text := text[-_OVERLAP_BYTES:])
        text += piece
        for found in pattern.finditer(text):
            is_cut = found.start() == 0 and kept_bytes == _OVERLAP_BYTES
            if found.end() < len(text) and not is_cut:
                raise _left(found.group(), name)
    if last := pattern.search(text[-_OVERLAP_BYTES:]):
        raise _left(last.group(), name)


def _left(found: bytes, name: str) -> NotRedacted:
    return NotRedacted(
        f"{found.decode(errors='replace')!r} is still in {name} after redaction, so nothing was "
        "written; leave the file out with --no-traces or --metrics-only"
    )


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
_WORDS_REMEMBERED = 100_000


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
        self._seen = lru_cache(maxsize=_WORDS_REMEMBERED)(self._redacted)

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
                    self.text(str(key)): self._versions(each)
                    if key in _VERSIONS and isinstance(each, dict)
                    else self.value(each)
                    for key, each in value.items()
                }
            case _:
                return value

    def _versions(self, value: Mapping[object, object]) -> object:
        return {
            self.text(str(name)): each if _VERSION.fullmatch(str(each)) else self.value(each)
            for name, each in value.items()
        }

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
        with suppress(ValueError):
            address = ip_address(found)
            if not address.is_loopback and not address.is_unspecified:
                return self._word("ip", found)
        return found

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


NOTE = b"cclsearchExport"


class _Event(msgspec.Struct):
    """Only its text is wanted."""


def rewrite_trace(path: Path, out: BinaryIO, redactor: Redactor) -> None:
    """Write a trace in Chrome's format with redacted texts; raise `TraceError` if malformed."""
    trace = ChromeFile(path, LARGE_LIMITS, _Event)
    out.write(b'{"traceEvents":[')
    separator = b"\n"
    with closing(trace.batches()) as batches:
        for _ in batches:
            for event in msgspec.json.decode(trace.text, type=list[object]):
                out.write(separator + msgspec.json.encode(redactor.value(event)))
                separator = b",\n"
    out.write(b"\n]")
    for name, value in trace.header.items():
        told: object = msgspec.json.decode(value)
        if name == "host_name" and isinstance(told, str):
            told = redactor.host(told)
        pair = redactor.text(name), redactor.value(told)
        out.write(b",\n%b:%b" % tuple(map(msgspec.json.encode, pair)))
    out.write(b',\n"%b":{"redacted":true}}\n' % NOTE)


MOST_JSON_BYTES = 16 << 20
_LINE_BYTES = 1 << 20
_PLAIN_TEXT = (".json", ".jsonl", ".log", ".txt", ".py", ".toml", ".yaml", ".yml", ".sh", ".csv")


def redact_file(path: Path, name: str, to: Path, redactor: Redactor) -> str | None:
    """Write a file's redacted content, compressed as its name says; or why that cannot be done."""
    plain = name.removesuffix(".gz").removesuffix(".zst")
    if not plain.endswith(_PLAIN_TEXT):
        return "not a kind of file whose texts are known"
    try:
        with to.open("wb") as file, _packed(file, name) as out:
            if is_trace(plain) and plain.endswith(".json") and _is_chrome(path):
                rewrite_trace(path, out, redactor)
            elif plain.endswith(".json") and (whole := _small(path)) is not None:
                value = redactor.value(json.loads(whole))
                out.write(json.dumps(value, ensure_ascii=False, indent=1).encode())
            else:
                for line in _lines(path):
                    out.write(_redacted_line(line, plain, redactor).encode("utf-8", "replace"))
    except (TraceError, ValueError, RecursionError) as error:
        return " ".join(str(error).replace(str(path), name).split())[:200]
    return None


@contextmanager
def _packed(file: BinaryIO, name: str) -> Iterator[BinaryIO]:
    """A place to write to that compresses as files of this name are, with nothing but content."""
    if name.endswith(".gz"):
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=6) as out:
            yield cast(BinaryIO, out)
    elif name.endswith(".zst"):
        with zstandard.ZstdCompressor().stream_writer(file, closefd=False) as out:
            yield cast(BinaryIO, out)
    else:
        yield file


def _is_chrome(path: Path) -> bool:
    """Whether a file names trace events anywhere; its fields may come after them."""
    end = b""
    for piece in pieces(path, LARGE_LIMITS, 1 << 20):
        if b'"traceEvents"' in end + piece or b'"ph"' in end + piece:
            return True
        end = piece[-20:]
    return False


def _small(path: Path) -> bytes | None:
    """A whole file, unless it is large."""
    found = b""
    with closing(pieces(path, LARGE_LIMITS, 1 << 20)) as read:
        for piece in read:
            found += piece
            if len(found) > MOST_JSON_BYTES:
                return None
    return found


def _lines(path: Path) -> Iterator[str]:
    """Lines of a text with their ends; refuses one that no text has."""
    rest = b""
    for piece in pieces(path, LARGE_LIMITS, 1 << 20):
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield f"{line.decode('utf-8', 'replace')}\n"
        if len(rest) > 64 * _LINE_BYTES:
            raise ValueError("a line without end")
    if rest:
        yield rest.decode("utf-8", "replace")


def _redacted_line(line: str, name: str, redactor: Redactor) -> str:
    if name.endswith((".jsonl", ".json")):
        with suppress(ValueError, RecursionError):
            value = redactor.value(json.loads(line))
            return f"{json.dumps(value, ensure_ascii=False)}\n"
    return redactor.text(line)


MACHINE = "machine.json"
MOST_ROUNDS = 4
"""Names may be learnt from the last file read, and then all is read again."""


def redacted_study(
    found: StudyExport,
    artifacts: Artifacts,
    redactor: Redactor,
    scratch: Path,
    *,
    files: bool,
    allow_missing: bool,
) -> tuple[StudyExport, Artifacts, Mapping[str, str]]:
    """Redact records and, if asked, files, which come to lie under `scratch`.

    Return the records, where the files are, and by name why a file was left out. Conversations
    with a model are dropped. Raises `StoreError` for a file that is missing, unless that is
    allowed, or was removed for its space.
    """
    forgiven = removed_files(found.entries)
    refiled: dict[str, Artifact | None] = {}
    plain, clean = scratch / "plain", scratch / "redacted"

    def with_redacted_files(outcome: Outcome) -> Outcome:
        pairs = ((each, refiled.get(each.digest, each)) for each in outcome.artifacts)
        kept = (replace(again, name=each.name) for each, again in pairs if again is not None)
        return replace(outcome, artifacts=tuple(kept))

    for number in range(MOST_ROUNDS):
        kept = Artifacts(scratch / f"round{number}")
        left_out: dict[str, str] = {}
        refiled.clear()
        for artifact in files_of(found) if files else ():
            if artifact.digest in refiled:
                continue
            refiled[artifact.digest] = None
            may_lack = allow_missing or artifact.digest in forgiven
            if may_lack and artifacts.size(artifact.digest) is None:
                left_out[artifact.name] = "missing"
                continue
            artifacts.copy(artifact.digest, plain)
            why = redact_file(plain, artifact.name, clean, redactor)
            if why is None:
                refiled[artifact.digest] = kept.keep(clean, artifact.name)
            else:
                left_out[artifact.name] = why
        redactor.exact |= {
            digest: again.digest
            for digest, again in refiled.items()
            if again is not None and again.name == MACHINE
        }
        redacted = _redacted(found.changed(with_redacted_files, exchanges=False), redactor)
        if not redactor.learnt():
            break
    return redacted, kept, left_out


def files_of(found: StudyExport) -> Iterable[Artifact]:
    """The files of all trials and of their further launches, and what these were launched on."""
    for launched in launches(found):
        if launched.machine is not None:
            yield Artifact(name=MACHINE, digest=launched.machine, size_bytes=0)
    for outcome in found.outcomes:
        yield from artifacts_of(outcome)


def _redacted(found: StudyExport, redactor: Redactor) -> StudyExport:
    for trial in found.trials:
        source = redactor.text(trial.policy.source)
        redactor.exact[trial.policy.digest] = replace(trial.policy, source=source).digest
    return replace(
        found,
        row=with_texts(found.row, redactor.text),
        trials=tuple(with_texts(trial, redactor.text) for trial in found.trials),
        repeats=tuple(with_texts(repeat, redactor.text) for repeat in found.repeats),
        entries=tuple(with_texts(entry, redactor.text) for entry in found.entries),
    )
