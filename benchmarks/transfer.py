"""What the best of an earlier study saves a search, on landscapes of which every point is known.

Of each kind several landscapes are drawn, with other models, sizes and machines, and each is
searched twice as `cclsearch run` does: with nothing known, and with what the search of the one
before announced. The worst configuration of that one is offered as well: a wrong candidate, which
should cost one launch.

    python benchmarks/transfer.py
    python benchmarks/transfer.py --kinds dense-16 --landscapes 3
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from statistics import fmean, median

from unseen_landscapes import unseen_landscape

from records.study import EarlierBest
from records.trial import Config
from search.strategy_bench.landscape import Ground
from search.strategy_bench.simulated import Simulated, simulate, simulated_study

REACH = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description="What the best of an earlier study saves.")
    parser.add_argument("--kinds", default="dense-16,dense-64,serving,nccl")
    parser.add_argument("--landscapes", type=int, default=6, help="of each kind")
    parser.add_argument("--searches", type=int, default=3, help="on each, from random starts")
    options = parser.parse_args()
    for kind in options.kinds.split(","):
        compare(kind, options.landscapes, options.searches)


def compare(kind: str, count: int, searches: int) -> None:
    """Print how searches end with and without the best of the landscape before."""
    grounds = [Ground(unseen_landscape(kind, seed)) for seed in range(1, count + 1)]
    found = defaultdict[str, list[tuple[float, int, int]]](list)
    for number, ground in enumerate(grounds):
        before = grounds[number - 1]
        for seed in range(searches):
            taught = _search(before, seed, ())
            worst = max(before.truths, key=before.excess)
            for name, config in (
                ("nothing known", None),
                ("with the best before", taught.winner),
                ("with a bad one", worst),
            ):
                ended = _search(ground, seed, () if config is None else (_known(config),))
                found[name].append(_summary(ground, ended))
    print(f"{kind}: {count} landscapes, {searches} searches of each")
    for name, rows in found.items():
        excess = [row[0] for row in rows]
        print(
            f"  {name:<21} within 5 %: {fmean(e <= REACH for e in excess):4.0%}, median "
            f"{median(excess):5.1%} above the best; {fmean(row[1] for row in rows):4.1f} trials, "
            f"{fmean(row[2] for row in rows):4.1f} launches",
            flush=True,
        )


def _search(ground: Ground, seed: int, earlier: Sequence[EarlierBest]) -> Simulated:
    start = Random(f"start/{seed}").choice([*ground.truths])
    study = replace(simulated_study(ground, "offline", seed), earlier=tuple(earlier))
    return simulate(ground, study, start)


def _known(config: Config) -> EarlierBest:
    return EarlierBest(study="before", settings=dict(config.values), speedup=2.0)


def _summary(ground: Ground, ended: Simulated) -> tuple[float, int, int]:
    excess = 1.0 if ended.winner is None else ground.excess(ended.winner)
    return excess, len(ended.trials), ended.launch_count


if __name__ == "__main__":
    main()
