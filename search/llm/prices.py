"""Known prices of models, from a dated table that a study may overrule."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from records.codec import from_document
from records.exchange import Usage
from records.price import Price
from records.strict import STRICT
from records.study import Llm

_RELEASE = re.compile(r"-\d{8}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable:
    """Prices by model, as they were on `date`."""

    __pydantic_config__ = STRICT

    date: str
    models: Mapping[str, Price]


@cache
def price_table() -> PriceTable:
    """The table that comes with this version."""
    text = (files("search.llm") / "prices.toml").read_text(encoding="utf-8")
    return from_document(PriceTable, tomllib.loads(text))


def priced(llm: Llm) -> Llm:
    """The same model with its known price, where the study says none."""
    return llm if llm.price is not None else replace(llm, price=price_of(llm.model))


def cost_usd(usage: Usage, model: str, llm: Llm) -> float | None:
    """What a use of a model cost; None where its price is not known, or it is not the study's."""
    price = priced(llm).price
    return None if price is None or model != llm.model else price.cost_usd(usage)


def price_of(model: str) -> Price | None:
    """The known price of a model, of whatever release; None where there is none."""
    return price_table().models.get(_RELEASE.sub("", model))
