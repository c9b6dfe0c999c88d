"""Requests and replies of the Messages API, as values; opens no connection.

The prompt, the tools and the feedback on replies make up a request. A reply holds a policy or a
question, or a `Problem` says why not and which action may help.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from textwrap import dedent
from typing import TYPE_CHECKING

from records.llm_exchange import TokenUsage
from search.llm.tools import (
    MAX_CODE_BYTES,
    MOST_QUESTIONS,
    SUBMIT_ONLY,
    TOOL_NAME,
    Draft,
    Problem,
    Question,
    RetryAction,
    called,
    checked,
    question_names,
    speedup_of,
    submitted,
)
from search.settings import OFFLINE, LlmSettings

if TYPE_CHECKING:
    from anthropic.types import ContentBlockParam, MessageParam, TextBlockParam, ToolParam
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming


BYTES_PER_TOKEN = 2


def estimated_tokens(text: str) -> int:
    """Estimate an upper bound of tokens: bytes over 2; English has about 4 a token, code 3.

    Providers' tokenizers are not available offline. Rows of numbers had 2.6 bytes a token with a
    published tokenizer; finer tokenizers have fewer.
    """
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


_FENCE = re.compile(
    r"^(?P<indent>[ \t]*+)(?P<fence>`{3,}|~{3,})[ \t]*(?:python|py|python3)?[ \t]*\r?\n"
    r"(?P<code>.*?)"
    r"^(?P=indent)(?P=fence)[ \t]*\r?$",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
_SPEEDUP = re.compile(r"^\W*expected_speedup\W{1,6}(\d{1,9}(?:\.\d{1,9})?)x?\W*$", re.MULTILINE)
_ENTRY = re.compile(r"^def generate_config\b", re.MULTILINE)
_OBJECT = re.compile(r"^[ \t]*+(?:<tool_call>\s*+)?(?=\{)", re.MULTILINE)
MOST_OBJECTS = 8
"""Positions in a text that are searched for a tool call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block of a reply: text, a tool call, or thinking, which is sent back unchanged."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: object = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledTokens:
    """Token counts under the provider's names."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopDetails:
    """What the provider adds to a refusal."""

    category: str | None = None
    explanation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A message of the model, as far as it is read here."""

    content: tuple[Block, ...] | None = None
    stop_reason: str | None = None
    stop_details: StopDetails | None = None
    usage: BilledTokens | None = None

    @property
    def calls(self) -> tuple[Block, ...]:
        """The tool calls."""
        return tuple(block for block in self.content or () if block.type == "tool_use")

    @property
    def is_whole(self) -> bool:
        """Whether the reply is complete."""
        return self.stop_reason not in ("max_tokens", "refusal", "model_context_window_exceeded")

    @property
    def billed(self) -> TokenUsage:
        """Tokens of this reply; counts that the provider omits are 0."""
        billed = self.usage or BilledTokens()
        return TokenUsage(
            input_tokens=billed.input_tokens or 0,
            output_tokens=billed.output_tokens or 0,
            cache_read_tokens=billed.cache_read_input_tokens or 0,
            cache_write_tokens=billed.cache_creation_input_tokens or 0,
        )


def draft_of(reply: Reply) -> Draft | Question | Problem:
    """Return the policy in a reply, what the model asks before it, or why there is neither."""
    stopped = _stopped(reply)
    if stopped is not None:
        return stopped
    match reply.calls:
        case [call]:
            return called(call.name, call.input)
        case [_, *_] as calls:
            return Problem(words=f"the reply calls tools {len(calls)} times; call {TOOL_NAME} once")
    text = "\n".join(block.text or "" for block in reply.content or ())
    return _from_text(text, reply.stop_reason)


def _stopped(reply: Reply) -> Problem | None:
    """Return why the reply is incomplete, if it says so."""
    details = reply.stop_details or StopDetails()
    more = "; ".join(filter(None, (details.category, details.explanation)))
    why = f" ({more})" if more else ""
    match reply.stop_reason:
        case "max_tokens":
            words = "the reply was cut at the limit of output tokens; answer with a shorter one"
            return Problem(words=words, action=RetryAction.LONGER_REPLY)
        case "refusal":
            return Problem(words=f"the model refused to answer{why}", action=RetryAction.TIME)
        case "model_context_window_exceeded":
            words = f"the conversation is longer than the model can hold{why}"
            return Problem(words=words, action=RetryAction.PROMPT)
    return None


