"""A landscape under names that say nothing, so that what is known of names cannot help."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from records.study import Constraint, Dimension, Value
from search.search_bench.landscape import Entry, Fault, Landscape

TEXT_OR_NAME = re.compile(r"'[^']*'|\"[^\"]*\"|\b[A-Za-z_]\w*\b")


def anonymised(landscape: Landscape) -> Landscape:
    """The landscape with numbered knobs and texts, and without estimates, reasons and causes."""
    space, words = landscape.space, _Words.of(landscape)
    rules = (
        Constraint(name=f"rule_{n}", expression=words.expression(rule.expression))
        for n, rule in enumerate(space.constraints, start=1)
    )
    return replace(
        landscape,
        about="A landscape under names that say nothing.",
        launch=None,
        command=None,
        space=replace(
            space,
            dimensions=tuple(words.dimension(each) for each in space.dimensions),
            constraints=tuple(rules),
            defaults=words.values(space.defaults),
        ),
        seed=words.values(landscape.seed),
        entries=tuple(words.entry(entry) for entry in landscape.entries),
    )


@dataclass(frozen=True, slots=True)
class _Words:
    """The new word for each name of a knob and each text among the choices."""

    knobs: Mapping[str, str]
    texts: Mapping[str, str]

    @classmethod
    def of(cls, landscape: Landscape) -> Self:
        dimensions = landscape.space.dimensions
        choices = [choice for dimension in dimensions for choice in dimension.choices or ()]
        texts = dict.fromkeys(choice for choice in choices if isinstance(choice, str))
        return cls(
            {dimension.name: f"knob_{n}" for n, dimension in enumerate(dimensions, start=1)},
            {text: f"value_{n}" for n, text in enumerate(texts, start=1)},
        )

    def value(self, value: Value) -> Value:
        return self.texts.get(value, value) if isinstance(value, str) else value

    def values(self, config: Mapping[str, Value]) -> dict[str, Value]:
        return {self.knobs.get(knob, knob): self.value(value) for knob, value in config.items()}

    def expression(self, text: str) -> str:
        quoted = {repr(old): repr(new) for old, new in self.texts.items()}
        known = {**quoted, **self.knobs}
        return TEXT_OR_NAME.sub(lambda found: known.get(found[0].replace('"', "'"), found[0]), text)

    def dimension(self, dimension: Dimension) -> Dimension:
        return Dimension(
            name=self.knobs[dimension.name],
            choices=tuple(self.value(choice) for choice in dimension.choices or ()) or None,
            range=dimension.range,
            when=None if dimension.when is None else self.expression(dimension.when),
        )

    def entry(self, entry: Entry) -> Entry:
        failure = entry.failure
        return Entry(
            config=self.values(entry.config),
            samples=entry.samples,
            failure=None if failure is None else Fault(kind=failure.kind, message="it failed"),
        )
