"""What a model said, and the policy in it or the reason why there is none."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from textwrap import dedent

from policies.sandbox import SandboxLimits
from records.errors import shown
from records.exchange import Usage
from search.llm.problem import Cure, Problem

TOOL_NAME = "submit_policy"
MAX_CODE_BYTES = SandboxLimits().source_bytes
LEAST_SPEEDUP, MOST_SPEEDUP = 0.01, 100.0
"""Bounds of what may be expected of a policy, against the best so far."""

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
"""Places in a text at which a call of the tool is looked for."""


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
    def calls(self) -> tuple[Block, ...]:
        """The uses of a tool."""
        return tuple(block for block in self.content or () if block.type == "tool_use")

    @property
    def is_whole(self) -> bool:
        """Whether the model said all that it wanted to."""
        return self.stop_reason not in {
            "max_tokens",
            "refusal",
            "model_context_window_exceeded",
        }

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
    """A policy as the model submitted it; one in plain text may not say what is expected of it."""

    code: str
    rationale: str = ""
    expected_speedup: float | None = None


def drafted(reply: Reply) -> Draft | Problem:
    """The policy in a reply, or why there is none."""
    stopped = _stopped(reply)
    if stopped is not None:
        return stopped
    used = reply.calls
    if len(used) > 1:
        return _wrong(f"the reply calls tools {len(used)} times; call {TOOL_NAME} once")
    if used and used[0].name != TOOL_NAME:
        return _wrong(f"the model called {used[0].name!r} instead of {TOOL_NAME}")
    if used:
        return _from_tool(used[0].input)
    text = "\n".join(block.text or "" for block in reply.content or ())
    return _from_text(text, reply.stop_reason)


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
            speedup = _speedup(rest.get("expected_speedup"))
            if isinstance(speedup, Problem):
                return speedup
            return _checked(
                Draft(
                    code=code,
                    rationale=_text(rest.get("rationale")),
                    expected_speedup=speedup,
                )
            )
        case {"code": code}:
            return _wrong(f"the submitted code is of type {type(code).__name__}, not text")
        case dict():
            return _wrong("the submission has no code")
    return _wrong(f"the submission is of type {type(given).__name__}, not an object")


def _from_text(text: str, stop_reason: str | None) -> Draft | Problem:
    fenced = [
        (m.start(), dedent(m["code"]) if m["indent"] else m["code"]) for m in _FENCE.finditer(text)
    ]
    policies = [(start, code) for start, code in fenced if _ENTRY.search(code)]
    if not policies:
        call = _written_call(text)
        none = _wrong(f"the reply (stop reason {stop_reason}) holds no policy")
        return none if call is None else _from_tool(call)
    words = text[: policies[0][0]].strip()
    speedup = _speedup(stated[-1]) if (stated := _SPEEDUP.findall(words)) else None
    if isinstance(speedup, Problem):
        return speedup
    code = policies[-1][1]
    rationale = _SPEEDUP.sub("", words).strip()
    if any(other != code for _, other in policies):
        rationale = f"(the last of {len(policies)} policies in one reply) {rationale}".strip()
    return _checked(Draft(code=code, rationale=rationale, expected_speedup=speedup))


def _written_call(text: str) -> Mapping[str, object] | None:
    """The input of a call of the tool that a model wrote as JSON text; local ones often do."""
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
    """The input in a written call, whichever word a model has for it."""
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


def _speedup(given: object) -> float | Problem:
    """What is expected of a policy, which models also write as text."""
    how = (
        f"give a number from {LEAST_SPEEDUP:g} to {MOST_SPEEDUP:g}: how many times as good as the "
        "best so far this will be, 1.2 for 1.2 times as fast"
    )
    if given is None:
        return _wrong(f"expected_speedup is missing; {how}")
    try:
        number = float(given) if isinstance(given, str | int | float) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if isinstance(given, bool) or not LEAST_SPEEDUP <= number <= MOST_SPEEDUP:
        return _wrong(f"expected_speedup is {shown(given)}; {how}")
    return number


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