def _from_text(text: str, stop_reason: str | None) -> Draft | Problem:
    fenced = [
        (m.start(), dedent(m["code"]) if m["indent"] else m["code"]) for m in _FENCE.finditer(text)
    ]
    policies = [(start, code) for start, code in fenced if _ENTRY.search(code)]
    if not policies:
        call = _written_call(text)
        none = Problem(words=f"the reply (stop reason {stop_reason}) holds no policy")
        return none if call is None else submitted(call)
    words = text[: policies[0][0]].strip()
    speedup = speedup_of(stated[-1]) if (stated := _SPEEDUP.findall(words)) else None
    if isinstance(speedup, Problem):
        return speedup
    code = policies[-1][1]
    rationale = _SPEEDUP.sub("", words).strip()
    if any(other != code for _, other in policies):
        rationale = f"(the last of {len(policies)} policies in one reply) {rationale}".strip()
    return checked(Draft(code=code, rationale=rationale, expected_speedup=speedup))


def _written_call(text: str) -> Mapping[str, object] | None:
    """Find a tool call that the model wrote as JSON text, as local models often do."""
    decoder = json.JSONDecoder()
    for place in islice(_OBJECT.finditer(text), MOST_OBJECTS):
        try:
            given, _ = decoder.raw_decode(text, place.end())
            found = _call_input(given)
        except (ValueError, RecursionError):
            continue
        if found is not None:
            return found
    return None


def _call_input(given: object) -> Mapping[str, object] | None:
    """Return the input of such a call, under any of its usual names."""
    if not isinstance(given, dict):
        return None
    match given:
        case {"function": dict(inner)}:
            return _call_input(inner)
        case (
            {"name": "submit_policy", "arguments": inner}
            | {"name": "submit_policy", "input": inner}
            | {"name": "submit_policy", "parameters": inner}
        ):
            inner = json.loads(inner) if isinstance(inner, str) else inner
            return inner if isinstance(inner, dict) else None
        case {"code": str(), "rationale": _}:
            return given
    return None


