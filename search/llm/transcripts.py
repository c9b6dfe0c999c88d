"""Stored conversations, replay of them.

The first difference between two requests to a model, in one line that a person can use.

What a model answered on record, given again: no network, no key, no SDK.

An answer is found by its request: the SHA-256 of the body as canonical JSON.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import takewhile
from operator import eq
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from records.codec import from_json, to_json
from records.errors import CclsearchError, CodecError, StoreError
from records.files import read_text
from records.llm_exchange import LlmExchange
from records.study import digest
from search.llm.client import Transport
from search.llm.messages import Answer, Reply

if TYPE_CHECKING:
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming


BEFORE_CHARS, AFTER_CHARS = 24, 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What was asked in place of what is on record; `distance` orders several, nearest first."""

    words: str
    distance: tuple[int, int]

    def __str__(self) -> str:
        return self.words


def difference(asked: object, recorded: object) -> Difference:
    """Where two JSON values differ first, block by block in the order of the one asked."""
    ours, theirs = dict(_blocks(asked)), dict(_blocks(recorded))
    paths = [path for path in {**ours, **theirs} if ours.get(path) != theirs.get(path)]
    if not paths:
        return Difference(words="nothing differs", distance=(0, 0))
    first = paths[0]
    if first not in theirs:
        words = f"{first} is asked, {_excerpt(ours[first], 0)}, and not on record"
        return Difference(words=words, distance=(len(paths), len(ours[first])))
    if first not in ours:
        words = f"{first} is on record, {_excerpt(theirs[first], 0)}, and not asked"
        return Difference(words=words, distance=(len(paths), len(theirs[first])))
    one, other = ours[first], theirs[first]
    at = _shared(one, other)
    ends = _shared(one[:at:-1], other[:at:-1])
    return Difference(
        words=(
            f"{first} differs from character {at}: "
            f"asked {_excerpt(one, at)}, on record {_excerpt(other, at)}"
        ),
        distance=(len(paths), max(len(one), len(other)) - at - ends),
    )


def _shared(one: str, other: str) -> int:
    """Characters that both begin with."""
    return sum(takewhile(bool, map(eq, one, other)))


