"""What a knob of a collective setup is: its values, when it has an effect, what it sets."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from records.choices import list_words
from records.study import Value

LIBRARY = "default"
"""The value that leaves a text knob to the library."""
MPI = "comm_adapter == 'mpi'"
OTHER_THAN_MPI = "comm_adapter != 'mpi'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One setting, and the values that it may have.

    An empty table in a study searches `choices`. Numbers may be anything from `least` on, texts
    with a `pattern` anything that it matches; others are of `choices` and `more`. A knob has an
    effect when `when` holds and the mix has one of the collectives `of`, any if none is listed.
    `variables` are patterns of the environment variables that it decides about.
    """

    description: str
    default: Value
    choices: tuple[Value, ...]
    more: tuple[Value, ...] = ()
    least: int | None = None
    pattern: str | None = None
    when: str | None = None
    of: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()

    def fault(self, value: Value) -> str | None:
        """What is wrong with a value, as the end of a sentence; None where nothing is."""
        if self.least is not None:
            whole = isinstance(value, int) and not isinstance(value, bool)
            fits, wanted = whole and int(value) >= self.least, f"a whole number from {self.least}"
        elif self.pattern is not None:
            fits = isinstance(value, str) and re.fullmatch(self.pattern, value) is not None
            wanted = f"a text such as {self.choices[-1]!r}"
        else:
            known = tuple(dict.fromkeys((self.default, *self.choices, *self.more)))
            fits = any(type(value) is type(each) and value == each for each in known)
            wanted = f"one of {list_words(known)}"
        return None if fits else f"must be {wanted}, got {value!r}"

    def condition(self, mix: frozenset[str]) -> str | None:
        """When the knob has an effect, for a mix of these collectives; None where it always has."""
        if self.of and not mix & set(self.of):
            return f"{self.of[0]!r} in {listed(sorted(mix))}"
        return self.when


def listed(texts: Iterable[str]) -> str:
    """Texts as an expression lists them."""
    return f"[{', '.join(map(repr, texts))}]"
