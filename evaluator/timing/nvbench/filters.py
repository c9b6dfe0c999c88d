"""Which benchmarks and states of result files are compared, as said on a command line."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, Self, TypeAlias

from evaluator.timing.nvbench.document import AxisValue, Benchmark, State
from records.errors import StudyError, shown

Word: TypeAlias = tuple[Literal["benchmark", "axis"], str]
"""One option of a command line: which, and what follows it."""

_EXPONENT: Final = re.compile(r"[0-9]{1,2}", re.ASCII)
_POW2: Final = "[pow2]"
_LARGEST_EXPONENT: Final = 62
_NAMED: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisFilter:
    """States whose value on an axis is one of these; `text` is how it was asked for."""

    text: str
    axis: str
    values: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Self:
        """The filter that `AXIS=V`, `AXIS=[V,...]` or `AXIS[pow2]=EXPONENT` means."""
        axis, equals, wanted = (part.strip() for part in text.partition("="))
        listed = wanted.startswith("[") and wanted.endswith("]")
        values = [each.strip() for each in (wanted[1:-1].split(",") if listed else [wanted])]
        if axis.endswith(_POW2):
            axis = axis.removesuffix(_POW2).strip()
            values = [_power(each, text) for each in values]
        if not (axis and equals and all(values)):
            raise StudyError(f"-a {shown(text)} is no filter; write AXIS=VALUE or AXIS=[A,B]")
        return cls(text=text, axis=axis, values=tuple(values))

    def admits(self, axes: Iterable[AxisValue]) -> bool:
        """Whether one of the values is there, as the file has it or as a table shows it."""
        return any(
            each.name == self.axis and not {each.value, each.shown}.isdisjoint(self.values)
            for each in axes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A benchmark asked for, None for all, and what all its states must meet."""

    benchmark: str | None = None
    axes: tuple[AxisFilter, ...] = ()

    def admits(self, benchmark: str, state: State) -> bool:
        """Whether this state of this benchmark was asked for."""
        return self.benchmark in (None, benchmark) and all(
            each.admits(state.axes) for each in self.axes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Alternatives of which a state must meet one."""

    scopes: tuple[Scope, ...] = (Scope(),)

    @classmethod
    def of(cls, words: Sequence[Word]) -> Self:
        """The filters that these options mean in their order.

        An axis before any benchmark is for all, one after a benchmark for that benchmark only.
        Raises StudyError for an option that means nothing or contradicts another.
        """
        everywhere, scopes = Scope(), list[Scope]()
        for kind, text in words:
            if kind == "benchmark":
                scopes.append(replace(everywhere, benchmark=text))
            elif scopes:
                scopes[-1] = _narrowed(scopes[-1], text)
            else:
                everywhere = _narrowed(everywhere, text)
        return cls(scopes=tuple(scopes) or (everywhere,))

    def admits(self, benchmark: str, state: State) -> bool:
        """Whether this state of this benchmark is to be compared."""
        return any(scope.admits(benchmark, state) for scope in self.scopes)

    def selects(self, benchmark: str) -> bool:
        """Whether any state of this benchmark could be."""
        return any(scope.benchmark in (None, benchmark) for scope in self.scopes)

    def check(self, benchmarks: Sequence[Benchmark]) -> None:
        """Raise StudyError for a name or a value that none of these benchmarks has."""
        for scope in self.scopes:
            asked = [each for each in benchmarks if scope.benchmark in (None, each.name)]
            if scope.benchmark is not None and not asked:
                raise _unknown(
                    f"-b {shown(scope.benchmark)}: there is no such benchmark",
                    (each.name for each in benchmarks),
                )
            for each in scope.axes:
                _check_axis(each, asked)


def _power(exponent: str, text: str) -> str:
    if not _EXPONENT.fullmatch(exponent) or int(exponent) > _LARGEST_EXPONENT:
        raise StudyError(
            f"-a {shown(text)}: an exponent of two is a number from 0 to {_LARGEST_EXPONENT}"
        )
    return str(2 ** int(exponent))


def _narrowed(scope: Scope, text: str) -> Scope:
    """The scope with one more filter, unless no value could meet it and those it has."""
    new = AxisFilter.of(text)
    for old in scope.axes:
        if old.axis == new.axis and set(old.values).isdisjoint(new.values):
            raise StudyError(
                f"-a {shown(old.text)} and -a {shown(new.text)} exclude each other; for both "
                f"values write AXIS=[A,B]"
            )
    return replace(scope, axes=(*scope.axes, new))


def _check_axis(wanted: AxisFilter, benchmarks: Sequence[Benchmark]) -> None:
    axes = [axis for each in benchmarks for state in each.states for axis in state.axes]
    own = [axis for axis in axes if axis.name == wanted.axis]
    if not own:
        raise _unknown(
            f"-a {shown(wanted.text)}: there is no such axis", (axis.name for axis in axes)
        )
    for value in wanted.values:
        if not replace(wanted, values=(value,)).admits(own):
            raise _unknown(
                f"-a {shown(wanted.text)}: no state is at {shown(value)}",
                (axis.shown for axis in own),
            )


def _unknown(what: str, names: Iterable[str]) -> StudyError:
    known = ", ".join(shown(name) for name in [*dict.fromkeys(names)][:_NAMED]) or "none"
    return StudyError(f"{what}; known: {known}")
