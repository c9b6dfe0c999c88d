"""How far repeats of one configuration lie apart that others recorded, or we for another benchmark.

Two launches of the same configuration, one number each: whoever takes the lower for the faster is
wrong whichever he takes, and a threshold is right only if repeats differ by less. One pair of each
configuration counts, its first two launches, so that pairs are independent.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from decision_rates import Rate, rate
from scipy import stats

HERE = Path(__file__).parent
LANDSCAPE = HERE / "data" / "landscape.jsonl"
PUBLISHED = HERE.parents[1] / "shared" / "data" / "ccl_search_histories.jsonl"
APART = (0.03, 0.10)
ALPHA = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """Shares of the pairs that differ; `ranked_apart` by Mann-Whitney over steps, if known."""

    source: str
    pair_count: int
    apart: Mapping[float, Rate]
    ranked_apart: Rate | None


def recorded_repeats() -> Iterator[Repeats | str]:
    """Give what each file has to say, or in words that it is not there."""
    for path, source, pairs in (
        (LANDSCAPE, "every configuration of the built-in study, 4 ranks", landscape_pairs),
        (PUBLISHED, "published searches on 16 GPUs", published_pairs),
    ):
        yield repeats(source, pairs(path)) if path.exists() else f"{source}: {path} is not there"


def landscape_pairs(path: Path) -> list[Sequence[Sequence[float]]]:
    """The steps of two launches of each configuration."""
    taken = defaultdict(list)
    for row in _rows(path)[1:]:
        if row["status"] == "measured":
            taken[json.dumps(row["config"], sort_keys=True)].append(row["step_times_s"])
    return _first_two(taken)


def published_pairs(path: Path) -> list[Sequence[Sequence[float]]]:
    """The mean step of two launches of each configuration, within one search.

    A knob that the launch script ignored makes no other configuration; what was not launched again
    but served from a cache is no repeat.
    """
    taken = defaultdict(list)
    for row in _rows(path):
        if row["step_seconds"] is None or row["served_from_cache"]:
            continue
        config = dict(row["config"])
        if row["activation_checkpointing_effective"] is False:
            config.pop("activation_checkpointing", None)
        key = json.dumps([row["search_id"], row["workload"], row["gpus_used"], config])
        taken[key].append([row["step_seconds"]])
    return _first_two(taken)


def repeats(source: str, pairs: Sequence[Sequence[Sequence[float]]]) -> Repeats:
    """Count the pairs that differ."""
    ratios = [median(second) / median(first) for first, second in pairs]
    ranked = [
        bool(stats.mannwhitneyu(first, second).pvalue < ALPHA)
        for first, second in pairs
        if len(first) > 1
    ]
    return Repeats(
        source=source,
        pair_count=len(pairs),
        apart={
            limit: _share([max(ratio, 1 / ratio) > 1 + limit for ratio in ratios])
            for limit in APART
        },
        ranked_apart=_share(ranked) if ranked else None,
    )


def _share(found: Sequence[bool]) -> Rate:
    return rate(sum(found) / len(found), len(found))


def _first_two(taken: Mapping[str, list[list[float]]]) -> list[Sequence[Sequence[float]]]:
    return [launches[:2] for launches in taken.values() if len(launches) > 1]


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
