"""What a model said, and the policy in it or the reason why there is none."""

import re
from dataclasses import dataclass

from policies.sandbox import SandboxLimits
from records.exchange import Usage
from search.llm.problem import Cure, Problem

TOOL_NAME = "submit_policy"
MAX_CODE_BYTES = SandboxLimits().source_bytes

_FENCE = re.compile(
    r"^(?P<fence>`{3,}|~{3,})[ \t]*(?:python|py|python3)?[ \t]*\r?\n"
    r"(?P<code>.*?)"
    r"^(?P=fence)[ \t]*\r?$",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
_ENTRY = re.compile(r"^def generate_config\b", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One piece of a reply: text, the use of a tool, or a thought, which goes back as it came."""

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
    """Token counts as the provider words them."""

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
    def billed(self) -> Usage:
        """Tokens of this reply; what the provider does not say counts as none."""
        said = self.usage or BilledTokens()
        return Usage(
            input_tokens=said.input_tokens or 0,
            output_tokens=said.output_tokens or 0,
            cache_read_tokens=said.cache_read_input_tokens or 0,
            cache_write_tokens=said.cache_creation_input_tokens or 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A policy as the model submitted it."""

    code: str
    rationale: str = ""
    expected_effect: str = ""


def drafted(reply: Reply) -> Draft | Problem:
    """The policy in a reply, or why there is none."""
    stopped = _stopped(reply)
    if stopped is not None:
        return stopped
    blocks = reply.content or ()
    used = [block for block in blocks if block.type == "tool_use"]
    if len(used) > 1:
        return _wrong(f"the reply calls tools {len(used)} times; call {TOOL_NAME} once")
    if used and used[0].name != TOOL_NAME:
        return _wrong(f"the model called {used[0].name!r} instead of {TOOL_NAME}")
    if used:
        return _from_tool(used[0].input)
    return _from_text("\n".join(block.text or "" for block in blocks), reply.stop_reason)


def _stopped(reply: Reply) -> Problem | None:
    """Why the reply ended before its policy did, if it says so."""
    details = reply.stop_details or StopDetails()
    more = "; ".join(filter(None, (details.category, details.explanation)))
    why = f" ({more})" if more else ""
    match reply.stop_reason:
        case "max_tokens":
            words = "the reply was cut at the limit of output tokens; answer with a shorter one"
            return Problem(words=words, cure=Cure.ROOM)
        case "refusal":
            return Problem(words=f"the model refused to answer{why}", cure=Cure.TIME)
        case "model_context_window_exceeded":
            words = f"the conversation is longer than the model can hold{why}"
            return Problem(words=words, cure=Cure.PROMPT)
    return None


def _from_tool(given: object) -> Draft | Problem:
    match given:
        case {"code": str(code), **rest}:
            return _checked(
                Draft(
                    code=code,
                    rationale=_text(rest.get("rationale")),
                    expected_effect=_text(rest.get("expected_effect")),
                )
            )
        case {"code": code}:
            return _wrong(f"the submitted code is of type {type(code).__name__}, not text")
        case dict():
            return _wrong("the submission has no code")
    return _wrong(f"the submission is of type {type(given).__name__}, not an object")


def _from_text(text: str, stop_reason: str | None) -> Draft | Problem:
    fenced = [m for m in _FENCE.finditer(text) if _ENTRY.search(m["code"])]
    if not fenced:
        return _wrong(f"the reply (stop reason {stop_reason}) holds no policy")
    last = fenced[-1]
    return _checked(Draft(code=last["code"], rationale=text[: fenced[0].start()].strip()))


def _checked(draft: Draft) -> Draft | Problem:
    """The draft, unless no sandbox would read its code."""
    if not draft.code.strip():
        return _wrong("the submitted code is empty")
    if "\0" in draft.code:
        line = draft.code.count("\n", 0, draft.code.index("\0")) + 1
        return _wrong(f"the submitted code holds a null byte in line {line}")
    size_bytes = len(draft.code.encode())
    if size_bytes > MAX_CODE_BYTES:
        return _wrong(
            f"the submitted code is {size_bytes} bytes long; {MAX_CODE_BYTES} are the most"
        )
    return draft


def _wrong(words: str) -> Problem:
    return Problem(words=words, cure=Cure.REPLY)


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""
