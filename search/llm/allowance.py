"""What a study may still use of a model: tokens, and money where the price is known."""

from collections.abc import Callable, Sequence

from records.errors import StudyError
from records.exchange import Usage
from records.price import Price
from records.study import Budget

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
        turns: Callable[[], Sequence[Usage]],
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

    def refusal(self, under_way: Usage, size: Callable[[], int]) -> str | None:
        """Why the next request must not be sent; None where it may.

        `under_way` is what the conversation used so far, which is not recorded yet; `size` gives
        the input tokens of the request.
        """
        budget = self._budget
        if budget.max_tokens is None and budget.max_cost_usd is None:
            return None
        turns = [*self._turns(), under_way]
        used = sum(turns, Usage())
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


def _typical(input_tokens: int) -> Usage:
    """What a first turn uses: all of its prompt is written to the cache."""
    return Usage(cache_write_tokens=input_tokens, output_tokens=TYPICAL_OUTPUT_TOKENS)
