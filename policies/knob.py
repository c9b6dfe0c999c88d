"""One knob of a space: its choices listed, its condition parsed, and what a value for it means."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from records.choices import choices_of
from records.expression import Expression, parse
from records.study import Dimension, Value


@dataclass(frozen=True, slots=True)
class Knob:
    """A dimension with its choices listed and its condition parsed.

    `default` is what it is set to where a policy leaves it out; None if it must be given.
    """

    dimension: Dimension
    choices: tuple[Value, ...]
    when: Expression | None
    default: Value | None = None

    @classmethod
    def of(cls, dimension: Dimension, default: Value | None) -> Self:
        """The knob of a dimension; raises `StudyError` when it is malformed.

        A default that is no choice holds where the knob has no effect; elsewhere the knob must be
        given.
        """
        choices = choices_of(dimension)
        when = parse(dimension.when) if dimension.when else None
        return cls(dimension, choices, when, None if default is None else meant(default, choices))

    @property
    def name(self) -> str:
        """Name of the knob."""
        return self.dimension.name

    @property
    def words(self) -> str:
        """Name, choices, condition and description, as one line."""
        default = "" if self.default is None else f"; {self.default!r} if left out"
        when = f"; only when {self.when.text}" if self.when else ""
        about = f": {self.dimension.description}" if self.dimension.description else ""
        listed = ", ".join(repr(choice) for choice in self.choices)
        return f"{self.name} in [{listed}]{default}{when}{about}"

    def canonical(self, value: object) -> Value | None:
        """The choice that `value` means (4.0 means 4, never True), or None."""
        return meant(value, self.choices)


def meant(value: object, choices: Sequence[Value]) -> Value | None:
    """The choice that `value` means (4.0 means 4, never True), or None."""
    has_floats = isinstance(choices[0], float)
    if isinstance(value, float) and value.is_integer() and not has_floats:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and has_floats:
        # An integer is compared as it is: one beyond the floats cannot be converted.
        return next((c for c in choices if c == value), None)
    return next((c for c in choices if type(c) is type(value) and c == value), None)
