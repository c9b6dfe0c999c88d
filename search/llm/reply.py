"""What a model said, and the policy in it or the reason why there is none."""

import re
from dataclasses import dataclass

from records.exchange import Usage
from search.llm.request import TOOL_NAME

_FENCE = re.compile(
    r"^(?P<fence>`{3,}|~{3,})[ \t]*(?:python|py|python3)?[ \t]*\r?\n"
    r"(?P<code>.*?)"
    r"^(?P=fence)[ \t]*\r?$",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
_ENTRY = re.compile(r"^def generate_config\b", re.MULTILINE)

_STOPPED = {
    "refusal": "the model refused to answer",
    "model_context_window_exceeded": "the conversation is longer than the model can hold",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One piece of a reply: text, or the use of a tool."""

    type: str
    text: str | None = None
    name: str | None = None
    input: object = None


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


def drafted(reply: Reply) -> Draft | str:
    """The policy in a reply, or one line that says why there is none."""
    blocks = reply.content or ()
    match reply.stop_reason:
        case "max_tokens":
            return "the reply was cut at the limit of output tokens"
        case "refusal" | "model_context_window_exceeded" as stop:
            details = reply.stop_details or StopDetails()
            more = "; ".join(filter(None, (details.category, details.explanation)))
            return f"{_STOPPED[stop]}{f' ({more})' if more else ''}"
    used = [block for block in blocks if block.type == "tool_use"]
    submitted = next((block for block in used if block.name == TOOL_NAME), None)
    if submitted is not None:
        return _from_tool(submitted.input)
    if used:
        return f"the model called {used[0].name!r} instead of {TOOL_NAME}"
    return _from_text("\n".join(block.text or "" for block in blocks), reply.stop_reason)


def _from_tool(given: object) -> Draft | str:
    match given:
        case {"code": str(code), **rest} if code.strip():
            return Draft(
                code=code,
                rationale=_text(rest.get("rationale")),
                expected_effect=_text(rest.get("expected_effect")),
            )
        case {"code": str()}:
            return "the submitted code is empty"
        case {"code": code}:
            return f"the submitted code is of type {type(code).__name__}, not text"
        case dict():
            return "the submission has no code"
    return f"the submission is of type {type(given).__name__}, not an object"


def _from_text(text: str, stop_reason: str | None) -> Draft | str:
    fenced = [m for m in _FENCE.finditer(text) if _ENTRY.search(m["code"])]
    if not fenced:
        return f"the reply (stop reason {stop_reason}) holds no policy"
    last = fenced[-1]
    return Draft(code=last["code"], rationale=text[: fenced[0].start()].strip())


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""
