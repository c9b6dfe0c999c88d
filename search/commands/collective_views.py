"""Prints what is communicated and how fast, and which rank the others wait for."""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import typer

from evaluator.analysis.bandwidth import bandwidths
from evaluator.analysis.matching import Matches
from evaluator.analysis.stragglers import Imbalance, Stragglers, imbalance, stragglers
from search.commands.trace_heads import (
    MOST_RANKS,
    head_facts,
    print_caveats,
    print_head,
    trace_caveats,
)
from search.tables import Column, numbers, print_table, print_words
from search.traces.collectives import collective_rows, group_rows, traffic_rows, wait_rows
from search.traces.tables import Row
from search.traces.traced import Traced
from search.words.quantities import ABSENT, duration, rate, share, size

MOST_SIZES = 16
NONE_MATCHED = "no collective of two ranks could be matched, so nobody can be compared"


def print_collectives(found: Traced, plot: Path | None, *, as_json: bool) -> None:
    """Print collectives by kind, group and size, and the traffic of a step."""
    traces = found.traces
    matches = found.matches
    instances = collective_rows(traces, matches, bandwidths(traces, matches))
    traffic = traffic_rows(found.evidence.volume, matches)
    if as_json:
        unmatched = {lack.name.lower(): count for lack, count in matches.unmatched().items()}
        facts = {
            "groups": group_rows(matches),
            "collectives": instances,
            "traffic": traffic,
            "unmatched": unmatched,
        }
        typer.echo(json.dumps({**head_facts(found), **facts}))
    else:
        print_head(found)
        _print_sizes(instances)
        _print_traffic(traffic)
        print_caveats(*_unmatched_words(matches), *_partial_words(instances))
        print_caveats(*trace_caveats(traces))
    if plot is not None:
        # Imported here: matplotlib takes a second, and only drawing needs it.
        from search.traces.plots import bandwidth_figure, save

        save(bandwidth_figure(instances, found.name), plot)


def _print_sizes(instances: Sequence[Row]) -> None:
    """A line for each kind, group and size, the one that takes longest in all first."""
    if not instances:
        typer.echo("no collective that can be matched over ranks")
        return
    alike: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in instances:
        alike[row["kind"], row["group_id"], row["bytes"]].append(row)
    groups = sorted(alike.values(), key=lambda rows: -sum(_floats(rows, "time_s")))
    shown = groups[:MOST_SIZES]
    print_table(
        Column(heading="collective", cells=[str(rows[0]["kind"]) for rows in shown]),
        numbers("ranks", [str(rows[0]["group_size"] or ABSENT) for rows in shown]),
        numbers("size", [size(_number(rows[0]["bytes"])) for rows in shown]),
        numbers("count", [str(len(rows)) for rows in shown]),
        numbers("time", [duration(median(_floats(rows, "time_s"))) for rows in shown]),
        numbers("on the bus", [_speed(rows) for rows in shown]),
        numbers("waited", [duration(_mean_wait(rows)) for rows in shown]),
        Column(heading="group", cells=[str(rows[0]["group"]) for rows in shown], yielding=True),
    )
    if len(groups) > len(shown):
        typer.echo(f"{len(groups) - len(shown)} more kinds and sizes; --json has all")
    typer.echo("time and bandwidth are medians without waiting; waited is per call and rank")


def _mean_wait(rows: Sequence[Row]) -> float | None:
    """Per call; None where each is shown by one rank only, which tells nothing."""
    shown = [row for row in rows if row["last_rank"] is not None]
    return sum(_floats(shown, "wait_s")) / sum(_floats(shown, "shown_count")) if shown else None


def _speed(rows: Sequence[Row]) -> str:
    """At the median; at least that where the last to come may have left no trace."""
    speeds = _floats(rows, "bus_bytes_per_s")
    if not speeds:
        return ABSENT
    least = "≥ " if any(row["partial"] for row in rows) else ""
    return f"{least}{rate(median(speeds))}"


