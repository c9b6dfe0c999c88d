"""Sends one request through the Anthropic SDK, again where that helps.

The only module that imports the SDK, which takes seconds: import it when a client is made.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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

from records.codec import from_json
from records.errors import CodecError
from search.llm.messages import MAX_WAIT_S, Answer, fault_of, streamed_answer
from search.settings import LlmSettings

if TYPE_CHECKING:
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming


MAX_COUNTING_S = 10.0
_FAULTS = {
    "Connect": "could not be reached",
    "Timeout": "did not answer in time",
}
"""What a provider did, by a word in the name of the error."""
_ADVICE = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Count:
    """What a provider answers that counts tokens."""

    input_tokens: int


class AnthropicTransport:
    """A connection to one provider; nothing it returns holds the key.

    The first fault of a request after which it is sent again is passed to `notice`, as one line.
    """

    def __init__(
        self, settings: LlmSettings, notice: Callable[[str], None] = lambda _: None
    ) -> None:
        self._settings = settings
        self._notice = notice
        key = settings.api_key
        self._client = anthropic.Anthropic(
            api_key=None if key.is_bearer else key.reveal(),
            auth_token=key.reveal() if key.is_bearer else None,
            base_url=settings.url,
            timeout=settings.timeout_s,
            max_retries=0,
        )
        self._counts = True
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
            waited_s = self._backoff(state) if asked_s is None else asked_s
            if len(answers) == 1:
                fault = fault_of(answers[-1], self._settings, was_answered=True)
                self._notice(f"{fault.words}; asked again in {waited_s:.0f} s")
            return waited_s

        Retrying(
            # A provider that times out must not hold the search for `attempts` timeouts.
            stop=stop_after_attempt(self._settings.attempts)
            | stop_after_delay(self._settings.timeout_s),
            wait=wait_s,
            retry=retry_if_result(bool),
            retry_error_callback=lambda _: None,
        )(attempt)
        return tuple(answers)

    def count_tokens(self, body: "MessageCreateParamsNonStreaming") -> int | None:
        """Input tokens of a request by the provider's count; None where it has none to give."""
        if not self._counts:
            return None
        known = ("model", "messages", "max_tokens")
        try:
            response = self._client.messages.with_raw_response.count_tokens(
                model=body["model"],
                messages=body["messages"],
                extra_body={name: value for name, value in body.items() if name not in known},
                timeout=min(self._settings.timeout_s, MAX_COUNTING_S),
            )
            return from_json(_Count, response.text()).input_tokens
        except (anthropic.APIError, CodecError):
            self._counts = False
            return None

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _answer(self, body: "MessageCreateParamsNonStreaming") -> Answer:
        scrub = self._settings.api_key.scrub
        try:
            # Read to its end, as nobody watches a policy being written; the pieces keep the
            # connection alive, so that the timeout is for a silence and not for the reply.
            response = self._client.messages.with_raw_response.create(
                **body, extra_body={"stream": True}
            )
            if "event-stream" in response.headers.get("content-type", ""):
                answer = streamed_answer(response.text())
                return replace(answer, text=scrub(answer.text))
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
            name = type(cause).__name__
            did = next((did for word, did in _FAULTS.items() if word in name), "broke off")
            return Answer(text=scrub(f"{did}: {name}: {cause}"))


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
