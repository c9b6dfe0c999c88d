"""What is sent to the model: the prompt, the tool it submits with, the forms of asking."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from search.llm.objection import Objection
from search.llm.reply import TOOL_NAME

if TYPE_CHECKING:
    from anthropic.types import ContentBlockParam, MessageParam, TextBlockParam, ToolParam
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming

_TOOL: "ToolParam" = {
    "name": TOOL_NAME,
    "description": "Submit the whole policy: it is checked, then launched and measured.",
    "input_schema": {
        "type": "object",
        "properties": {
            "code": {
                "type": "string",
                "description": "Complete Python module that defines generate_config.",
            },
            "rationale": {
                "type": "string",
                "description": "Why this configuration, in at most three sentences.",
            },
            "expected_effect": {
                "type": "string",
                "description": "What should change against the best trial, and by how much.",
            },
        },
        "required": ["code", "rationale", "expected_effect"],
    },
}

_BY_TOOL = f"Submit one complete policy by calling the tool {TOOL_NAME} exactly once."
_BY_TEXT = (
    "Answer with one complete policy in a single fenced code block that opens with ```python, "
    "after at most three sentences that say why."
)


class Form(StrEnum):
    """How a policy is asked for, from the firmest to the one every model takes."""

    FORCED = "forced"
    AUTO = "auto"
    TEXT = "text"

    @property
    def weaker(self) -> "Form | None":
        """The form to use when a model refuses this one."""
        return {Form.FORCED: Form.AUTO, Form.AUTO: Form.TEXT}.get(self)

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
    model: str,
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
        "model": model,
        "max_tokens": max_tokens,
        "system": system,
        "messages": _messages(f"{prompt.turn}\n{form.words}", form, objections),
    }
    if form is not Form.TEXT:
        body["tools"] = [_TOOL]
        body["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": True}
    if form is Form.FORCED:
        body["tool_choice"] = {
            "type": "tool",
            "name": TOOL_NAME,
            "disable_parallel_tool_use": True,
        }
    return body


def _messages(question: str, form: Form, objections: Sequence[Objection]) -> "list[MessageParam]":
    """The question and, for each reply, what is wrong with it; users and model take turns."""
    messages: list[MessageParam] = []
    told: list[ContentBlockParam] = [{"type": "text", "text": question}]
    for objection in objections:
        reply = objection.reply()
        if reply:
            messages.append({"role": "user", "content": told})
            messages.append({"role": "assistant", "content": reply})
            told = []
        told = [*told, *objection.answer(form.words)]
    return [*messages, {"role": "user", "content": told}]
