"""One conversation about one turn: what was sent, what came back, and what was objected."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from records.exchange import Exchange, Usage
from search.llm.answer import Answer
from search.llm.objection import Objection
from search.llm.problem import Cure, Problem
from search.llm.reply import Block
from search.llm.request import Form, Prompt, message_request
from search.llm.settings import LlmSettings

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
        self.usage = Usage()

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

    def heard(
        self, body: "MessageCreateParamsNonStreaming", form: Form, answers: Sequence[Answer]
    ) -> None:
        """Keep a request that was sent, and its answers."""
        self._bodies.append(body)
        self._sent.extend(
            Sent(request=len(self._bodies) - 1, form=form, answer=answer) for answer in answers
        )

    def objects(self, problem: Problem, blocks: Sequence[Block]) -> bool:
        """Tell the model what is wrong with its reply; False when that is no use any more."""
        if problem.cure not in {Cure.REPLY, Cure.ROOM} or self._reask_count == MAX_REASKS:
            return False
        was_cut = problem.cure is Cure.ROOM
        if was_cut and self.max_tokens >= self._settings.most_output_tokens:
            return False
        self._reask_count += 1
        if was_cut:
            self.max_tokens = self._settings.most_output_tokens
        # Half a reply may hold half a block, which no provider takes back.
        told = Objection(blocks=() if was_cut else blocks, words=problem.words)
        self._objections = (*self._objections, told)
        return True

    def starts_again(self, prompt: Prompt) -> None:
        """Forget what was said, and ask with another prompt."""
        self.prompt = prompt
        self._objections = ()

    def exchange(self, result: str) -> Exchange:
        """All of it as the store keeps it."""
        replies = [_row(sent) for sent in self._sent]
        return Exchange(
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
