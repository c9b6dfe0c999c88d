"""Ask a model for a policy; re-ask on objections; token allowance.

One conversation about one turn: what was sent, what came back, and what was objected.

What a study may still use of a model: tokens, and money where the price is known.

Asks a language model for a policy, in one conversation a turn, and says what came of it.
"""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Protocol, TypeAlias

from records.codec import from_json
from records.errors import CodecError, StudyError
from records.llm_exchange import SUBMITTED, LlmExchange, TokenUsage
from records.study import Budget, Price
from search.llm.messages import (
    Answer,
    Block,
    Draft,
    Form,
    Objection,
    Problem,
    Prompt,
    Reply,
    RetryAction,
    cut_for_good,
    draft_of,
    estimated_tokens,
    fault_of,
    message_request,
    no_message,
    refuses_tool,
)
from search.settings import LlmSettings

if TYPE_CHECKING:
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming


MAX_REASKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """An answer to the request of this index, as the exchange records it."""

    request: int
    form: Form
    answer: Answer


class Conversation:
    """Grows by one request at a time; its exchange is what the store keeps."""

    def __init__(self, prompt: Prompt, settings: LlmSettings) -> None:
        self._settings = settings
        self._started_s = perf_counter()
        self._objections: tuple[Objection, ...] = ()
        self._bodies: list[MessageCreateParamsNonStreaming] = []
        self._sent: list[Sent] = []
        self._reask_count = 0
        self.prompt = prompt
        self.max_tokens = settings.max_output_tokens
        self.usage = TokenUsage()

    @property
    def was_answered(self) -> bool:
        """Whether the model said anything yet."""
        return any(sent.answer.status == 200 for sent in self._sent)

    def next_request(self, form: Form) -> "MessageCreateParamsNonStreaming":
        """Body of the next request."""
        return message_request(
            self.prompt,
            form,
            self._objections,
            settings=self._settings,
            max_tokens=self.max_tokens,
        )

    def record_response(
        self, body: "MessageCreateParamsNonStreaming", form: Form, answers: Sequence[Answer]
    ) -> None:
        """Keep a request that was sent, and its answers."""
        self._bodies.append(body)
        self._sent.extend(
            Sent(request=len(self._bodies) - 1, form=form, answer=answer) for answer in answers
        )

    def add_feedback(self, problem: Problem, blocks: Sequence[Block]) -> bool:
        """Tell the model what is wrong with its reply; False when that is no use any more."""
        if (
            problem.action not in {RetryAction.REPLY, RetryAction.LONGER_REPLY}
            or self._reask_count == MAX_REASKS
        ):
            return False
        was_cut = problem.action is RetryAction.LONGER_REPLY
        if was_cut and self.max_tokens >= self._settings.most_output_tokens:
            return False
        self._reask_count += 1
        if was_cut:
            self.max_tokens = self._settings.most_output_tokens
        # Half a reply may hold half a block, which no provider takes back.
        told = Objection(blocks=() if was_cut else blocks, words=problem.words)
        self._objections = (*self._objections, told)
        return True

    def restart(self, prompt: Prompt) -> None:
        """Forget what was said, and ask with another prompt."""
        self.prompt = prompt
        self._objections = ()

    def exchange(self, result: str) -> LlmExchange:
        """All of it as the store keeps it."""
        replies = [_row(sent) for sent in self._sent]
        return LlmExchange(
            model=self._settings.model,
            request=self._settings.api_key.scrub(json.dumps(self._bodies, ensure_ascii=False)),
            reply=json.dumps(replies, ensure_ascii=False),
            result=result,
            usage=self.usage,
            latency_s=perf_counter() - self._started_s,
            request_count=len(self._sent),
            host=self._settings.host,
        )


def _row(sent: Sent) -> dict[str, object]:
    """An answer as it is recorded."""
    answer = sent.answer
    row: dict[str, object] = {"request": sent.request, "form": sent.form, "status": answer.status}
    if answer.long_wait_s is not None:
        row["retry_after_s"] = answer.long_wait_s
    return {**row, "body": answer.text}


TYPICAL_OUTPUT_TOKENS = 2000
"""Of a turn, before there was one: some thought and a policy of a page."""


class Allowance:
    """The limits of a budget against what the `turns` of a study used, read before each request.

    A request is sent while what the largest turn used would still fit, and before the first turn
    what such a turn typically uses. So a limit can be exceeded, by one reply at most. Raises
    `StudyError` when money is limited and there is no price.
    """

    def __init__(
        self,
        budget: Budget,
        model: str,
        price: Price | None,
        turns: Callable[[], Sequence[TokenUsage]],
    ) -> None:
        if budget.max_cost_usd is not None and price is None:
            raise StudyError(
                f"[budget] max_cost_usd cannot be kept, because no price of {model!r} is known: "
                "say it in the study file as [llm] price = { input = 5.0, output = 25.0 } "
                "(USD per million tokens), or limit tokens with --max-tokens"
            )
        self._budget = budget
        self._price = price
        self._turns = turns

    def refusal(self, under_way: TokenUsage, size: Callable[[], int]) -> str | None:
        """Why the next request must not be sent; None where it may.

        `under_way` is what the conversation used so far, which is not recorded yet; `size` gives
        the input tokens of the request.
        """
        budget = self._budget
        if budget.max_tokens is None and budget.max_cost_usd is None:
            return None
        turns = [*self._turns(), under_way]
        used = sum(turns, TokenUsage())
        likely = [turn for turn in turns if turn.tokens] or [_typical(size())]
        next_tokens = max(turn.tokens for turn in likely)
        if budget.max_tokens is not None and used.tokens + next_tokens > budget.max_tokens:
            return (
                f"{used.tokens} of {budget.max_tokens} tokens for the model are used and a turn "
                f"takes about {next_tokens}: the next run needs a higher --max-tokens"
            )
        if budget.max_cost_usd is None or self._price is None:
            return None
        used_usd = self._price.cost_usd(used)
        next_usd = max(map(self._price.cost_usd, likely))
        if used_usd + next_usd <= budget.max_cost_usd:
            return None
        return (
            f"{used_usd:.4g} of {budget.max_cost_usd:g} USD for the model are spent and a turn "
            f"costs about {next_usd:.4g}: the next run needs a higher --max-cost"
        )


def _typical(input_tokens: int) -> TokenUsage:
    """What a first turn uses: all of its prompt is written to the cache."""
    return TokenUsage(cache_write_tokens=input_tokens, output_tokens=TYPICAL_OUTPUT_TOKENS)


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
    exchange: LlmExchange


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSubmission:
    """The model gave no policy in this turn, because of the last of its problems."""

    problem: Problem
    exchange: LlmExchange


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
            draft = reply if isinstance(reply, Problem) else draft_of(reply)
            if isinstance(draft, Draft):
                violation = check(draft)
                if violation is None:
                    return Submission(draft=draft, exchange=_ended(talk, SUBMITTED))
                draft = Problem(words=violation, action=RetryAction.REPLY)
            if draft.action is RetryAction.PROMPT and shorter is not None:
                talk.restart(shorter())
                shorter = None
            elif not (isinstance(reply, Reply) and talk.add_feedback(draft, reply.content or ())):
                if draft.action is RetryAction.LONGER_REPLY:
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
                return Problem(words=refusal, action=RetryAction.USER)
            answers = self._transport.send(body)
            talk.record_response(body, self._form, answers)
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


def _ended(talk: Conversation, result: str) -> LlmExchange:
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
