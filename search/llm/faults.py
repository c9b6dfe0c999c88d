"""Requests that failed, as problems: in one line what, where, and what to do where a user must."""

import json
import re

from search.llm.answer import Answer
from search.llm.problem import Cure, Problem
from search.llm.settings import OFFLINE, LlmSettings

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
    """A reply that was cut although it had all the room there is."""
    words = (
        f"the reply was cut at {max_tokens} output tokens, the most that are allowed: "
        "raise [llm] most_output_tokens or lower [llm] effort"
    )
    return Problem(words=words, cure=Cure.TIME)


def no_message(text: str, settings: LlmSettings) -> Problem:
    """A reply that was no message, though its status was 200."""
    start = " ".join(text[: 10 * _START_CHARS].split())[:_START_CHARS]
    words = f"{settings.url} sent no message of the Messages API (200) but {start!r}..."
    if start.startswith("<"):
        words += ", a web page: see whether ANTHROPIC_BASE_URL is right"
    return Problem(words=words, cure=Cure.TIME)


def refuses_tool(answer: Answer) -> bool:
    """Whether a request was refused for its tool, which some models and servers do not take."""
    return (
        answer.status in {400, 422}
        and "tool" in answer.text.lower()
        and not _TOO_LONG.search(_said(answer.text))
    )


def fault_of(answer: Answer, settings: LlmSettings, *, was_answered: bool) -> Problem:
    """What went wrong; `was_answered` is whether the model replied earlier in this conversation."""
    host, model, said = settings.host, settings.model, _said(answer.text)
    if answer.status is None:
        return Problem(words=f"{host} {said}", cure=Cure.TIME)
    if answer.status == 413 or (answer.status == 400 and _TOO_LONG.search(said)):
        words = f"the prompt is too long for {model!r} at {host} ({answer.status}: {said})"
        return Problem(words=words, cure=Cure.PROMPT)
    if answer.passing:
        words = f"{host} is overloaded or unavailable ({answer.status}): {said}"
        wait_s = answer.long_wait_s
        if wait_s is not None:
            words = f"{host} asks to wait {wait_s:.0f} s ({answer.status}): {said}"
        return Problem(words=words, cure=Cure.TIME, wait_s=wait_s)
    if was_answered and answer.status in {400, 422}:
        # The same settings brought a reply a moment ago: what was added to it is at fault.
        words = f"{host} rejected what was said after a reply ({answer.status}: {said})"
        return Problem(words=words, cure=Cure.TIME)
    return Problem(words=f"{_lasting(answer.status, said, settings)}, {OFFLINE}", cure=Cure.USER)


def _lasting(status: int, said: str, settings: LlmSettings) -> str:
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
    if status == 402 or (status == 400 and _NO_CREDIT.search(said)):
        return (
            f"the account at {host} has no credit left ({status}: {said}): "
            "add credit under its billing settings and resume"
        )
    return f"{host} rejected the request for {model!r} ({status}: {said}): correct [llm] settings"


def _said(text: str) -> str:
    """The provider's own words in one line, taken out of its error object if it sent one."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    match body:
        case {"error": {"message": str(message)}}:
            text = message
    line = " ".join(text.split())
    return line if len(line) <= MAX_FAULT_CHARS else f"{line[:MAX_FAULT_CHARS]}..."
