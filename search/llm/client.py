"""Ask a model for a policy: one conversation per turn, feedback on replies, token limits."""

import json
import logging
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from time import perf_counter
from typing import TYPE_CHECKING, Protocol, TypeVar

from records.codec import from_json
from records.errors import CodecError, StudyError
from records.llm_exchange import SUBMITTED, LlmExchange, TokenUsage
from records.study import Budget, Price
from search.llm.messages import (
    Answer,
    Block,
    Feedback,
    Form,
    Prompt,
    Reply,
    cut_for_good,
    draft_of,
    estimated_tokens,
    fault_of,
    message_request,
    no_message,
    refuses_tool,
)
from search.llm.tools import (
    MOST_QUESTIONS,
    SUBMIT_ONLY,
    Draft,
    EstimateRequest,
    Problem,
    Question,
    RetryAction,
    TraceQuestion,
    question_names,
)
from search.settings import LlmSettings

if TYPE_CHECKING:
    from anthropic.types import ToolParam
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming


MAX_REASKS = 3


class Conversation:
    """The requests and answers of one turn; the store records its exchange."""

    def __init__(self, prompt: Prompt, settings: LlmSettings, tools: "Sequence[ToolParam]") -> None:
        self._settings = settings
        self._started_s = perf_counter()
        self._feedback: tuple[Feedback, ...] = ()
        self._bodies: list[MessageCreateParamsNonStreaming] = []
        self._replies: list[dict[str, object]] = []
        self.was_answered = False
        """Whether the model answered at least once."""
        self._reask_count = 0
        self._questions_left = MOST_QUESTIONS
        self._tools = tools
        self.prompt = prompt
        self.max_tokens = settings.max_output_tokens
        self.usage = TokenUsage()

    def next_request(self, form: Form) -> "MessageCreateParamsNonStreaming":
        """Return the body of the next request."""
        return message_request(
            self.prompt,
            form,
            self._feedback,
            settings=self._settings,
            max_tokens=self.max_tokens,
            tools=self._tools,
        )

    def record_response(
        self, body: "MessageCreateParamsNonStreaming", form: Form, answers: Sequence[Answer]
    ) -> None:
        """Record a sent request and its answers."""
        for answer in answers:
            reply = {"request": len(self._bodies), "form": form, "status": answer.status}
            if answer.long_wait_s is not None:
                reply["retry_after_s"] = answer.long_wait_s
            self._replies.append({**reply, "body": answer.text})
            self.was_answered |= answer.status == HTTPStatus.OK
        self._bodies.append(body)

    def add_feedback(self, problem: Problem, blocks: Sequence[Block]) -> bool:
        """Add feedback on a reply; return False when no further attempt is allowed."""
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
        # A cut reply may end in an incomplete block, which providers reject.
        feedback = Feedback(blocks=() if was_cut else blocks, words=problem.words)
        self._feedback = (*self._feedback, feedback)
        return True

    def add_answer(self, words: str, blocks: Sequence[Block]) -> None:
        """Add the answer to a question of the model."""
        self._questions_left -= 1
        self._replies[-1]["answer"] = words
        feedback = Feedback(blocks=blocks, words=words, is_answer=True)
        self._feedback = (*self._feedback, feedback)

    def may_ask(self, question: Question) -> bool:
        """Whether the model may ask this in this turn."""
        return self._questions_left > 0 and question.tool in question_names(self._tools)

    def restart(self, prompt: Prompt) -> None:
        """Start over with another prompt."""
        self.prompt = prompt
        self._feedback = ()

    def exchange(self, result: str) -> LlmExchange:
        """Return the conversation as the store records it."""
        return LlmExchange(
            model=self._settings.model,
            request=self._settings.api_key.scrub(json.dumps(self._bodies, ensure_ascii=False)),
            reply=json.dumps(self._replies, ensure_ascii=False),
            result=result,
            usage=self.usage,
            latency_s=perf_counter() - self._started_s,
            request_count=len(self._replies),
            host=self._settings.host,
        )


TYPICAL_OUTPUT_TOKENS = 2000
"""Output of a turn before the first one: some thinking and a policy of one page."""