SHOWN_CHARS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """A reply and our answer: why it is rejected, or what it asked.

    A reply without blocks is not sent back.
    """

    blocks: Sequence[Block]
    words: str
    is_answer: bool = False

    def reply(self) -> "list[ContentBlockParam]":
        """Return the reply unchanged; providers require it before the tool result."""
        if not all(block.id for block in self.calls):
            return []
        params = [param for block in self.blocks for param in _param(block)]
        # Thinking alone is not a message.
        return params if any(param["type"] in {"text", "tool_use"} for param in params) else []

    def answer(self, how: str, *, is_shown: bool) -> "list[ContentBlockParam]":
        """Return our answer, as the result of each tool call if those are sent back."""
        words = self.words if self.is_answer else f"Rejected: {self.words}\n{how}"
        if not self.calls or not is_shown:
            return [{"type": "text", "text": words}]
        return [
            {
                "type": "tool_result",
                "tool_use_id": block.id or "",
                "is_error": not self.is_answer,
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
    """Return the input of a tool call; providers accept only an object."""
    if not isinstance(given, Mapping):
        return {}
    return {str(name): _sendable(value) for name, value in given.items()}


def _sendable(value: object) -> object:
    """Return a value with all of its texts bounded."""
    match value:
        case str():
            return _bounded(value)
        case list():
            return [_sendable(each) for each in value]
        case dict():
            return {name: _sendable(each) for name, each in value.items()}
    return value


def _bounded(text: str) -> str:
    """Return a text that can be sent back: without null bytes, and cut where it is too long."""
    text = text.replace("\0", "\N{SYMBOL FOR NULL}")
    return text if len(text.encode()) <= MAX_CODE_BYTES else f"{text[:SHOWN_CHARS]} ... (cut)"


_BY_TOOL = f"Submit one complete policy by calling the tool {TOOL_NAME} exactly once."
_BY_TEXT = (
    "Answer with at most three sentences of rationale, then a line such as `expected_speedup: 1.2` "
    "(the expected speedup over the best so far), then one complete policy in a single fenced code "
    "block that starts with ```python."
)


class Form(StrEnum):
    """How the model submits a policy: with a tool, which is never forced, or as text.

    Newer models reject a request that forces a tool; older ones call it when the prompt asks.
    """

    AUTO = "auto"
    TEXT = "text"

    @property
    def words(self) -> str:
        """The instruction for the model."""
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
    feedback: Sequence[Feedback] = (),
    *,
    settings: LlmSettings,
    max_tokens: int,
    tools: "Sequence[ToolParam]" = SUBMIT_ONLY,
) -> "MessageCreateParamsNonStreaming":
    """Body of one Messages request, its unchanging part first and marked for caching.

    `feedback` holds the earlier replies to this prompt with our answers, oldest first. `tools` are
    offered unless the form is text.
    """
    system: list[TextBlockParam] = [
        {"type": "text", "text": prompt.system},
        # An hour, because one trial often takes longer than the default of five minutes.
        {"type": "text", "text": prompt.task, "cache_control": {"type": "ephemeral", "ttl": "1h"}},
    ]
    before = _before(tools) if form is Form.AUTO else ""
    body: MessageCreateParamsNonStreaming = {
        "model": settings.model,
        "max_tokens": max_tokens,
        "system": system,
        "messages": _messages(f"{prompt.turn}\n{before}{form.words}", form, feedback),
    }
    if settings.effort is not None:
        body["output_config"] = {"effort": settings.effort}
    if settings.thinking_tokens is not None:
        body["thinking"] = {"type": "enabled", "budget_tokens": settings.thinking_tokens}
    if form is Form.AUTO:
        body["tools"] = list(tools)
        body["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": True}
    return body


def _before(tools: "Sequence[ToolParam]") -> str:
    """Return how often the model may ask before it submits a policy."""
    names = " and ".join(question_names(tools))
    if not names:
        return ""
    return f"You may first call {names}, at most {MOST_QUESTIONS} times in this turn. "


def _messages(question: str, form: Form, feedback: Sequence[Feedback]) -> "list[MessageParam]":
    """Return the question, then each reply and its feedback; user and assistant alternate."""
    messages: list[MessageParam] = []
    content: list[ContentBlockParam] = [{"type": "text", "text": question}]
    for each in feedback:
        # A call of a tool cannot be repeated in a request that offers none.
        is_shown = form is Form.AUTO or not each.calls
        reply = each.reply() if is_shown else []
        if reply:
            messages.append({"role": "user", "content": content})
            messages.append({"role": "assistant", "content": reply})
            content = []
        content = [*content, *each.answer(form.words, is_shown=bool(reply))]
    return [*messages, {"role": "user", "content": content}]


_PASSING_STATUSES = frozenset({408, 409, 429})
MAX_WAIT_S = 60.0
"""The longest wait before one more attempt in the same turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An HTTP status and body; without a status, what the provider did, as in `broke off`."""

    text: str
    status: int | None = None
    retry_advice: bool | None = None
    retry_after_s: float | None = None

    @property
    def long_wait_s(self) -> float | None:
        """The wait that the provider asks for, if it is longer than a turn may wait."""
        wait_s = self.retry_after_s
        return wait_s if wait_s is not None and wait_s > MAX_WAIT_S else None

    @property
    def passing(self) -> bool:
        """Whether the fault is temporary, not one of the request or the account."""
        return self.status is None or self.status in _PASSING_STATUSES or self.status >= 500

    @property
    def worth_retrying(self) -> bool:
        """Whether to retry in this turn: the provider's advice, else by the fault."""
        if self.long_wait_s is not None:
            return False
        return self.passing if self.retry_advice is None else self.retry_advice


MAX_FAULT_CHARS = 300
_TOO_LONG = re.compile(
    r"\b(prompt|input|request|conversation)\b.{0,60}\btoo (long|large)\b"
    r"|\bcontext (window|length|limit)\b|\bmaximum context\b",
    re.IGNORECASE,
)


_NO_CREDIT = re.compile(
    r"\bcredit balance\b|\bbilling\b|\binsufficient (funds|credit)", re.IGNORECASE
)
_START_CHARS = 60


def cut_for_good(max_tokens: int) -> Problem:
    """Return the problem of a reply cut at the largest output limit."""
    words = (
        f"the reply was cut at the limit of {max_tokens} output tokens: "
        "raise [llm] most_output_tokens or lower [llm] effort"
    )
    return Problem(words=words, action=RetryAction.TIME)


def no_message(text: str, settings: LlmSettings) -> Problem:
    """Return the problem of a response that is not a message although its status is 200."""
    start = " ".join(text[: 10 * _START_CHARS].split())[:_START_CHARS]
    words = f"{settings.url} answered 200 without a message of the Messages API: {start!r}..."
    if start.startswith("<"):
        words += ", a web page: check ANTHROPIC_BASE_URL"
    return Problem(words=words, action=RetryAction.TIME)


def refuses_tool(answer: Answer) -> bool:
    """Whether a request was rejected for its tool, which some servers do not support."""
    return (
        answer.status in {400, 422}
        and "tool" in answer.text.lower()
        and not _TOO_LONG.search(_message_of(answer.text))
    )


def fault_of(answer: Answer, settings: LlmSettings, *, was_answered: bool) -> Problem:
    """Return the problem of a failed request.

    `was_answered` says whether the model replied earlier in this conversation.
    """
    host, model, message = settings.host, settings.model, _message_of(answer.text)
    if answer.status is None:
        return Problem(words=f"{host} {message}", action=RetryAction.TIME)
    if answer.status == 413 or (answer.status == 400 and _TOO_LONG.search(message)):
        words = f"the prompt is too long for {model!r} at {host} ({answer.status}: {message})"
        return Problem(words=words, action=RetryAction.PROMPT)
    if answer.passing:
        words = f"{host} is overloaded or unavailable ({answer.status}): {message}"
        wait_s = answer.long_wait_s
        if wait_s is not None:
            words = f"{host} asks to wait {wait_s:.0f} s ({answer.status}): {message}"
        return Problem(words=words, action=RetryAction.TIME, wait_s=wait_s)
    if was_answered and answer.status in {400, 422}:
        # The same settings worked a moment ago, so the feedback is at fault.
        words = f"{host} rejected the feedback on a reply ({answer.status}: {message})"
        return Problem(words=words, action=RetryAction.TIME)
    return Problem(
        words=f"{_lasting(answer.status, message, settings)}, {OFFLINE}", action=RetryAction.USER
    )


def _lasting(status: int, message: str, settings: LlmSettings) -> str:
    host, model, variable = settings.host, settings.model, settings.api_key.variable
    match status:
        case 401:
            return f"the key in {variable} was rejected (401) by {host}: set a valid key and resume"
        case 403:
            return (
                f"the key in {variable} may not use {model!r} (403) at {host}: "
                "set another key or model"
            )
        case 404:
            return (
                f"{host} has no model {model!r} or no Messages API there (404): "
                "correct the model or the base URL"
            )
    if status == 402 or (status == 400 and _NO_CREDIT.search(message)):
        return (
            f"the account at {host} has no credit left ({status}: {message}): "
            "add credit under its billing settings and resume"
        )
    return (
        f"{host} rejected the request for {model!r} ({status}: {message}): correct [llm] settings"
    )


def _message_of(text: str) -> str:
    """Return the provider's message in one line, from its error object if it sent one."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    match body:
        case {"error": {"message": str(message)}}:
            text = message
    line = " ".join(text.split())
    return line if len(line) <= MAX_FAULT_CHARS else f"{line[:MAX_FAULT_CHARS]}..."


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
"""The HTTP status that an error inside a stream stands for."""
_LINE_END = re.compile(r"\r\n|\n|\r")
_PIECES = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}


def streamed_answer(stream: str) -> Answer:
    """Return the answer that a complete event stream of the Messages API stands for."""
    message: dict[str, object] = {}
    usage: dict[str, object] = {}
    blocks: dict[int, dict[str, object]] = {}
    for event in _events(stream):
        match event:
            case {"type": "error", "error": error}:
                kind = error.get("type") if isinstance(error, dict) else None
                return Answer(status=_STATUSES.get(str(kind), 500), text=json.dumps(event))
            case {"type": "message_stop"}:
                content = [_whole_block(blocks[index]) for index in sorted(blocks)]
                whole = {**message, "content": content, "usage": usage}
                return Answer(status=200, text=json.dumps(whole))
            case {"type": "message_start", "message": dict(fields)}:
                message |= fields
                usage |= _counts(fields.get("usage"))
            case {"type": "message_delta", "delta": dict(fields), **rest}:
                message |= fields
                usage |= _counts(rest.get("usage"))
            case {"type": "content_block_start", "index": int(index), "content_block": dict(block)}:
                blocks[index] = dict(block)
            case {"type": "content_block_delta", "index": int(index), "delta": dict(delta)}:
                block = blocks.setdefault(index, {"type": "text", "text": ""})
                name = _PIECES.get(str(delta.get("type")))
                if name is not None:
                    block[name] = f"{block.get(name) or ''}{delta.get(name) or ''}"
    return Answer(text="broke off: the stream of the reply ended before the reply did")


def _counts(usage: object) -> dict[str, object]:
    """Return the known token counts; later ones include earlier ones."""
    if not isinstance(usage, dict):
        return {}
    return {name: count for name, count in usage.items() if count is not None}


def _events(stream: str) -> Iterator[Mapping[str, object]]:
    """Yield every event that is an object; other lines carry nothing."""
    for line in _LINE_END.split(stream):
        if not line.startswith("data:"):
            continue
        try:
            event = json.loads(line.removeprefix("data:"))
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            yield event


def _whole_block(block: dict[str, object]) -> dict[str, object]:
    """Return a block with its input as a value, or as text if it is not JSON, as in a cut reply."""
    text = block.pop("partial_json", None)
    if isinstance(text, str):
        try:
            block["input"] = json.loads(text or "{}")
        except (ValueError, RecursionError):
            block["input"] = text
    return block