def _print_traffic(traffic: Sequence[Row]) -> None:
    for row in traffic[:MOST_SIZES]:
        count, moved = row["calls_per_step"], _number(row["bytes_per_step"])
        told = size(moved) if moved is not None else "an untold number of bytes"
        group = row["group"] or "an unnamed group"
        typer.echo(f"per step and rank: {told} in {count:.4g} {row['kind']} of {group}")


def _unmatched_words(matches: Matches) -> list[str]:
    lacks = matches.unmatched()
    if not lacks:
        return []
    told = ", ".join(f"{count} {lack.words}" for lack, count in lacks.items())
    return [f"{sum(lacks.values())} calls are matched to no other rank's: {told}"]


def _partial_words(instances: Sequence[Row]) -> list[str]:
    partial = sum(bool(row["partial"]) for row in instances)
    if not partial:
        return []
    return [
        f"{partial} of {len(instances)} collectives are not shown by all of their ranks: times "
        "may include waiting, bandwidths are lower bounds"
    ]


def print_stragglers(found: Traced, *, as_json: bool) -> None:
    """Print what ranks wait for each other, and how unequally they compute."""
    traces, split = found.traces, found.evidence.split
    waits = stragglers(traces, found.matches)
    unequal = imbalance(split) if split is not None else None
    rows = wait_rows(waits, split)
    if as_json:
        facts = {
            "straggler": waits.straggler if waits else None,
            "waiting_share": waits.waiting_share if waits else None,
            "exposed_share": waits.exposed_share if waits else None,
            "compute_max_over_min": unequal.max_over_min if unequal else None,
            "compute_max_over_mean": unequal.max_over_mean if unequal else None,
            "waits": rows,
        }
        typer.echo(json.dumps({**head_facts(found), **facts}))
        return
    print_head(found)
    if waits is None:
        typer.echo(NONE_MATCHED)
    else:
        _print_waits(rows)
        print_words(_verdict(waits))
    if unequal is not None:
        typer.echo(_imbalance_words(unequal))
    partial = waits.partial_count if waits else 0
    unseen = f"{partial} collectives have ranks without a trace, which may have come later still"
    print_caveats(*([unseen] if partial else []), *trace_caveats(traces))


def _print_waits(rows: Sequence[Row]) -> None:
    shown = sorted(rows, key=lambda row: -(_number(row["caused_wait_s"]) or 0))[:MOST_RANKS]
    print_table(
        numbers("rank", [str(row["rank"]) for row in shown]),
        numbers("others waited", [duration(_number(row["caused_wait_s"])) for row in shown]),
        numbers("it waited", [duration(_number(row["waited_s"])) for row in shown]),
        numbers("came last", [share(_number(row["last_share"])) for row in shown]),
        numbers("by chance", [share(_number(row["chance_share"])) for row in shown]),
        numbers("computes", [duration(_number(row["compute_s"])) for row in shown]),
    )
    if len(rows) > len(shown):
        typer.echo(f"{len(rows) - len(shown)} more ranks, which others waited less for")
    typer.echo("per step; waits in several collectives at once add up")


def _verdict(waits: Stragglers) -> str:
    if waits.straggler is None:
        return "nobody waited for anybody"
    exposed, waiting = share(waits.exposed_share), share(waits.waiting_share)
    return (
        f"straggler: rank {waits.straggler}; the others wait for it {waiting} of their steps, "
        f"{exposed} with nothing to compute meanwhile"
    )


def _imbalance_words(unequal: Imbalance) -> str:
    return (
        f"compute: rank {unequal.busiest} takes {unequal.max_over_min:.3f} times the quickest "
        f"rank's time, {unequal.max_over_mean:.3f} times the mean"
    )


def _floats(rows: Sequence[Row], name: str) -> list[float]:
    told = (_number(row[name]) for row in rows)
    return [value for value in told if value is not None]


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
