"""Which rounds count: one that something else on the machine disturbed is run again, a few times.

Whether it was disturbed is read from the machine alone, never from the times: leaving out what
looks slow would be choosing the result. A disturbed round is left out whole.
"""

from collections import defaultdict
from collections.abc import Iterable

from records.conditions import Conditions
from records.trial import Measured, Purpose, Repeat

MOST_RUN_AGAIN = 2
"""Rounds of a contest; on a machine that is always disturbed the later ones count all the same."""


def counted(repeats: Iterable[Repeat]) -> tuple[Repeat, ...]:
    """The launches that count where the study searches, so none in contexts that are held out."""
    return undisturbed(r for r in repeats if r.purpose is not Purpose.HELD_OUT)


def undisturbed(repeats: Iterable[Repeat]) -> tuple[Repeat, ...]:
    """The launches whose rounds count, in their order; a self-test is about the noise and stays."""
    launches = tuple(repeats)
    left_out = left_out_rounds(launches)
    return tuple(r for r in launches if (r.series, r.purpose, r.round) not in left_out)


def left_out_rounds(launches: Iterable[Repeat]) -> frozenset[tuple[int, Purpose, int]]:
    """The rounds that do not count: their series, purpose and number."""
    contests: dict[tuple[int, Purpose], dict[int, list[Repeat]]] = defaultdict(dict)
    for repeat in launches:
        rounds = contests[repeat.series, repeat.purpose]
        rounds.setdefault(repeat.round, []).append(repeat)
    return frozenset(
        (series, purpose, number)
        for (series, purpose), rounds in contests.items()
        if purpose is not Purpose.SELF_TEST
        for number in [n for n in sorted(rounds) if _disturbed(rounds[n])][:MOST_RUN_AGAIN]
    )


def _disturbed(launches: Iterable[Repeat]) -> bool:
    """Whether all were measured, and some while the machine did something else."""
    conditions: list[Conditions | None] = []
    for launch in launches:
        if not isinstance(launch.outcome, Measured):
            return False
        conditions += [measurement.conditions for measurement in launch.outcome.measurements]
    return None not in conditions and any(each.disturbances for each in conditions if each)
