"""Asks a language model for a policy, in one conversation a turn, and says what came of it."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from records.codec import from_json
from records.errors import CodecError
from records.exchange import SUBMITTED, Exchange
from search.llm.allowance import Allowance
from search.llm.answer import Answer
from search.llm.conversation import Conversation
from search.llm.faults import cut_for_good, fault_of, no_message, refuses_tool
from search.llm.problem import Cure, Problem
from search.llm.reply import Draft, Reply, drafted
from search.llm.request import Form, Prompt
from search.llm.settings import LlmSettings
from search.llm.tokens import estimated_tokens

if TYPE_CHECKING:
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming

logger = logging.getLogger(__name__)

Check: TypeAlias = Callable[[Draft], str | None]
"""Says what is wrong with a draft, exactly; None where it can be launched."""


class Transport(Protocol):
    """Sends requests to a provider, again where that helps."""

    def send(self, body: "MessageCreateParamsNonStreaming") -> tuple[Answer, ...]:
        """Give the answer to every attempt, the last one final; raises nothing of the network."""
        ...

    def count_tokens(self, body: "MessageCreateParamsNonStreaming") -> int | None:
        """Input tokens of a request; None where they have to be estimated. Raises nothing."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A whole policy that the model submitted and the check passed."""

    draft: Draft
    exchange: Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSubmission:
    """The model gave no policy in this turn, because of the last of its problems."""

    problem: Problem
    exchange: Exchange


Asked: TypeAlias = Submission | NoSubmission


class LlmClient:
    """A model that writes policies.

    It is offered a tool. Once it refuses that, or replies without a call, it is asked for text.
    """

    def __init__(self, settings: LlmSettings, transport: Transport) -> None:
        self._settings = settings
        self._transport = transport
        self._form = Form.AUTO

    def ask(
        self,
        prompt: Prompt,
        check: Check,
        *,
        shorter: Callable[[], Prompt] | None = None,
        allowance: Allowance | None = None,
    ) -> Asked:
        """Give the model's policy, or why there is none; what it gets wrong, it is told.

        `shorter` gives another prompt where the first is too long. Nothing is sent that the
        allowance refuses: then nothing may have been asked at all.
        """
        talk = Conversation(prompt, self._settings)
        while True:
            reply = self._reply(talk, allowance)
            draft = reply if isinstance(reply, Problem) else drafted(reply)
            if isinstance(draft, Draft):
                violation = check(draft)
                if violation is None:
                    return Submission(draft=draft, exchange=_ended(talk, SUBMITTED))
                draft = Problem(words=violation, cure=Cure.REPLY)
            if draft.cure is Cure.PROMPT and shorter is not None:
                talk.starts_again(shorter())
                shorter = None
            elif not (isinstance(reply, Reply) and talk.objects(draft, reply.content or ())):
                if draft.cure is Cure.ROOM:
                    draft = cut_for_good(talk.max_tokens)
                return NoSubmission(problem=draft, exchange=_ended(talk, draft.words))

    def close(self) -> None:
        """Close the connection to the provider."""
        self._transport.close()

    def _reply(self, talk: Conversation, allowance: Allowance | None) -> Reply | Problem:
        """What the model says next, in the form of asking that it takes."""
        while True:
            body = talk.next_request(self._form)
            refusal = allowance and allowance.refusal(talk.usage, partial(self._size, body))
            if refusal:
                return Problem(words=refusal, cure=Cure.USER)
            answers = self._transport.send(body)
            talk.heard(body, self._form, answers)
            if self._form is Form.TEXT or not refuses_tool(answers[-1]):
                break
            self._form = Form.TEXT
        reply = self._read(answers[-1], talk)
        if isinstance(reply, Reply) and reply.is_whole and not reply.calls:
            self._form = Form.TEXT
        return reply

    def _size(self, body: "MessageCreateParamsNonStreaming") -> int:
        """Input tokens of a request, counted by the provider or estimated."""
        counted = self._transport.count_tokens(body)
        if counted is not None:
            return counted
        return estimated_tokens(json.dumps(body, ensure_ascii=False))

    def _read(self, answer: Answer, talk: Conversation) -> Reply | Problem:
        if answer.status != 200:
            return fault_of(answer, self._settings, was_answered=talk.was_answered)
        try:
            reply = from_json(Reply, answer.text)
        except CodecError:
            return no_message(answer.text, self._settings)
        talk.usage += reply.billed
        return reply


def _ended(talk: Conversation, result: str) -> Exchange:
    exchange = talk.exchange(result)
    logger.info(
        "model=%s requests=%d latency_s=%.1f output_tokens=%d submitted=%s",
        exchange.model,
        exchange.request_count,
        exchange.latency_s,
        exchange.usage.output_tokens,
        result == SUBMITTED,
    )
    return exchange
