"""What a dimension can be set to: its choices as they are used, or its range listed."""

import itertools
from collections.abc import Sequence
from fractions import Fraction

from records.errors import StudyError
from records.study import MAX_CHOICES, Dimension, Range, Value

MAX_NUMBER = 2**63


def choices_of(dimension: Dimension) -> tuple[Value, ...]:
    """Every value of a dimension, all of one type; raises `StudyError` when it is malformed."""
    where = f"[space] {dimension.name!r}"
    if (dimension.choices is None) == (dimension.range is None):
        raise StudyError(f"{where}: give either choices or a range")
    choices = dimension.choices if dimension.range is None else _numbers(dimension.range, where)
    if not choices:
        raise StudyError(f"{where} lists no choices; give at least one")
    if all(type(choice) in {int, float} for choice in choices) and any(
        isinstance(choice, float) for choice in choices
    ):
        choices = tuple(float(choice) for choice in choices)
    if len({type(choice) for choice in choices}) > 1:
        raise StudyError(f"{where} mixes types in {list_words(choices)}; use one type")
    if len(set(choices)) < len(choices):
        raise StudyError(f"{where} repeats a choice in {list_words(choices)}")
    return choices


def list_words(choices: Sequence[Value]) -> str:
    """Choices as a list, cut when it is long."""
    shown = ", ".join(repr(choice) for choice in choices[:20])
    return f"[{shown}{', ...' if len(choices) > 20 else ''}]"


def _numbers(span: Range, where: str) -> tuple[Value, ...]:
    if not all(abs(end) < MAX_NUMBER for end in (span.low, span.high)):
        raise StudyError(f"{where}: a range lies within 64 bits, not {span.low} to {span.high}")
    if span.low > span.high:
        raise StudyError(f"{where}: range low {span.low} is above high {span.high}")
    step = 1 if span.step is None else span.step
    if not 0 < step < MAX_NUMBER:
        raise StudyError(f"{where}: range step {step} is not positive and finite")
    if span.scale == "doubling" and (span.low <= 0 or span.step is not None):
        raise StudyError(f"{where}: a doubling range needs low > 0 and takes no step")
    # As the range is written, not as floats add up: three steps of 0.1 are 0.3.
    low, high, apart = (Fraction(repr(n)) for n in (span.low, span.high, step))
    numbers = (
        low * 2**i if span.scale == "doubling" else low + apart * i for i in itertools.count()
    )
    listed = tuple(
        itertools.islice(itertools.takewhile(lambda n: n <= high, numbers), MAX_CHOICES + 1)
    )
    if len(listed) > MAX_CHOICES:
        raise StudyError(f"{where}: range has more than {MAX_CHOICES} values; give a larger step")
    whole = isinstance(span.low, int) and isinstance(step, int)
    return tuple(int(number) if whole else float(number) for number in listed)
