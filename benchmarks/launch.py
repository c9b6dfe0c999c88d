"""What a launch costs: warm against cold, and a whole trial against the steps in it.

Two tables, both from real launches of this one run, interleaved so that whatever else the machine
does hits all rows alike.

The first starts the same job from the warm process and cold, by its own `torchrun` command, in
worlds of several sizes: seconds from the configuration to the moment at which the last rank is
through one all_reduce, and how many times longer cold takes.

The second launches trials of the default study from the warm process. `trial` is everything from
the configuration to its metrics, `first` the part of it up to the end of the first collective,
`steps` the part inside warm-up, timed and profiled steps, each as long as on its slowest rank, and
`overhead` the trial without its steps: what a faster cclsearch could save. Below it stands what
the first launch of a search pays once more, to start the warm process. Overhead means something on
a machine that is otherwise quiet: the end says how many of the trials were disturbed.

    python benchmarks/launch.py --repeats 5
    python benchmarks/launch.py --worlds 2 4 --json
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Literal

from evaluator.evaluate import TrialEvaluator
from evaluator.launchers.local import LocalLauncher
from evaluator.machine import local_environment
from evaluator.ports import Job
from evaluator.recipes.builtin import BuiltinRecipe
from evaluator.traces.readers.read import read_traces
from records.machine import Conditions
from records.study import Study
from records.trial import Config, Failed, Measurement
from search.study.study_file import builtin_study

HERE = Path(__file__).parent
ENTRY_MODULE = "first_collective"
STARTS: tuple[Literal["warm"], Literal["cold"]] = ("warm", "cold")
CONFIGS = (
    Config({"dp_replicate": 4, "micro_batch": 1}),
    Config({"dp_replicate": 4, "micro_batch": 2, "activation_checkpointing": "full"}),
    Config({"dp_shard": 4, "micro_batch": 1, "activation_checkpointing": "full"}),
    Config({"dp_replicate": 2, "pp": 2, "micro_batch": 1}),
    Config({"pp": 4, "micro_batch": 1}),
    Config({"dp_shard": 2, "tp": 2, "micro_batch": 2, "activation_checkpointing": "full"}),
)


class Noting(BuiltinRecipe):
    """The built-in recipe, with ranks that note when their first collective was done."""

    def job(self, study: Study, config: Config) -> Job:
        """Give the job with the entry that notes."""
        job = super().job(study, config)
        document = json.loads(job.files["job.json"]) | {"entry": f"{ENTRY_MODULE}:train"}
        modules = (ENTRY_MODULE, *job.modules) if job.modules else ()
        return replace(job, files={"job.json": json.dumps(document)}, modules=modules)


@dataclass(frozen=True, slots=True)
class Cost:
    """Wall time of one trial, and two parts of it, seconds."""

    trial_s: float
    first_collective_s: float
    steps_s: float
    conditions: Conditions

    @property
    def overhead_s(self) -> float:
        """What is left of the trial, seconds."""
        return self.trial_s - self.steps_s


@dataclass(frozen=True, slots=True)
class Spread:
    """Repeated launches: median and range, seconds."""

    median_s: float
    least_s: float
    most_s: float

    def __str__(self) -> str:
        return f"{self.median_s:.2f} ({self.least_s:.2f} to {self.most_s:.2f})"


@dataclass(frozen=True, slots=True)
class Start:
    """From the configuration to the end of the first collective on the last rank."""

    world_size: int
    warm: Spread
    cold: Spread

    @property
    def ratio(self) -> float:
        """How many times longer a cold start takes."""
        return self.cold.median_s / self.warm.median_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """Repeated trials of one configuration, each part by itself."""

    trial: Spread
    first_collective: Spread
    steps: Spread
    overhead: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Everything that is printed."""

    starts: tuple[Start, ...]
    trials: Mapping[str, TrialRow]
    warm_process_s: float
    disturbed: str | None


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def cost(evaluator: TrialEvaluator, study: Study, config: Config) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        started_ns = time.perf_counter_ns()
        outcome = evaluator.evaluate(study, config, Path(folder))
        ended_ns = time.perf_counter_ns()
        if isinstance(outcome, Failed) or outcome.measurement.conditions is None:
            raise SystemExit(f"{config}: {outcome}")
        notes = Path(folder).glob("rank*.first_collective.txt")
        first_ns = max(int(note.read_text(encoding="ascii")) for note in notes)
        traces = sorted(Path(folder).glob("rank*_trace.json"))
        return Cost(
            (ended_ns - started_ns) / 1e9,
            (first_ns - started_ns) / 1e9,
            unprofiled_s(outcome.measurement) + (profiled_s(traces) if traces else 0.0),
            outcome.measurement.conditions,
        )


def unprofiled_s(measurement: Measurement) -> float:
    warmup_s: float = sum(max(step) for step in zip(*measurement.warmup_times_s, strict=True))
    return warmup_s + sum(measurement.slowest_rank_s)


def profiled_s(traces: Sequence[Path]) -> float:
    ranks = read_traces(traces).ranks
    steps = [(trace.steps.end_ns - trace.steps.start_ns) / 1e9 for trace in ranks]
    return float(sum(max(step) for step in zip(*steps, strict=True)))


def measured_starts(
    evaluator: TrialEvaluator, worlds: Sequence[int], repeats: int
) -> tuple[Start, ...]:
    taken: dict[tuple[int, str], list[float]] = defaultdict(list)
    for _, world_size in product(range(repeats), worlds):
        config = Config({"dp_replicate": world_size, "micro_batch": 1})
        for start in STARTS:
            seconds = cost(evaluator, short_study(world_size, start), config).first_collective_s
            taken[world_size, start].append(seconds)
    return tuple(
        Start(world_size, spread(taken[world_size, "warm"]), spread(taken[world_size, "cold"]))
        for world_size in worlds
    )


def short_study(world_size: int, start: Literal["warm", "cold"]) -> Study:
    here = replace(local_environment(), world_size=world_size, ranks_per_node=world_size)
    study = builtin_study(here)
    return replace(
        study,
        measure=replace(study.measure, warmup_steps=1, profiled_steps=0),
        launch=replace(study.launch, start=start),
    )


def measured_trials(
    evaluator: TrialEvaluator, study: Study, repeats: int
) -> tuple[tuple[Config, tuple[Cost, ...]], ...]:
    rounds = [[cost(evaluator, study, config) for config in CONFIGS] for _ in range(repeats)]
    return tuple(zip(CONFIGS, zip(*rounds, strict=True), strict=True))


def trial_row(costs: Sequence[Cost]) -> TrialRow:
    return TrialRow(
        trial=spread([cost.trial_s for cost in costs]),
        first_collective=spread([cost.first_collective_s for cost in costs]),
        steps=spread([cost.steps_s for cost in costs]),
        overhead=spread([cost.overhead_s for cost in costs]),
    )


def disturbances(conditions: Sequence[Conditions]) -> str | None:
    """How many of these launches something else on the machine disturbed, and why the last one."""
    causes = [each.disturbances[0] for each in conditions if each.disturbances]
    if not causes:
        return None
    return f"{len(causes)} of {len(conditions)} launches, the last because {causes[-1]}"


def print_text(result: Result) -> None:
    print(f"{'ranks':>5} {'warm s':>24} {'cold s':>24}  cold/warm")
    for start in result.starts:
        print(f"{start.world_size:>5} {start.warm!s:>24} {start.cold!s:>24} {start.ratio:9.0f}x")
    print(f"\n{'trial s':>22} {'first s':>22} {'steps s':>22} {'overhead s':>22}  configuration")
    for name, row in result.trials.items():
        cells = (row.trial, row.first_collective, row.steps, row.overhead)
        print(" ".join(f"{cell!s:>22}" for cell in cells), f" {name}")
    print(f"\nstarting the warm process, once per search: {result.warm_process_s:.1f} s")
    print(f"disturbed: {result.disturbed or 'no trial'}")


def main() -> None:
    parser = argparse.ArgumentParser(description="What launching costs.")
    parser.add_argument("--repeats", type=int, default=3, help="launches of each row")
    parser.add_argument("--worlds", type=int, nargs="*", default=[2, 4, 8], help="numbers of ranks")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    study = builtin_study(local_environment())
    path = f"{Path(sys.executable).parent}:{os.defpath}"
    ours = {"PATH": path, "PYTHONPATH": f"{HERE}"}
    launcher = LocalLauncher(ours, study.launch.threads_per_rank)
    evaluator = TrialEvaluator(Noting(), launcher, lambda _phase: None)
    try:
        first = cost(evaluator, study, CONFIGS[0])
        starts = measured_starts(evaluator, options.worlds, options.repeats)
        trials = measured_trials(evaluator, study, options.repeats)
    finally:
        launcher.close()
    again_s = statistics.median(cost.first_collective_s for cost in trials[0][1])
    everything = [cost for _, costs in trials for cost in costs]
    result = Result(
        starts=starts,
        trials={str(config): trial_row(costs) for config, costs in trials}
        | {"all": trial_row(everything)},
        warm_process_s=first.first_collective_s - again_s,
        disturbed=disturbances([cost.conditions for cost in everything]),
    )
    if options.json:
        print(json.dumps(asdict(result), indent=1))
    else:
        print_text(result)


if __name__ == "__main__":
    main()
