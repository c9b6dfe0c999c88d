"""What the metrics of the public leaderboard are: its names, units, and what is wrong with values.

They were computed by other definitions than ours, so that their columns are `published_...` and
stand beside ours, never in one with them.
"""

import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Final

from evaluator.metrics.published import PREFIX
from search.leaderboard.submission import Better, Reading

if TYPE_CHECKING:
    from evaluator.metrics.base import Formula

NOT_GIVEN: Final = "the entry gives none"
SENTINEL: Final = "-1 stands for nothing found"
NO_FILES: Final = "0 is what its tool says where it finds no file by the name that it expects"
_VOLUMES: Final = ("allreduce", "allgather", "reducescatter", "alltoall", "total")
_BANDWIDTHS: Final = ("allreduce", "allgather", "reducescatter", "alltoall", "peertopeer")
_ALIASES: Final[Mapping[str, str]] = {
    **{f"bandwidth_utilization_{name}_group_6": f"bw_{name}" for name in _BANDWIDTHS},
    "memory_transfer_overhead_group_9": "memory_transfer_overhead",
}
_FURTHER: Final[Mapping[str, tuple[str, Better, str]]] = {
    **{
        f"collective_vol_{name}_gb": (
            "GB",
            "lower",
            "Bytes of the first rank over all steps in its file, though it is called per step.",
        )
        for name in _VOLUMES
    },
    "scale_up_bw_utility": (
        "%",
        "higher",
        "What doubling the link would gain in a simulation that never overlaps computation and "
        "communication, and that was not compared with the measured step.",
    ),
    "gpu_step_score": (
        "",
        "higher",
        "The term of the device count is not bounded, that of the step time hardly moves.",
    ),
}


def column_of(name: str) -> str:
    """The column of a published metric, by either of its names."""
    plain = name.removeprefix(PREFIX)
    return f"{PREFIX}{_ALIASES.get(plain, plain)}"


@cache
def _defined() -> "Mapping[str, Formula]":
    from evaluator.metrics.compat import CCL_BENCH  # brings numpy, and few entries need it

    return {each.name: each for each in CCL_BENCH}


def defect_of(column: str) -> str | None:
    """What is wrong with a published metric's definition; None where nothing is known."""
    if not column.startswith(PREFIX):
        return None
    name = column.removeprefix(PREFIX)
    if name in _defined():
        return _defined()[name].differs
    return _FURTHER[name][2] if name in _FURTHER else None


def published_readings(values: Mapping[str, object]) -> dict[str, Reading]:
    """The metrics of an entry by column; a stand-in for no value is none."""
    found = {column_of(name): _reading(column_of(name), value) for name, value in values.items()}
    numbers = {name: each.value for name, each in found.items() if each.value is not None}
    for name, words in _doubts(numbers):
        told = found[name]
        found[name] = Reading(unit=told.unit, better=told.better, value=told.value, doubt=words)
    return found


def _reading(column: str, value: object) -> Reading:
    unit, better = unit_and_better(column)
    number = _number(value)
    absent = _absent(column, value, number)
    if absent is not None:
        return Reading(unit=unit, better=better, absent=absent)
    return Reading(unit=unit, better=better, value=number)


def unit_and_better(column: str) -> tuple[str, Better]:
    """Unit of a published metric and which way it is better, as far as is known."""
    name = column.removeprefix(PREFIX)
    if name in _defined():
        return _defined()[name].unit, _defined()[name].better
    unit, better, _ = _FURTHER.get(name, ("", "lower", ""))
    return unit, better


def _absent(column: str, value: object, number: float | None) -> str | None:
    """Why there is no value; None where there is one."""
    if value is None or value == "":
        return NOT_GIVEN
    if number is None:
        return "what the entry gives is no finite number"
    if number == -1:
        return SENTINEL
    if number < 0:
        return f"{number:g} cannot be: nothing that it measures is below 0"
    if number == 0 and column == f"{PREFIX}straggler":
        return NO_FILES
    return None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _doubts(values: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Values that cannot be what they are called."""
    step_s = values.get(f"{PREFIX}avg_step_time")
    communication_s = values.get(f"{PREFIX}total_communication_time")
    if step_s is not None and communication_s is not None and communication_s > step_s:
        yield (
            f"{PREFIX}total_communication_time",
            f"{communication_s:.4g} s is more than the step of {step_s:.4g} s that it is part of",
        )
    for name, value in values.items():
        if unit_and_better(name)[0] == "%" and value > 100:
            yield name, f"{value:.4g} % is more than all"
