"""Asks a language model for a policy; tells a submission, its absence and a dead provider apart."""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, TypeAlias

from records.codec import from_json
from records.errors import CodecError
from records.exchange import Exchange, Usage
from search.llm.errors import ProviderError
from search.llm.reply import Draft, Reply, drafted
from search.llm.request import Form, Prompt, message_request
from search.llm.settings import OFFLINE, LlmSettings

if TYPE_CHECKING:
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming

    from search.llm.transport import Answer

logger = logging.getLogger(__name__)

MAX_FAULT_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A whole policy that the model submitted; nobody has run it yet."""

    code: str
    rationale: str
    expected_effect: str
    exchange: Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSubmission:
    """The model gave no policy this time; asking again later may help."""

    reason: str
    exchange: Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One request and its answer, as the exchange records it; `body` is the text as received."""

    form: Form
    status: int | None
    body: str


Asked: TypeAlias = Submission | NoSubmission


class LlmClient:
    """A model that writes policies; remembers which form of asking it takes."""

    def __init__(self, settings: LlmSettings) -> None:
        # The SDK takes seconds to import: a command that asks no model must not pay for it.
        from search.llm.transport import Transport

        self._settings = settings
        self._transport = Transport(settings)
        self._form = Form.FORCED

    def ask(self, prompt: Prompt) -> Asked:
        """Give the model's policy; raises `ProviderError` when no later request can succeed."""
        started = perf_counter()
        sent: list[Sent] = []
        while True:
            body = message_request(prompt, self._form, self._settings)
            answers = self._transport.send(body)
            sent.extend(Sent(form=self._form, status=a.status, body=a.text) for a in answers)
            weaker = self._form.weaker
            if weaker is None or not _refuses_form(answers[-1]):
                break
            logger.info("refused_form=%s next_form=%s", self._form, weaker)
            self._form = weaker
        return self._concluded(body, sent, answers[-1], perf_counter() - started)

    def close(self) -> None:
        """Close the connection to the provider."""
        self._transport.close()

    def _concluded(
        self,
        body: "MessageCreateParamsNonStreaming",
        sent: Sequence[Sent],
        last: "Answer",
        latency_s: float,
    ) -> Asked:
        reply = _reply(last.text) if last.status == 200 else None
        draft = self._draft(last, reply)
        exchange = Exchange(
            model=self._settings.model,
            request=self._settings.api_key.scrub(json.dumps(body, ensure_ascii=False)),
            reply=_transcript(sent),
            result="submitted" if isinstance(draft, Draft) else draft,
            usage=reply.billed if isinstance(reply, Reply) else Usage(),
            latency_s=latency_s,
            request_count=len(sent),
        )
        logger.info(
            "model=%s requests=%d latency_s=%.1f output_tokens=%d submitted=%s",
            exchange.model,
            exchange.request_count,
            exchange.latency_s,
            exchange.usage.output_tokens,
            isinstance(draft, Draft),
        )
        if isinstance(draft, Draft):
            return Submission(
                code=draft.code,
                rationale=draft.rationale,
                expected_effect=draft.expected_effect,
                exchange=exchange,
            )
        if last.status == 200 or last.passing:
            return NoSubmission(reason=draft, exchange=exchange)
        raise ProviderError(draft, exchange)

    def _draft(self, last: "Answer", reply: Reply | str | None) -> Draft | str:
        match reply:
            case Reply():
                return drafted(reply)
            case str():
                return reply
        return self._fault(last)

    def _fault(self, answer: "Answer") -> str:
        """One line on a request that failed: what, where, and what to do where only a user can."""
        host, model = self._settings.host, self._settings.model
        said = _said(answer.text)
        if answer.status is None:
            return f"{host} could not be reached: {said}"
        if answer.passing:
            return f"{host} is overloaded or unavailable ({answer.status}): {said}"
        match answer.status:
            case 401:
                return (
                    f"the key in ANTHROPIC_API_KEY was rejected (401) by {host}: "
                    f"set a valid key, {OFFLINE}"
                )
            case 403:
                return (
                    f"the key in ANTHROPIC_API_KEY may not use {model!r} (403) at {host}: "
                    f"set another key or model, {OFFLINE}"
                )
            case 404:
                return (
                    f"{host} has no model {model!r} or no Messages API there (404): "
                    f"correct the model or the base URL, {OFFLINE}"
                )
        return (
            f"{host} rejected the request for {model!r} ({answer.status}: {said}): "
            f"correct the model settings, {OFFLINE}"
        )


def _reply(text: str) -> Reply | str:
    try:
        return from_json(Reply, text)
    except CodecError as error:
        return f"the reply is not a message of the Messages API: {error}"


def _refuses_form(answer: "Answer") -> bool:
    """Whether a request was refused for its tool, which some models may not be forced to use."""
    return answer.status in {400, 422} and "tool" in answer.text.lower()


def _transcript(sent: Sequence[Sent]) -> str:
    """JSON list of every answer, oldest first."""
    rows = [{"form": s.form, "status": s.status, "body": s.body} for s in sent]
    return json.dumps(rows, ensure_ascii=False)


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
