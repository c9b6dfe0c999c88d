"""A reply that came in pieces, put together to the message that it would have been in one.

Knows nothing of sockets: it is given all that came.
"""

import json
import re
from collections.abc import Iterator, Mapping

from search.llm.answer import Answer

_STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""What an error within a reply would have had for a status in its place."""
_LINE_END = re.compile(r"\r\n|\n|\r")
_TEXTS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


def streamed_answer(stream: str) -> Answer:
    """The answer that a whole event stream of the Messages API stands for."""
    message = _Message()
    for event in _events(stream):
        match event:
            case {"type": "error", "error": error}:
                kind = error.get("type") if isinstance(error, dict) else None
                return Answer(status=_STATUSES.get(str(kind), 500), text=json.dumps(event))
            case {"type": "message_stop"}:
                return Answer(status=200, text=json.dumps(message.whole()))
        message.add(event)
    return Answer(text="broke off: the stream of the reply ended before the reply did")


def _events(stream: str) -> Iterator[Mapping[str, object]]:
    """Every event that is an object; a line without `data:` says nothing that they do not."""
    for line in _LINE_END.split(stream):
        if not line.startswith("data:"):
            continue
        try:
            event = json.loads(line.removeprefix("data:"))
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            yield event


class _Message:
    """Grows by one event at a time."""

    def __init__(self) -> None:
        self._fields: dict[str, object] = {}
        self._usage: dict[str, object] = {}
        self._blocks: dict[int, dict[str, object]] = {}
        self._inputs: dict[int, list[str]] = {}

    def add(self, event: Mapping[str, object]) -> None:
        """Take in what an event adds; what it does not understand it leaves out."""
        match event:
            case {"type": "message_start", "message": dict(fields)}:
                self._fields |= fields
                self._add_usage(fields.get("usage"))
            case {"type": "content_block_start", "index": int(index), "content_block": dict(block)}:
                self._blocks[index] = dict(block)
            case {"type": "content_block_delta", "index": int(index), "delta": dict(delta)}:
                self._add_piece(index, delta)
            case {"type": "message_delta", "delta": dict(fields), **rest}:
                self._fields |= fields
                self._add_usage(rest.get("usage"))

    def whole(self) -> dict[str, object]:
        """The message, once nothing more comes."""
        for index, pieces in self._inputs.items():
            self._blocks[index]["input"] = _input("".join(pieces))
        content = [self._blocks[index] for index in sorted(self._blocks)]
        return {**self._fields, "content": content, "usage": self._usage}

    def _add_usage(self, usage: object) -> None:
        """Later counts take the place of earlier ones: they include them."""
        if isinstance(usage, dict):
            self._usage |= {name: count for name, count in usage.items() if count is not None}

    def _add_piece(self, index: int, delta: Mapping[str, object]) -> None:
        block = self._blocks.setdefault(index, {"type": "text", "text": ""})
        match delta:
            case {"type": "input_json_delta", "partial_json": str(piece)}:
                self._inputs.setdefault(index, []).append(piece)
            case {"type": str(kind)} if kind in _TEXTS:
                name = _TEXTS[kind]
                block[name] = f"{block.get(name) or ''}{delta.get(name) or ''}"


def _input(text: str) -> object:
    """What a tool was called with; as it came where that is no JSON, as in a reply that was cut."""
    try:
        given: object = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    return given
