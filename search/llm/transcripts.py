"""Recorded conversations with a model: replay them, and explain a request that is not recorded.

A replay needs no network, no key and no SDK. An answer is found by the SHA-256 of its request body
as canonical JSON.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import takewhile
from operator import eq
from typing import NamedTuple, TypeAlias

from records.codec import from_json
from records.errors import CclsearchError, CodecError, StoreError
from records.llm_exchange import LlmExchange
from records.store.store import Store
from records.study import digest
from search.llm.messages import Answer, Reply, draft_of
from search.llm.tools import Draft, TraceQuestion

BEFORE_CHARS, AFTER_CHARS = 24, 48


class Difference(NamedTuple):
    """The first difference between two requests; `distance` orders several, nearest first."""

    words: str
    distance: tuple[int, int]


def difference(request: object, recorded: object) -> Difference:
    """Return where two JSON values differ first, block by block in the order of the request."""
    ours, theirs = dict(_blocks(request)), dict(_blocks(recorded))
    paths = [path for path in {**ours, **theirs} if ours.get(path) != theirs.get(path)]
    if not paths:
        return Difference("nothing differs", (0, 0))
    first = paths[0]
    one, other = ours.get(first, ""), theirs.get(first, "")
    at = _common_length(one, other)
    if first not in theirs:
        words = f"{first} is requested, {_excerpt(one, 0)}, and not recorded"
    elif first not in ours:
        words = f"{first} is recorded, {_excerpt(other, 0)}, and not requested"
    else:
        words = (
            f"{first} differs from character {at}: "
            f"requested {_excerpt(one, at)}, recorded {_excerpt(other, at)}"
        )
    length = max(len(one), len(other)) - at - _common_length(one[:at:-1], other[:at:-1])
    return Difference(words, (len(paths), length))


def _common_length(one: str, other: str) -> int:
    """Return the length of the common prefix."""
    return sum(takewhile(bool, map(eq, one, other)))


def _blocks(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text, number and boolean inside a value, as text, with its path."""
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
    """Return the text around a character, in quotes and on one line."""
    start, end = max(0, at - BEFORE_CHARS), at + AFTER_CHARS
    cut = json.dumps(text[start:end], ensure_ascii=False)[1:-1]
    return f'"{"..." if start else ""}{cut}{"..." if end < len(text) else ""}"'


Body: TypeAlias = Mapping[str, object]
"""A request body, typed or read from JSON."""


class Diverged(CclsearchError):
    """A request that is not recorded; `trial` has the nearest recorded request."""

    def __init__(self, body: Body, turns: Sequence["RecordedTurn"]) -> None:
        request: Body = json.loads(canonical(body))
        found = [(difference(request, turn.body), turn.trial) for turn in turns]
        self.trial: int | None = None
        words = "a request to the model is not recorded"
        if not found:
            super().__init__(f"{words}, and no other is")
            return
        nearest, self.trial = min(found, key=lambda one: one[0].distance)
        whose = "a request" if self.trial is None else f"the request of trial {self.trial}"
        super().__init__(f"{words}; nearest is {whose}: {nearest.words}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTurn:
    """A request with the answers to it; `trial` is None outside of a study."""

    body: Body
    answers: tuple[Answer, ...]
    trial: int | None = None

    @property
    def digest(self) -> str:
        """Identity of the request."""
        return digest(canonical(self.body))


def canonical(body: Body) -> str:
    """Return a request as canonical JSON, the same for equal requests."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def recorded_turns(exchange: LlmExchange, trial: int | None = None) -> tuple[RecordedTurn, ...]:
    """Return every request of an exchange with its answers, in order.

    Raises `CodecError` for texts that are not an exchange.
    """
    bodies = from_json(tuple[dict[str, object], ...], exchange.request)
    rows = from_json(tuple[_Row, ...], exchange.reply)
    turns = (
        RecordedTurn(body=body, answers=tuple(r.sent for r in rows if r.request == n), trial=trial)
        for n, body in enumerate(bodies)
    )
    return tuple(turn for turn in turns if turn.answers)


def trace_answers(exchange: LlmExchange) -> Mapping[TraceQuestion, str]:
    """Return what the model was answered in one turn about traces, by its questions."""
    answers: dict[TraceQuestion, str] = {}
    for row in from_json(tuple[_Row, ...], exchange.reply):
        if row.answer is not None:
            question = draft_of(from_json(Reply, row.body))
            if isinstance(question, TraceQuestion):
                answers[question] = row.answer
    return answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The policies in a reply of the model; `trial` has the first of them."""

    trial: int
    draft: Draft


def last_submission(study_id: str, store: Store) -> Submission | None:
    """Return the last recorded reply with policies, if there is one and it can be read."""
    found = store.last_submission(study_id)
    if found is None:
        return None
    trial, digest_of_exchange = found
    try:
        rows = from_json(tuple[_Row, ...], store.exchange(digest_of_exchange).reply)
        draft = draft_of(from_json(Reply, rows[-1].body)) if rows else None
    except (CodecError, StoreError):
        return None
    return Submission(trial=trial, draft=draft) if isinstance(draft, Draft) else None


class TranscriptTransport:
    """Gives recorded answers; those to equal requests in their order, then the last one again.

    Raises `Diverged` for a request that is not recorded.
    """

    def __init__(self, turns: Iterable[RecordedTurn]) -> None:
        self._turns = tuple(turns)
        self._answers: dict[str, list[tuple[Answer, ...]]] = defaultdict(list)
        for turn in self._turns:
            self._answers[turn.digest].append(turn.answers)

    def send(self, body: Body) -> tuple[Answer, ...]:
        """Return the recorded answers to this request."""
        answers = self._answers.get(digest(canonical(body)))
        if answers is None:
            raise Diverged(body, self._turns)
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def count_tokens(self, body: Body) -> int | None:
        """Return the billed tokens of a recorded request, about the number counted."""
        for answer in self._answers.get(digest(canonical(body)), [()])[0]:
            if answer.status == HTTPStatus.OK:
                return _input_tokens(answer)
        return None

    def close(self) -> None:
        """Do nothing."""


def _input_tokens(answer: Answer) -> int | None:
    try:
        billed = from_json(Reply, answer.text).billed
    except CodecError:
        return None
    return billed.tokens - billed.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One answer as an exchange records it."""

    body: str
    status: int | None = None
    form: str = ""
    request: int = 0
    retry_after_s: float | None = None
    answer: str | None = None
    """What we answered to the question in this reply."""

    @property
    def sent(self) -> Answer:
        """The answer of the provider."""
        return Answer(text=self.body, status=self.status, retry_after_s=self.retry_after_s)
