"""Sends one request through the Anthropic SDK, again where that helps.

The only module that imports the SDK, which takes seconds: import it when a client is made.
"""

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from time import time
from typing import TYPE_CHECKING

import anthropic
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_result,
    stop_after_attempt,
    stop_after_delay,
    wait_exponential,
    wait_random,
)

from search.llm.answer import Answer
from search.llm.settings import LlmSettings

if TYPE_CHECKING:
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming

MAX_WAIT_S = 60.0
_ADVICE = {"true": True, "false": False}


class AnthropicTransport:
    """A connection to one provider; nothing it returns holds the key."""

    def __init__(self, settings: LlmSettings) -> None:
        self._settings = settings
        self._client = anthropic.Anthropic(
            api_key=settings.api_key.reveal(),
            base_url=settings.url,
            timeout=settings.timeout_s,
            max_retries=0,
        )
        first_s = settings.retry_wait_s
        self._backoff = wait_exponential(first_s, max=MAX_WAIT_S) + wait_random(0, first_s)

    def send(self, body: "MessageCreateParamsNonStreaming") -> tuple[Answer, ...]:
        """Give the answer to every attempt, the last one final; raises nothing of the network."""
        answers: list[Answer] = []

        def attempt() -> bool:
            answers.append(self._answer(body))
            return answers[-1].worth_retrying

        def wait_s(state: RetryCallState) -> float:
            asked_s = answers[-1].retry_after_s
            return self._backoff(state) if asked_s is None else min(asked_s, MAX_WAIT_S)

        Retrying(
            # A provider that times out must not hold the search for `attempts` timeouts.
            stop=stop_after_attempt(self._settings.attempts)
            | stop_after_delay(self._settings.timeout_s),
            wait=wait_s,
            retry=retry_if_result(bool),
            retry_error_callback=lambda _: None,
        )(attempt)
        return tuple(answers)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _answer(self, body: "MessageCreateParamsNonStreaming") -> Answer:
        scrub = self._settings.api_key.scrub
        try:
            response = self._client.messages.with_raw_response.create(**body)
            return Answer(status=response.status_code, text=scrub(response.text()))
        except anthropic.APIStatusError as error:
            return Answer(
                status=error.status_code,
                text=scrub(error.response.text),
                retry_advice=_ADVICE.get(error.response.headers.get("x-should-retry", "")),
                retry_after_s=_retry_after_s(error.response.headers),
            )
        except anthropic.APIConnectionError as error:
            cause = error.__cause__ or error
            return Answer(text=scrub(f"{type(cause).__name__}: {cause}"))


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds the provider asks to wait, given as milliseconds, seconds or a date."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None or text is None:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time())
    except ValueError:
        return None


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None
