"""What is sent to the model: the prompt, the tool it submits with, the forms of asking."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from search.llm.objection import Objection
from search.llm.reply import LEAST_SPEEDUP, MOST_SPEEDUP, TOOL_NAME
from search.llm.settings import LlmSettings

if TYPE_CHECKING:
    from anthropic.types import ContentBlockParam, MessageParam, TextBlockParam, ToolParam
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming

_TOOL: "ToolParam" = {
    "name": TOOL_NAME,
    "description": "Submit the whole policy: it is checked, then launched and measured.",
    "input_schema": {
        "type": "object",
        "properties": {
            "rationale": {
                "type": "string",
                "description": (
                    "Why this configuration, in at most three sentences: what takes the time now, "
                    "and what this changes about it."
                ),
            },
            "expected_speedup": {
                "type": "number",
                "minimum": LEAST_SPEEDUP,
                "maximum": MOST_SPEEDUP,
                "description": (
                    "How many times as good as the best so far it will be: 1.2 is 1.2 times as "
                    "fast, 0.9 is slower. Later turns show it beside what was measured. 1 while "
                    "nothing was measured."
                ),
            },
            "code": {
                "type": "string",
                "description": "Complete Python module that defines generate_config.",
            },
        },
        "required": ["rationale", "expected_speedup", "code"],
    },
}

_BY_TOOL = f"Submit one complete policy by calling the tool {TOOL_NAME} exactly once."
_BY_TEXT = (
    "Answer with at most three sentences that say why, then a line such as `expected_speedup: 1.2` "
    "(how many times as good as the best so far it will be), then one complete policy in a single "
    "fenced code block that opens with ```python."
)


class Form(StrEnum):
    """How a policy is asked for: by a tool, which is never forced, or in the text of the reply.

    Newer models refuse a request that forces a tool, and older ones call it when asked in words.
    """

    AUTO = "auto"
    TEXT = "text"

    @property
    def words(self) -> str:
        """How to answer, in words for the model."""
        return _BY_TEXT if self is Form.TEXT else _BY_TOOL


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What the model reads: `system` and `task` stay the same in a study, `turn` does not."""

    system: str
    task: str
    turn: str


def message_request(
    prompt: Prompt,
    form: Form,
    objections: Sequence[Objection] = (),
    *,
    settings: LlmSettings,
    max_tokens: int,
) -> "MessageCreateParamsNonStreaming":
    """Body of one Messages request, its unchanging part first and marked for caching.

    `objections` are what was said against earlier replies to the prompt, oldest first.
    """
    system: list[TextBlockParam] = [
        {"type": "text", "text": prompt.system},
        # An hour, because one trial often takes longer than the default of five minutes.
        {
            "type": "text",
            "text": prompt.task,
            "cache_control": {"type": "ephemeral", "ttl": "1h"},
        },
    ]
    body: MessageCreateParamsNonStreaming = {
        "model": settings.model,
        "max_tokens": max_tokens,
        "system": system,
        "messages": _messages(f"{prompt.turn}\n{form.words}", form, objections),
    }
    if settings.effort is not None:
        body["output_config"] = {"effort": settings.effort}
    if settings.thinking_tokens is not None:
        body["thinking"] = {"type": "enabled", "budget_tokens": settings.thinking_tokens}
    if form is Form.AUTO:
        body["tools"] = [_TOOL]
        body["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": True}
    return body


def _messages(question: str, form: Form, objections: Sequence[Objection]) -> "list[MessageParam]":
    """The question and, for each reply, what is wrong with it; users and model take turns."""
    messages: list[MessageParam] = []
    told: list[ContentBlockParam] = [{"type": "text", "text": question}]
    for objection in objections:
        # A call of a tool cannot be repeated in a request that offers none.
        is_shown = form is Form.AUTO or not objection.calls
        reply = objection.reply() if is_shown else []
        if reply:
            messages.append({"role": "user", "content": told})
            messages.append({"role": "assistant", "content": reply})
            told = []
        told = [*told, *objection.answer(form.words, is_shown=bool(reply))]
    return [*messages, {"role": "user", "content": told}]
