"""Compares the results of two collective benchmarks, point by point."""

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from itertools import chain
from typing import TypeAlias, TypeVar

from evaluator.timing.bench_csv import LATENCY, BenchRow, Point
from evaluator.timing.paired import Launch, Rule
from records.errors import StudyError
from search.comparing.compared import Compared, Comparisons, Party, Terms, corrected
from search.comparing.points import ONCE, UNPAIRED, Replicates, Turn, judged
from search.comparing.sides import Bench

RUN, ORDER = "RunId", "Order"
ROUND_COLUMNS = ("LaunchId", "Block")

Rows: TypeAlias = Sequence[BenchRow]
K = TypeVar("K", bound=Hashable)


def compare_bench(a: Bench, b: Bench, terms: Terms) -> Comparisons:
    """Judge the latencies of B against those of A; what one side lacks is not judged."""
    rule = terms.over(ONCE)
    of_a, of_b = _by_point(a.rows), _by_point(b.rows)
    lines = corrected(judged_points(of_a, of_b, rule).values(), rule)
    if not lines:
        raise StudyError(
            f"{a.name} and {b.name} have no point in common ({next(iter(of_a))}, for example, "
            f"and {next(iter(of_b))}); give results of the same points"
        )
    return Comparisons(
        a=Party(name=a.name, settings=_software(a.rows)),
        b=Party(name=b.name, settings=_software(b.rows)),
        quantity=LATENCY.partition("(")[0],
        unit="us",
        lines=lines,
        rule=rule,
        only_a=tuple(str(point) for point in of_a if point not in of_b),
        only_b=tuple(str(point) for point in of_b if point not in of_a),
        caveats=_devices(a.rows, b.rows),
        next_steps=(
            f"run A and B in turns, {rule.min_rounds} times or more, and name each round in a "
            "column Block of both files",
        )
        if any(line.comparison.reason in UNPAIRED for line in lines)
        else (),
    )


def judged_points(a: Mapping[K, Rows], b: Mapping[K, Rows], rule: Rule) -> Mapping[K, Compared]:
    """Judge the latencies of B against those of A at each point that both have rows of."""
    columns = _round_columns(*(list(chain.from_iterable(side.values())) for side in (a, b)))
    return {
        point: judged(str(point), _replicates(rows, columns), _replicates(b[point], columns), rule)
        for point, rows in a.items()
        if point in b
    }


def _by_point(rows: Rows) -> Mapping[Point, list[BenchRow]]:
    found: dict[Point, list[BenchRow]] = defaultdict(list)
    for row in rows:
        found[row.point].append(row)
    return found


def _replicates(rows: Rows, columns: Sequence[str]) -> Replicates:
    measured = [row for row in rows if row.latency_us is not None]
    return Replicates(
        values=tuple(_latencies(measured)),
        rounds={
            label: Turn(
                launch=Launch(value=statistics.median(_latencies(parts))), order=_order(parts)
            )
            for label, parts in _by_label(measured, columns).items()
        },
    )


def _latencies(rows: Rows) -> list[float]:
    return [row.latency_us for row in rows if row.latency_us is not None]


def _round_columns(a: Rows, b: Rows) -> tuple[str, ...]:
    """The columns whose values name a round of both sides; none where nothing does.

    A launch counts as one round, however many blocks it was measured in; where every launch has a
    name of its own, the blocks are what both sides share.
    """
    run = (RUN,) if _have(a, RUN) and _have(b, RUN) else ()
    for name in ROUND_COLUMNS:
        if _have(a, name) and _have(b, name):
            labels = [set(_by_label(rows, (*run, name))) for rows in (a, b)]
            if labels[0] & labels[1]:
                return (*run, name)
    return run


def _have(rows: Rows, column: str) -> bool:
    return all(column in row.columns for row in rows)


def _by_label(rows: Rows, columns: Sequence[str]) -> Mapping[str, list[BenchRow]]:
    """Rows of each round; without columns that name rounds there are none."""
    found: dict[str, list[BenchRow]] = defaultdict(list)
    for row in rows if columns else ():
        found[" ".join(row.columns[column] for column in columns)].append(row)
    return found


def _order(rows: Rows) -> float | None:
    """When the first of these was measured within its round, if that is told as a number."""
    try:
        orders = [float(row.columns[ORDER]) for row in rows]
    except (KeyError, ValueError):
        return None
    return min(orders) if all(map(math.isfinite, orders)) else None


def _software(rows: Rows) -> str:
    """What carried it out, as far as the first row tells."""
    columns = ("CommAdapter", "CommBackend", "CommBackendVersion")
    return " ".join(rows[0].columns[name] for name in columns if name in rows[0].columns)


def _devices(a: Rows, b: Rows) -> tuple[str, ...]:
    """A caveat where the two were measured on other devices."""
    named = [
        " and ".join(sorted({row.columns.get("DeviceName", "") for row in rows})) for rows in (a, b)
    ]
    if named[0] == named[1] or not all(named):
        return ()
    return (f"A was measured on {named[0]}, B on {named[1]}",)
