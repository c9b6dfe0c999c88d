"""What a study may still use of a model: tokens, and money where the price is known."""

from collections.abc import Callable

from records.errors import StudyError
from records.exchange import Usage
from records.price import Price
from records.study import Budget


class Allowance:
    """The limits of a budget against what was `spent`, which is asked for before each request.

    Raises `StudyError` when money is limited and there is no price.
    """

    def __init__(
        self, budget: Budget, model: str, price: Price | None, spent: Callable[[], Usage]
    ) -> None:
        if budget.max_cost_usd is not None and price is None:
            raise StudyError(
                f"[budget] max_cost_usd cannot be kept, because no price of {model!r} is known: "
                "say it in the study file as [llm] price = { input = 5.0, output = 25.0 } "
                "(USD per million tokens), or limit tokens with --max-tokens"
            )
        self._budget = budget
        self._price = price
        self._spent = spent

    def refusal(self, under_way: Usage, *, input_tokens: int, output_tokens: int) -> str | None:
        """Why a request of at most so many tokens must not be sent now; None where it may.

        `under_way` is what the conversation used so far, which is not on record yet.
        """
        budget = self._budget
        if budget.max_tokens is None and budget.max_cost_usd is None:
            return None
        used = self._spent() + under_way
        most = used.tokens + input_tokens + output_tokens
        if budget.max_tokens is not None and most > budget.max_tokens:
            return (
                f"{used.tokens} of {budget.max_tokens} tokens for the model are used and the next "
                f"request could take {input_tokens + output_tokens}: "
                "the next run needs a higher --max-tokens"
            )
        if budget.max_cost_usd is None or self._price is None:
            return None
        used_usd = self._price.cost_usd(used)
        next_usd = _most_usd(self._price, input_tokens, output_tokens)
        if used_usd + next_usd <= budget.max_cost_usd:
            return None
        return (
            f"{used_usd:.4g} of {budget.max_cost_usd:g} USD for the model are spent and the next "
            f"request could cost {next_usd:.4g}: the next run needs a higher --max-cost"
        )


def _most_usd(price: Price, input_tokens: int, output_tokens: int) -> float:
    """Cost if every token of the request is written to the cache, or none is."""
    plain = Usage(input_tokens=input_tokens, output_tokens=output_tokens)
    cached = Usage(cache_write_tokens=input_tokens, output_tokens=output_tokens)
    return max(price.cost_usd(plain), price.cost_usd(cached))