def _blocks(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Every text, number and truth value inside a value, as text, by where it is."""
    match value:
        case Mapping():
            for key, inner in value.items():
                yield from _blocks(inner, f"{path}.{key}" if path else str(key))
        case list():
            for number, inner in enumerate(value):
                yield from _blocks(inner, f"{path}[{number}]")
        case str():
            yield path, value
        case _:
            yield path, json.dumps(value)


def _excerpt(text: str, at: int) -> str:
    """The text around a character, in quotes and on one line."""
    start, end = max(0, at - BEFORE_CHARS), at + AFTER_CHARS
    cut = json.dumps(text[start:end], ensure_ascii=False)[1:-1]
    return f'"{"..." if start else ""}{cut}{"..." if end < len(text) else ""}"'


Body: TypeAlias = Mapping[str, object]
"""A request body, as it is or as it came back from JSON."""


class Diverged(CclsearchError):
    """A request that is not on record; `trial` is the one whose request comes nearest."""

    def __init__(self, trial: int | None, found: Difference | None) -> None:
        whose = "a request on record" if trial is None else f"the request of trial {trial}"
        super().__init__(
            f"the model is asked what it was not asked before: {whose} comes nearest; {found}"
            if found is not None
            else "the model is asked, and no request to it is on record"
        )
        self.trial = trial
        self.difference = found


MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTurn:
    """One request and all answers to it; `trial` is None outside of a study."""

    body: Body
    answers: tuple[Answer, ...]
    trial: int | None = None

    @property
    def digest(self) -> str:
        """Identity of the request."""
        return digest(canonical(self.body))


def canonical(body: Body) -> str:
    """A request as the one JSON text that equal requests share."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def recorded_turns(exchange: LlmExchange, trial: int | None = None) -> tuple[RecordedTurn, ...]:
    """Every request of an exchange with its answers, in order.

    Of an exchange recorded earlier this is the last request only: the others were not kept. Raises
    `CodecError` for texts that are no exchange.
    """
    request = from_json(object, exchange.request)
    rows = from_json(tuple[_Row, ...], exchange.reply)
    if isinstance(request, dict):
        last = rows[-1].form if rows else ""
        rows = tuple(row for row in rows if row.form == last)
        request = [request]
    if not isinstance(request, list) or not all(isinstance(body, dict) for body in request):
        raise CodecError("LlmExchange: request: neither a body nor a list of them")
    answers = [tuple(row.answer for row in rows if row.request == n) for n in range(len(request))]
    return tuple(
        RecordedTurn(body=body, answers=given, trial=trial)
        for body, given in zip(request, answers, strict=True)
        if given
    )


class TranscriptTransport:
    """Answers as it was answered; what was asked several times is answered in that order.

    After its last answer on record, a request gets that one again. Raises `Diverged` for a request
    that is not on record.
    """

    def __init__(self, said: Iterable[RecordedTurn]) -> None:
        self._said = tuple(said)
        self._answers: dict[str, list[tuple[Answer, ...]]] = defaultdict(list)
        for each in self._said:
            self._answers[each.digest].append(each.answers)

    def send(self, body: Body) -> tuple[Answer, ...]:
        """Give what is on record for this request."""
        answers = self._answers.get(digest(canonical(body)))
        if answers is None:
            raise diverged(body, self._said)
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def count_tokens(self, body: Body) -> int | None:
        """What was billed for a request on record, which is about what was counted."""
        for answer in self._answers.get(digest(canonical(body)), [()])[0]:
            if answer.status == HTTPStatus.OK:
                return _input_tokens(answer)
        return None

    def close(self) -> None:
        """Hold nothing."""


class TranscriptFolder:
    """A folder with a file for each request: what is not there is asked of `live` and kept.

    Where the provider could not answer for now, nothing is kept: the next run asks again. Raises
    `Diverged` for a request that is not there when nobody can be asked.
    """

    def __init__(self, folder: Path, live: Transport | None = None) -> None:
        self._folder = folder
        self._live = live

    def send(self, body: "MessageCreateParamsNonStreaming") -> tuple[Answer, ...]:
        """Give the answers to a request, from the folder if they are there."""
        path = self._folder / f"{digest(canonical(body))}.json"
        if path.is_file():
            return _read(path).answers
        if self._live is None:
            raise diverged(body, [_read(found) for found in sorted(self._folder.glob("*.json"))])
        answers = self._live.send(body)
        if answers and not answers[-1].passing:
            _write(path, RecordedTurn(body=body, answers=answers))
        return answers

    def count_tokens(self, body: "MessageCreateParamsNonStreaming") -> int | None:
        """What the transport behind it counts, if there is one."""
        return None if self._live is None else self._live.count_tokens(body)

    def close(self) -> None:
        """Close the transport behind it."""
        if self._live is not None:
            self._live.close()


def _input_tokens(answer: Answer) -> int | None:
    try:
        billed = from_json(Reply, answer.text).billed
    except CodecError:
        return None
    return billed.tokens - billed.output_tokens


def diverged(body: Body, said: Sequence[RecordedTurn]) -> Diverged:
    """How a request differs from the one on record that comes nearest."""
    asked: Body = json.loads(canonical(body))
    found = [(difference(asked, each.body), each.trial) for each in said]
    nearest = min(found, key=lambda one: one[0].distance, default=None)
    return Diverged(None, None) if nearest is None else Diverged(nearest[1], nearest[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One answer as an exchange records it."""

    body: str
    status: int | None = None
    form: str = ""
    request: int = 0
    retry_after_s: float | None = None

    @property
    def answer(self) -> Answer:
        return Answer(text=self.body, status=self.status, retry_after_s=self.retry_after_s)


def _read(path: Path) -> RecordedTurn:
    try:
        return from_json(RecordedTurn, read_text(path, MOST_BYTES))
    except (OSError, UnicodeDecodeError, CodecError) as error:
        raise StoreError(
            f"{path} is no transcript: {error}; delete it to have the model asked again"
        ) from error


def _write(path: Path, said: RecordedTurn) -> None:
    arriving = path.with_suffix(".arriving")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        arriving.write_text(to_json(said, indent=1), encoding="utf-8")
        arriving.replace(path)
    except OSError as error:
        raise StoreError(f"cannot keep the transcript {path}: {error.strerror}") from error
