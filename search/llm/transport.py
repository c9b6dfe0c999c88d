"""Send one request through the Anthropic SDK, with retries.

The only module that imports the SDK, which takes seconds: import it when a client is made.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from time import perf_counter, time
from typing import TYPE_CHECKING

import anthropic
import httpx2
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
MAX_REPLY_BYTES = 64 << 20
MAX_REPLY_TIMEOUTS = 3
"""The longest reply, in multiples of the longest silence within one."""
_FAULTS = {
    "Connect": "could not be reached",
    "Timeout": "did not answer in time",
}
"""What the provider did, by a word in the name of the error."""
_ADVICE = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Count:
    """The answer to a request to count tokens."""

    input_tokens: int


class AnthropicTransport:
    """A connection to one provider; nothing it returns contains the key.

    `notice` receives one line at the first retry of a request.
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
        """Return the answer to every attempt, the last one final; raise no network error."""
        answers: list[Answer] = []

        def attempt() -> bool:
            answers.append(self._answer(body))
            return answers[-1].worth_retrying

        def wait_s(state: RetryCallState) -> float:
            advised_s = answers[-1].retry_after_s
            waited_s = self._backoff(state) if advised_s is None else advised_s
            if len(answers) == 1:
                fault = fault_of(answers[-1], self._settings, was_answered=True)
                self._notice(f"{fault.words}; retry in {waited_s:.0f} s")
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
        """Return the input tokens by the provider's count; None where it has no such endpoint."""
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
            # With a stream, the timeout is for silence and not for the whole reply.
            with self._client.messages.with_streaming_response.create(
                **body, extra_body={"stream": True}
            ) as response:
                text = self._read(response.iter_bytes())
            if text is None:
                return Answer(text="sent a reply that does not end")
            if "event-stream" in response.headers.get("content-type", ""):
                answer = streamed_answer(text)
                return replace(answer, text=scrub(answer.text))
            return Answer(status=response.status_code, text=scrub(text))
        except anthropic.APIStatusError as error:
            return Answer(
                status=error.status_code,
                text=scrub(error.response.text),
                retry_advice=_ADVICE.get(error.response.headers.get("x-should-retry", "")),
                retry_after_s=_retry_after_s(error.response.headers),
            )
        except (anthropic.APIConnectionError, httpx2.HTTPError) as error:
            cause = error.__cause__ or error
            name = type(cause).__name__
            did = next((did for word, did in _FAULTS.items() if word in name), "broke off")
            return Answer(text=scrub(f"{did}: {name}: {cause}"))

    def _read(self, pieces: Iterable[bytes]) -> str | None:
        """Return a whole reply; None for one that is too long, as when only pings come."""
        begun_s, reply = perf_counter(), bytearray()
        for piece in pieces:
            reply += piece
            taken_s = perf_counter() - begun_s
            if (
                len(reply) > MAX_REPLY_BYTES
                or taken_s > MAX_REPLY_TIMEOUTS * self._settings.timeout_s
            ):
                return None
        return reply.decode(errors="replace")


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait that the provider asks for, in any of its three forms."""
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