class Allowance:
    """Checks the token and cost limits before each request; `turns` returns the recorded usage.

    A request is allowed while the usage of the largest turn still fits; before the first turn, a
    typical usage. So a limit can be exceeded by one reply at most. Raises `StudyError` when the
    cost is limited and the price is unknown.
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
                f"[budget] max_cost_usd needs the price of {model!r}, which is unknown: "
                "set it in the study file as [llm] price = { input = 5.0, output = 25.0 } "
                "(USD per million tokens), or limit tokens with --max-tokens"
            )
        self._budget = budget
        self._price = price
        self._turns = turns

    def refusal(self, under_way: TokenUsage, size: Callable[[], int]) -> str | None:
        """Return why the next request must not be sent, or None.

        `under_way` is the unrecorded usage of this conversation; `size` returns the input tokens
        of the request.
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
                f"takes about {next_tokens}: resume with a higher --max-tokens"
            )
        if budget.max_cost_usd is None or self._price is None:
            return None
        used_usd = self._price.cost_usd(used)
        next_usd = max(map(self._price.cost_usd, likely))
        if used_usd + next_usd <= budget.max_cost_usd:
            return None
        return (
            f"{used_usd:.4g} of {budget.max_cost_usd:g} USD for the model are spent and a turn "
            f"costs about {next_usd:.4g}: resume with a higher --max-cost"
        )


def _typical(input_tokens: int) -> TokenUsage:
    """Return the usage of a first turn, whose whole prompt is written to the cache."""
    return TokenUsage(cache_write_tokens=input_tokens, output_tokens=TYPICAL_OUTPUT_TOKENS)


logger = logging.getLogger(__name__)

T = TypeVar("T")


class Transport(Protocol):
    """Sends requests to a provider, with retries."""

    def send(self, body: "MessageCreateParamsNonStreaming") -> tuple[Answer, ...]:
        """Return the answer to every attempt, the last one final; raise no network error."""
        ...

    def count_tokens(self, body: "MessageCreateParamsNonStreaming") -> int | None:
        """Return the input tokens of a request, or None where unknown; raise nothing."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class LlmClient:
    """A model that writes policies, submitted with a tool.

    Once the provider rejects the tool, or the model replies without calling it, it answers in text.
    """

    def __init__(self, settings: LlmSettings, transport: Transport) -> None:
        self._settings = settings
        self._transport = transport
        self._form = Form.AUTO

    def ask(
        self,
        prompt: Prompt,
        check: Callable[[Draft], T | Problem],
        *,
        tools: "Sequence[ToolParam]" = SUBMIT_ONLY,
        answer: Callable[[Question], str] = lambda _: "",
        shorter: Callable[[], Prompt] | None = None,
        allowance: Allowance | None = None,
    ) -> tuple[T | Problem, LlmExchange]:
        """Return what `check` makes of the model's policy, or why there is none.

        What it objects to goes back to the model as feedback, and `answer` answers what the model
        asks with one of the `tools` before it submits a policy. `shorter` returns another prompt
        where the first is too long. A request that the allowance refuses is not sent, so the
        exchange may be empty.
        """
        talk = Conversation(prompt, self._settings, tools)
        while True:
            reply = self._reply(talk, allowance)
            draft = reply if isinstance(reply, Problem) else draft_of(reply)
            if isinstance(draft, EstimateRequest | TraceQuestion):
                if isinstance(reply, Reply) and talk.may_ask(draft):
                    talk.add_answer(answer(draft), reply.content or ())
                    continue
                draft = Problem(words=f"no more calls of {draft.tool} in this turn")
            found = draft if isinstance(draft, Problem) else check(draft)
            if not isinstance(found, Problem):
                return found, _ended(talk, SUBMITTED)
            if found.action is RetryAction.PROMPT and shorter is not None:
                talk.restart(shorter())
                shorter = None
            elif not (isinstance(reply, Reply) and talk.add_feedback(found, reply.content or ())):
                if found.action is RetryAction.LONGER_REPLY:
                    found = cut_for_good(talk.max_tokens)
                return found, _ended(talk, found.words)

    def close(self) -> None:
        """Close the connection to the provider."""
        self._transport.close()

    def _reply(self, talk: Conversation, allowance: Allowance | None) -> Reply | Problem:
        """Return the next reply of the model, in the form that it supports."""
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
        """Return the input tokens of a request, counted by the provider or estimated."""
        counted = self._transport.count_tokens(body)
        if counted is not None:
            return counted
        return estimated_tokens(json.dumps(body, ensure_ascii=False))

    def _read(self, answer: Answer, talk: Conversation) -> Reply | Problem:
        if answer.status != HTTPStatus.OK:
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
