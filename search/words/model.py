"""What a search asked of models and what that cost, in words and for programs."""

from collections.abc import Sequence

from records.exchange import SUBMITTED, ModelUse
from records.study import Llm
from search.llm.prices import cost_usd
from search.words.trial import one_line

RESULT_CHARS = 500


def use_words(use: ModelUse, llm: Llm) -> str:
    """Turns, tokens and money of one model, and why its last turn brought no policy if it did not.

    `llm` is the study's, whose price counts.
    """
    usage, cost = use.usage, cost_usd(use.usage, use.model, llm)
    read = usage.cache_read_tokens
    into = usage.input_tokens + usage.cache_write_tokens + read
    money = "price not known" if cost is None else f"{cost:.4g} USD"
    last = "" if use.last_result == SUBMITTED else f"; the last turn: {use.last_result}"
    return (
        f"{use.model}: {use.policy_count} policies in {use.turn_count} turns and "
        f"{use.request_count} requests; {usage.tokens} tokens ({into} in, of them {read} from the "
        f"cache, {usage.output_tokens} out), {money}{one_line(last, RESULT_CHARS)}"
    )


def use_facts(uses: Sequence[ModelUse], llm: Llm) -> list[dict[str, object]]:
    """The same for programs; a cost that is not known is null."""
    return [
        {
            "model": use.model,
            "turns": use.turn_count,
            "policies": use.policy_count,
            "requests": use.request_count,
            "input_tokens": use.usage.input_tokens,
            "output_tokens": use.usage.output_tokens,
            "cache_read_tokens": use.usage.cache_read_tokens,
            "cache_write_tokens": use.usage.cache_write_tokens,
            "cost_usd": cost_usd(use.usage, use.model, llm),
            "last_result": use.last_result,
        }
        for use in uses
    ]
