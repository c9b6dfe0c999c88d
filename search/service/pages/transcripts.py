"""A conversation with a model as a person reads it: what was said, in turns, and what it took."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from records.errors import CodecError
from records.exchange import Exchange
from records.study import Llm
from search.llm.prices import cost_usd
from search.llm.transcripts import Said, said_in
from search.service.pages.visible import visible
from search.words.quantities import duration

MOST_CHARS = 200_000
CUT = "\n[... the rest is in the transcript of the API ...]"

Json: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Something that was said: who said it, of which kind it is, and the text."""

    who: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """Everything said about one trial; `fault` tells why it cannot be read."""

    pieces: tuple[Piece, ...]
    facts: tuple[tuple[str, str], ...]
    fault: str | None = None


def transcript_of(exchange: Exchange, llm: Llm) -> Transcript:
    """The conversation, each text once, though every request repeats those before it."""
    facts = tuple(_facts(exchange, llm))
    try:
        said = said_in(exchange)
    except CodecError as error:
        return Transcript(pieces=(), facts=facts, fault=str(error))
    return Transcript(pieces=tuple(_pieces(said)), facts=facts)


def _facts(exchange: Exchange, llm: Llm) -> Iterator[tuple[str, str]]:
    usage = exchange.usage
    yield "model", exchange.model
    if exchange.host is not None:
        yield "provider", exchange.host
    yield "came of it", exchange.result
    yield "requests", str(exchange.request_count)
    yield "took", duration(exchange.latency_s)
    yield "tokens in", str(usage.input_tokens)
    yield "tokens from the cache", str(usage.cache_read_tokens)
    yield "tokens into the cache", str(usage.cache_write_tokens)
    yield "tokens out", str(usage.output_tokens)
    cost = cost_usd(usage, exchange.model, llm)
    yield "cost", "price not known" if cost is None else f"{cost:.4g} USD"


def _pieces(said: Sequence[Said]) -> Iterator[Piece]:
    system = ""
    before: list[object] = []
    for each in said:
        told = "\n\n".join(text for _, text in _contents(each.body.get("system")))
        if told != system:
            system = told
            yield _piece("instructions", "text", told)
        messages = _list(each.body.get("messages"))
        for message in messages[_shared(before, messages) :]:
            if not before or _role(message) != "assistant":  # it was shown as an answer
                yield from _message(message)
        before = messages
        for answer in each.answers:
            yield from _answer(answer.text, answer.status)


def _shared(before: Sequence[object], now: Sequence[object]) -> int:
    """How many messages at the beginning were there before."""
    pairs = enumerate(zip(before, now, strict=False))
    return next(
        (place for place, (one, other) in pairs if one != other), min(len(before), len(now))
    )


def _role(message: object) -> object:
    return message.get("role") if isinstance(message, dict) else None


def _message(message: object) -> Iterator[Piece]:
    if isinstance(message, dict):
        who = "cclsearch" if _role(message) == "user" else "model, earlier"
        for kind, text in _contents(message.get("content")):
            yield _piece(who, kind, text)


def _answer(text: str, status: int | None) -> Iterator[Piece]:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    contents = _contents(body.get("content")) if isinstance(body, dict) else []
    if status == 200 and contents:
        for kind, told in contents:
            yield _piece("model", kind, told)
        return
    how = "no answer" if status is None else f"HTTP {status}"
    yield _piece("provider", how, text)


def _contents(content: object) -> list[tuple[str, str]]:
    """The kind and the text of every block; a plain text is one."""
    if isinstance(content, str):
        return [("text", content)]
    return [found for block in _list(content) for found in _block(block)]


def _block(block: object) -> Iterator[tuple[str, str]]:
    if not isinstance(block, dict):
        return
    match block.get("type"):
        case "text":
            yield "text", _text(block.get("text"))
        case "thinking":
            yield "thoughts", _text(block.get("thinking"))
        case "tool_use":
            yield from _submission(block.get("input"))
        case "tool_result":
            told = "\n".join(text for _, text in _contents(block.get("content")))
            yield "result", told
        case kind:
            yield str(kind)[:40], _text(block)


def _submission(given: object) -> Iterator[tuple[str, str]]:
    """What the model submits: its words, then the program."""
    if not isinstance(given, dict):
        yield "submission", _text(given)
        return
    for name in sorted(given, key=lambda name: (name == "code", str(name))):
        yield (
            ("program" if name == "code" else str(name).replace("_", " ")[:40]),
            _text(given[name]),
        )


def _piece(who: str, kind: str, text: str) -> Piece:
    text = visible(text.encode("utf-8", "replace").decode())
    cut = text if len(text) <= MOST_CHARS else text[:MOST_CHARS] + CUT
    return Piece(who=who, kind=kind, text=cut)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []
