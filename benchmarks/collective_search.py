"""Whether a search over collective settings finds the best one, in how few launches.

Every configuration of a study is launched several times, in shuffled rounds: its cost is the median
over its launches, the lowest is the optimum. Then the same study is searched by `cclsearch run`,
with a third of so many trials, several times from different seeds. Told are for each search what it
announced, how far that is from the optimum by the exhaustive costs (which no search sees), and the
trials that it had used when the configuration that it announced was first measured. As single
launches differ by more than what is asked here, it is then launched beside the best few of the
exhaustive costs, taking turns with them, several times: the median ratio of their step times, with
its 95 % interval, is what counts.

    python benchmarks/collective_search.py --launches 2 --searches 3
    python benchmarks/collective_search.py -c study.toml --data mpi.jsonl   # goes on
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from collectives_peer import interval
from landscape import Launch, asked_study, measure, read

from evaluator.evaluate import TrialEvaluator
from evaluator.launchers.local import LocalLauncher
from evaluator.recipes.catalog import recipe_of
from records.store.store import Store
from records.study import Study
from records.trial import Config, Failed, Outcome
from search import settings
from search.loop.leader import study_leader
from search.settings import open_store
from search.study.spaces import space_of

STUDY = Path(__file__).parent / "data" / "mpi_all_reduce.toml"
REACH = 1.05
SHARE = 3
RIVALS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """One search: what it announced, at which trial it was first measured, and all launches."""

    found: Config
    trial_count: int
    found_at: int
    launch_count: int


def main() -> None:
    parser = argparse.ArgumentParser(description="A search against the exhaustive optimum.")
    parser.add_argument("-c", "--config", type=Path, default=STUDY, help="study file")
    parser.add_argument("--launches", type=int, default=3, help="launches of each configuration")
    parser.add_argument("--data", type=Path, help="exhaustive launches; continued if there")
    parser.add_argument("--searches", type=int, default=3, help="searches, each from its seed")
    parser.add_argument("--strategy", default="offline")
    parser.add_argument("--rounds", type=int, default=12, help="of what was found beside the best")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = options.data or Path(folder, "landscape.jsonl")
        study = asked_study(options.config)
        measure(study, data, options.launches)
        costs = exhaustive_costs(list(read(data)))
        report_landscape(costs, len(space_of(study).feasible))
        budget = len(space_of(study).feasible) // SHARE
        for seed in range(options.searches):
            store = Path(folder, f"store{seed}")
            search(options.config, options.strategy, budget, seed, store)
            found = searched(store)
            report_search(seed, found, costs)
            report_turns(study, found.found, ranked(costs)[:RIVALS], options.rounds)
    print(f"load at the end       {os.getloadavg()[0]:.1f}")


def exhaustive_costs(launches: Sequence[Launch]) -> Mapping[Config, float]:
    """Median step time of each configuration that was measured, seconds."""
    times: dict[Config, list[float]] = defaultdict(list)
    for launch in launches:
        if launch.step_s is not None:
            times[launch.config].append(launch.step_s)
    return {config: statistics.median(values) for config, values in times.items()}


def report_landscape(costs: Mapping[Config, float], feasible_count: int) -> None:
    order = ranked(costs)
    best, worst = order[0], order[-1]
    print(f"configurations        {feasible_count}, measured {len(costs)}")
    print(f"best                  {costs[best] * 1e3:.2f} ms  {best}")
    print(f"worst                 {costs[worst] * 1e3:.2f} ms  {worst}")
    print(f"worst to best         {costs[worst] / costs[best]:.2f}x")
    near = sum(cost <= REACH * costs[best] for cost in costs.values())
    print(f"within 5 % of best    {near}")


def ranked(costs: Mapping[Config, float]) -> list[Config]:
    return sorted(costs, key=lambda config: costs[config])


def report_turns(study: Study, found: Config, rivals: Sequence[Config], rounds: int) -> None:
    configs = list(dict.fromkeys([found, *rivals]))
    ratios: dict[Config, list[float]] = defaultdict(list)
    for number in range(rounds):
        steps_s = step_times_together(study, configs, number)
        for rival in configs[1:]:
            ratios[rival].append(steps_s[0] / steps_s[configs.index(rival)])
    for rival, values in ratios.items():
        low, high = interval(sorted(values))
        ratio = f"{statistics.median(values):.3f}x [{low:.3f}, {high:.3f}]"
        print(f"  in turns, {rounds} rounds  {ratio} of {rival}")
    worst = max(map(statistics.median, ratios.values()), default=1.0)
    verdict = "within 5 %" if worst <= REACH else "not within 5 %"
    print(f"  in turns            {verdict} of the best: {worst:.3f}x")


def step_times_together(study: Study, configs: Sequence[Config], seed: int) -> list[float]:
    """Median step time of each configuration, all launched at once and taking turns."""
    recipe = recipe_of(study)
    environment = recipe.inherited(study, settings.trial_environment())

    def launcher() -> LocalLauncher:
        return LocalLauncher(environment, study.launch.threads_per_rank)

    with closing(launcher()) as first, tempfile.TemporaryDirectory() as folder:
        evaluator = TrialEvaluator(recipe, first, lambda _phase: None, launcher)
        places = [Path(folder, str(place)) for place in range(len(configs))]
        for place in places:
            place.mkdir()
        with closing(evaluator):
            outcomes = evaluator.evaluate_together(study, configs, places, seed)
    return [median_step_s(outcome) for outcome in outcomes]


def median_step_s(outcome: Outcome) -> float:
    if isinstance(outcome, Failed):
        raise SystemExit(f"a launch failed: {outcome}")
    return statistics.median(outcome.measurement.slowest_rank_s)


def search(config: Path, strategy: str, budget: int, seed: int, store: Path) -> None:
    asked = config.read_text(encoding="utf-8")
    seeded = store.with_suffix(".toml")
    seeded.write_text(f"random_seed = {seed}\n{asked}", encoding="utf-8")
    command = [str(Path(sys.executable).with_name("cclsearch")), "run", "-c", str(seeded)]
    command += ["--strategy", strategy, "--store", str(store)]
    command += ["--trials", str(budget), "--patience", str(budget)]
    subprocess.run(command, check=True, stdout=sys.stderr)


def searched(store: Path) -> Search:
    with open_store(store) as records:
        return _search(records)


def _search(records: Store) -> Search:
    row = records.find("")
    standing = study_leader(row, records)
    best = standing.history.best
    if best is None or best.config is None:
        raise SystemExit("the search measured nothing")
    launched = [trial.ordinal for trial in standing.history if trial.launched]
    return Search(
        found=best.config,
        trial_count=len(launched),
        found_at=launched.index(best.ordinal) + 1,
        launch_count=len(launched) + len(records.repeats(row.id)),
    )


def report_search(seed: int, found: Search, costs: Mapping[Config, float]) -> None:
    best = min(costs.values())
    above = costs[found.found] / best
    told = f"{above:.3f}x the optimum by its exhaustive cost, {found.found}"
    print(f"search {seed}              {told}")
    print(
        f"                      {found.trial_count} trials of {len(costs)} configurations, "
        f"found at trial {found.found_at}; {found.launch_count} launches with races and final"
    )


if __name__ == "__main__":
    main()
