"""Rules and conditions are text in tables: each word in them is a value that its name can have."""

import re
import tomllib
from collections.abc import Iterator
from enum import StrEnum
from importlib.resources import files
from typing import Any, get_type_hints

from evaluator.rank.job import Config, DeviceKind, Precision
from evaluator.recipes.collectives import library_knobs
from records.workload import Workload

COMPARED = re.compile(r"(\w+) (?:==|!=) ('\w+')|(\w+) (?:not )?in \[([^]]*)\]")
FACTS = {
    "device": set(DeviceKind),
    "phase": set(get_type_hints(Workload)["phase"].__args__),
    "precision": set(Precision),
}
BUILTIN = {
    name: {member.value for member in kind}
    for name, kind in get_type_hints(Config).items()
    if issubclass(kind, StrEnum)
}

KNOWN = BUILTIN | FACTS


def texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for each in value.values():
                yield from texts(each)
        case list():
            for each in value:
                yield from texts(each)


def compared(table: str) -> list[tuple[str, str]]:
    """Every name of a table with each word that it is compared with."""
    document: dict[str, Any] = tomllib.loads(
        (files("evaluator.recipes") / table).read_text(encoding="utf-8")
    )
    found = [match.groups() for text in texts(document) for match in COMPARED.finditer(text)]
    return sorted(
        {
            (name or of, word)
            for name, one, of, several in found
            for word in re.findall(r"'([^']*)'", one or several)
        }
    )


def test_a_word_in_a_rule_of_the_built_in_recipe_is_a_value():
    assert [pair for pair in compared("builtin.toml") if pair[1] not in KNOWN[pair[0]]] == []


def test_a_word_in_a_rule_of_collectives_is_a_value():
    for name, word in compared("collectives.toml"):
        assert word in FACTS[name] if name in FACTS else library_knobs()[name].fault(word) is None
