"""Which rounds count: one that something else on the machine disturbed is run again, a few times.

Whether it was disturbed is read from the machine alone, never from the times: leaving out what
looks slow would be choosing the result. A disturbed round is left out whole, and only once it was
replaced: where no launch is left for that, or nothing comes out undisturbed, it counts.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from records.conditions import Conditions
from records.study import Measure
from records.trial import Measured, Outcome, Purpose, Repeat
from search.rules import least_rounds

MOST_RUN_AGAIN = 2
"""Rounds of a contest; on a machine that is always disturbed the later ones count all the same."""

Rounds: TypeAlias = Mapping[int, Sequence[Repeat]]
"""The launches of one contest, by the number of their round."""


def counted(repeats: Iterable[Repeat], measure: Measure) -> tuple[Repeat, ...]:
    """The launches that count where the study searches, so none in contexts that are held out."""
    searched = (r for r in repeats if r.purpose is not Purpose.HELD_OUT)
    return without_replaced(searched, measure)


def without_replaced(repeats: Iterable[Repeat], measure: Measure) -> tuple[Repeat, ...]:
    """The launches whose rounds count, in their order."""
    launches = tuple(repeats)
    left_out = left_out_rounds(launches, measure)
    return tuple(r for r in launches if (r.series, r.purpose, r.round) not in left_out)


def left_out_rounds(
    launches: Iterable[Repeat], measure: Measure
) -> frozenset[tuple[int, Purpose, int]]:
    """The rounds that do not count: their series, purpose and number."""
    return frozenset(
        (series, purpose, number)
        for (series, purpose), rounds in _contests(launches).items()
        for number in _replaced(rounds, least_rounds(purpose, measure))
    )


def run_again(rounds: Rounds) -> tuple[int, ...]:
    """Rounds of a contest that are to be run again, or were; of a self-test there are none.

    A self-test is about the noise, and shows it as it is.
    """
    first = next((launch for launches in rounds.values() for launch in launches), None)
    if first is None or first.purpose is Purpose.SELF_TEST:
        return ()
    return tuple(n for n in sorted(rounds) if _is_disturbed(rounds[n]))[:MOST_RUN_AGAIN]


def is_disturbed(outcome: Outcome) -> bool:
    """Whether something else on the machine may have slowed a launch; a failed one counts not."""
    return isinstance(outcome, Measured) and any(
        one.conditions is not None and one.conditions.disturbances for one in outcome.measurements
    )


def _contests(
    launches: Iterable[Repeat],
) -> Mapping[tuple[int, Purpose], Mapping[int, list[Repeat]]]:
    contests: dict[tuple[int, Purpose], dict[int, list[Repeat]]] = defaultdict(dict)
    for repeat in launches:
        rounds = contests[repeat.series, repeat.purpose]
        rounds.setdefault(repeat.round, []).append(repeat)
    return contests


def _replaced(rounds: Rounds, least: int) -> tuple[int, ...]:
    """Disturbed rounds after which one of the same trials was undisturbed, while `least` remain."""
    left_out: list[int] = []
    for number in run_again(rounds):
        entrants = _entrants(rounds[number])
        others = [
            other
            for other in rounds
            if other not in (number, *left_out) and _entrants(rounds[other]) >= entrants
        ]
        later = (other for other in others if other > number)
        if len(others) >= least and not all(_is_disturbed(rounds[other]) for other in later):
            left_out.append(number)
    return tuple(left_out)


def _entrants(launches: Iterable[Repeat]) -> frozenset[int]:
    return frozenset(launch.ordinal for launch in launches)


def _is_disturbed(launches: Iterable[Repeat]) -> bool:
    """Whether all were measured, and some while the machine did something else."""
    conditions: list[Conditions | None] = []
    for launch in launches:
        if not isinstance(launch.outcome, Measured):
            return False
        conditions += [measurement.conditions for measurement in launch.outcome.measurements]
    return None not in conditions and any(each.disturbances for each in conditions if each)
