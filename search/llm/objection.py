"""What the model is told about a reply of its own that could not be taken."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from search.llm.reply import MAX_CODE_BYTES, Block

if TYPE_CHECKING:
    from anthropic.types import ContentBlockParam

SHOWN_CHARS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """A reply and what is wrong with it; a reply without blocks is not shown to the model again."""

    blocks: Sequence[Block]
    words: str

    def reply(self) -> "list[ContentBlockParam]":
        """The reply as the model gave it, which providers want to see before the answer to it."""
        if not all(block.id for block in self.calls):
            return []
        told = [param for block in self.blocks for param in _param(block)]
        # Thoughts alone are no message.
        return told if any(param["type"] in {"text", "tool_use"} for param in told) else []

    def answer(self, how: str, *, is_shown: bool) -> "list[ContentBlockParam]":
        """What is wrong, as the result of each call of a tool where those are shown again."""
        words = f"Not accepted: {self.words}\n{how}"
        if not self.calls or not is_shown:
            return [{"type": "text", "text": words}]
        return [
            {
                "type": "tool_result",
                "tool_use_id": block.id or "",
                "is_error": True,
                "content": words,
            }
            for block in self.calls
        ]

    @property
    def calls(self) -> list[Block]:
        """The uses of a tool in the reply."""
        return [block for block in self.blocks if block.type == "tool_use"]


def _param(block: Block) -> "list[ContentBlockParam]":
    """One block as it is sent back, or none where a provider would refuse it."""
    match block:
        case Block(type="text", text=str(text)) if text.strip():
            return [{"type": "text", "text": _bounded(text)}]
        case Block(type="thinking", thinking=str(thinking), signature=str(signature)):
            return [{"type": "thinking", "thinking": thinking, "signature": signature}]
        case Block(type="redacted_thinking", data=str(data)):
            return [{"type": "redacted_thinking", "data": data}]
        case Block(type="tool_use", id=str(call), name=str(name)):
            return [{"type": "tool_use", "id": call, "name": name, "input": _input(block.input)}]
    return []


def _input(given: object) -> dict[str, object]:
    """What a tool was called with; anything but an object is refused when it is sent back."""
    if not isinstance(given, Mapping):
        return {}
    return {
        str(name): _bounded(value) if isinstance(value, str) else value
        for name, value in given.items()
    }


def _bounded(text: str) -> str:
    """A text that can be sent again: no null bytes, and the start of one that is too long."""
    text = text.replace("\0", "\N{SYMBOL FOR NULL}")
    return text if len(text.encode()) <= MAX_CODE_BYTES else f"{text[:SHOWN_CHARS]} ... (cut)"
