"""The tools that a model is offered, and what its calls of them hold: a policy or a question."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from policies.sandbox import SandboxLimits
from records.codec import from_fields
from records.errors import CodecError, shown

if TYPE_CHECKING:
    from anthropic.types import ToolParam


class RetryAction(StrEnum):
    """What may still lead to a policy."""

    REPLY = "reply"
    """Ask again with the error as feedback."""
    LONGER_REPLY = "longer reply"
    """Ask for a shorter reply, or allow a longer one."""
    PROMPT = "prompt"
    """Send a shorter prompt."""
    TIME = "time"
    """Try in a later turn."""
    USER = "user"
    """Only the user can help: no later request of this run can succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is wrong, in one line, and what to do where only the user can act."""

    words: str
    action: RetryAction = RetryAction.REPLY
    wait_s: float | None = None
    """The wait that the provider asks for, where it is longer than a turn may wait."""


TOOL_NAME = "submit_policy"
ESTIMATE_NAME = "estimate"
TRACE_NAME = "trace"
MOST_QUESTIONS = 5
"""Calls of `estimate` and `trace` in one turn, together."""
MAX_CODE_BYTES = SandboxLimits().source_bytes
LEAST_SPEEDUP, MOST_SPEEDUP = 0.01, 100.0
"""Bounds of the expected speedup over the best so far."""
MEMO_CHARS = 600
MOST_ALTERNATIVES = 2
MOST_SURPRISE = 1.25
"""A speedup that is this many times above or below the expected one ends the alternatives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A policy as the model submitted it; one in plain text may lack the expected speedup.

    `alternatives` are what it would launch next, best first; they have none themselves. `memo` is
    what the model wants to read in its next turn.
    """

    code: str
    rationale: str = ""
    expected_speedup: float | None = None
    alternatives: tuple["Draft", ...] = ()
    memo: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateRequest:
    """Settings whose result the model wants to know before it submits a policy."""

    tool: ClassVar[str] = ESTIMATE_NAME
    configs: tuple[Mapping[str, object], ...]


class TraceTopic(StrEnum):
    """What the model may ask about the traces of a trial."""

    STEP = "step"
    COLLECTIVES = "collectives"
    STRAGGLERS = "stragglers"
    KERNELS = "kernels"
    OPERATORS = "operators"
    CRITICAL_PATH = "critical_path"
    WHAT_IF = "what_if"
    DIFFERENCE = "difference"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceQuestion:
    """A question about the traces of `trial`, and how they differ from those of `against`.

    A trial that is None is the best so far.
    """

    tool: ClassVar[str] = TRACE_NAME
    question: TraceTopic
    trial: int | None = None
    against: int | None = None


Question: TypeAlias = EstimateRequest | TraceQuestion


def called(name: str | None, given: object) -> Draft | Question | Problem:
    """Return what a call of a tool holds, or what is wrong with it."""
    if name == TOOL_NAME:
        return submitted(given)
    if name == ESTIMATE_NAME:
        return _estimate_request(given)
    if name == TRACE_NAME:
        return _trace_question(given)
    return Problem(words=f"the model called {name!r} instead of {TOOL_NAME}")


def _estimate_request(given: object) -> EstimateRequest | Problem:
    match given:
        case {"configs": [_, *_] as configs} if all(isinstance(each, dict) for each in configs):
            return EstimateRequest(configs=tuple(configs))
    return Problem(words=f"{ESTIMATE_NAME} takes configs, a list of objects of settings")


def _trace_question(given: object) -> TraceQuestion | Problem:
    try:
        return from_fields(TraceQuestion, given if isinstance(given, dict) else {})
    except CodecError:
        topics = ", ".join(TraceTopic)
        return Problem(
            words=f"{TRACE_NAME} takes question, one of {topics}; and trial and against, numbers "
            "of trials"
        )


def submitted(given: object) -> Draft | Problem:
    """Return the policy in a submission with its alternatives, or what is wrong with it."""
    first = _policy(given)
    if isinstance(first, Problem) or not isinstance(given, dict):
        return first
    listed, memo = given.get("alternatives") or [], given.get("memo")
    if not isinstance(listed, list) or len(listed) > MOST_ALTERNATIVES:
        return Problem(words=f"alternatives is not a list of up to {MOST_ALTERNATIVES} policies")
    others: list[Draft] = []
    for number, each in enumerate(listed, start=1):
        other = _policy(each)
        if isinstance(other, Problem):
            return Problem(words=f"alternative {number}: {other.words}")
        others.append(other)
    memo = memo if isinstance(memo, str) else ""
    return replace(first, alternatives=tuple(others), memo=memo)


def _policy(given: object) -> Draft | Problem:
    match given:
        case {"code": str(code), **rest}:
            speedup = speedup_of(rest.get("expected_speedup"))
            if isinstance(speedup, Problem):
                return speedup
            stated = rest.get("rationale")
            rationale = stated.strip() if isinstance(stated, str) else ""
            return checked(Draft(code=code, rationale=rationale, expected_speedup=speedup))
        case {"code": code}:
            return Problem(words=f"the submitted code is of type {type(code).__name__}, not text")
        case dict():
            return Problem(words="the submission has no code")
    return Problem(words=f"the submission is of type {type(given).__name__}, not an object")


def speedup_of(given: object) -> float | Problem:
    """Return the expected speedup, which models also write as text."""
    how = (
        f"give the speedup over the best so far, from {LEAST_SPEEDUP:g} to {MOST_SPEEDUP:g}: "
        "1.2 is 1.2 times as fast"
    )
    if given is None:
        return Problem(words=f"expected_speedup is missing; {how}")
    try:
        number = float(given) if isinstance(given, str | int | float) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if isinstance(given, bool) or not LEAST_SPEEDUP <= number <= MOST_SPEEDUP:
        return Problem(words=f"expected_speedup is {shown(given)}; {how}")
    return number


def checked(draft: Draft) -> Draft | Problem:
    """Return the draft, unless its code cannot run in the sandbox."""
    if not draft.code.strip():
        return Problem(words="the submitted code is empty")
    if "\0" in draft.code:
        line = draft.code.count("\n", 0, draft.code.index("\0")) + 1
        return Problem(words=f"the submitted code holds a null byte in line {line}")
    size_bytes = len(draft.code.encode())
    if size_bytes > MAX_CODE_BYTES:
        return Problem(
            words=f"the submitted code is {size_bytes} bytes long; the limit is {MAX_CODE_BYTES}"
        )
    return draft


_FIELDS: Mapping[str, object] = {
    "rationale": {
        "type": "string",
        "description": (
            "Why this configuration, in at most three sentences: what takes the time now, and how "
            "this changes it."
        ),
    },
    "expected_speedup": {
        "type": "number",
        "minimum": LEAST_SPEEDUP,
        "maximum": MOST_SPEEDUP,
        "description": (
            "Expected speedup over the best so far: 1.2 is 1.2 times as fast, 0.9 slower. "
            "Later turns compare it with the measurement. 1 while nothing is measured."
        ),
    },
    "code": {
        "type": "string",
        "description": "Complete Python module that defines generate_config.",
    },
}
_ALTERNATIVES: Mapping[str, object] = {
    "type": "array",
    "maxItems": MOST_ALTERNATIVES,
    "description": (
        f"Up to {MOST_ALTERNATIVES} more policies with other configurations, best first, which are "
        "launched in the next turns without asking you. All that are left are dropped once a "
        f"policy of this reply fails or is more than {MOST_SURPRISE:g} times as good or as bad as "
        "expected, or the next is no longer expected to beat the best. Leave it out where the next "
        "step depends on the result of this one."
    ),
    "items": {"type": "object", "properties": _FIELDS, "required": [*_FIELDS]},
}


_MEMO: Mapping[str, object] = {
    "type": "string",
    "maxLength": MEMO_CHARS,
    "description": (
        f"A note to yourself of at most {MEMO_CHARS} characters, shown in your next turn: what you "
        "believe and have ruled out. It replaces the last one, so repeat what still holds."
    ),
}


def _submit(*, alternatives: bool) -> "ToolParam":
    more = {"alternatives": _ALTERNATIVES} if alternatives else {}
    return {
        "name": TOOL_NAME,
        "description": "Submit the complete policy: it is checked, then launched and measured.",
        "input_schema": {
            "type": "object",
            "properties": {**_FIELDS, **more, "memo": _MEMO},
            "required": [*_FIELDS],
        },
    }


_ESTIMATE: "ToolParam" = {
    "name": ESTIMATE_NAME,
    "description": (
        "Ask what to expect of configurations before you submit one; nothing is launched. Of each "
        "you learn whether it is valid and new, its expected speedup over the best with the "
        "interval of an offline model that learns from the trials, its chance to run, its "
        "estimated memory, the largest parts of its step, and the nearest measured trial."
    ),
    "input_schema": {
        "type": "object",
        "properties": {
            "configs": {
                "type": "array",
                "description": "Up to 8 configurations. Knobs left out stay as in the best so far.",
                "items": {"type": "object"},
                "minItems": 1,
            }
        },
        "required": ["configs"],
    },
}

_TRACE: "ToolParam" = {
    "name": TRACE_NAME,
    "description": (
        "Ask about the traces of a measured trial; nothing is launched. "
        "step: its compute, exposed and hidden communication by kind and group, copies and idle "
        "time. "
        "collectives: sizes, counts, times, bandwidths and waiting. "
        "stragglers: which ranks the others wait for. "
        "kernels: the kernels or operators that take longest. "
        "operators: the phases, operators, modules and named ranges that take longest. "
        "critical_path: what the step would have to do faster. "
        "what_if: what links of twice the bandwidth, faster kernels or no straggler would save. "
        "difference: what changed in a step from trial `against` to trial `trial`."
    ),
    "input_schema": {
        "type": "object",
        "properties": {
            "question": {"type": "string", "enum": [*TraceTopic]},
            "trial": {
                "type": "integer",
                "description": "Number of the trial; the best so far if left out.",
            },
            "against": {
                "type": "integer",
                "description": "For difference: number of the other trial; the best if left out.",
            },
        },
        "required": ["question"],
    },
}


def offered_tools(
    *, estimates: bool = False, traces: bool = False, alternatives: bool = False
) -> "tuple[ToolParam, ...]":
    """Return the tools for questions that are offered, and the one that submits a policy."""
    questions = ((_ESTIMATE, estimates), (_TRACE, traces))
    submit = _submit(alternatives=alternatives)
    return (*(tool for tool, is_offered in questions if is_offered), submit)


SUBMIT_ONLY = offered_tools()


def question_names(tools: "Sequence[ToolParam]") -> tuple[str, ...]:
    """Return the names of the tools that ask questions."""
    return tuple(tool["name"] for tool in tools if tool["name"] != TOOL_NAME)
