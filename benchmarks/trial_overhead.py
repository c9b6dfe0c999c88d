"""What a trial costs beyond the steps that it runs, in real launches of the default study.

A row is one configuration, its numbers the median of its repeats. `trial` is the wall time of
everything between a configuration and its metrics: fork the ranks, join them, build the model,
run, trace, read, measure. `steps` is the part of it spent inside warm-up, timed and profiled
steps, each as long as on its slowest rank; timed under the profiler, profiled steps come from the
traces. `overhead` is the rest, what a faster cclsearch could save. The last line tells what the
first trial of a search pays once more, to start the warm process (import torch). Repeats are
interleaved, so that whatever else the machine does hits all rows alike; overhead in percent only
means something on a machine that is otherwise quiet.

    python benchmarks/trial_overhead.py --repeats 3
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evaluator.evaluate import TrialEvaluator
from evaluator.launchers.local import LocalLauncher
from evaluator.machine import local_environment
from evaluator.readers.job import read_traces
from evaluator.recipes.builtin import BuiltinRecipe
from records.study import Study
from records.trial import Config, Failed, Measurement
from search.builtin import builtin_study

CONFIGS = (
    Config({"dp_replicate": 4, "micro_batch": 1}),
    Config({"dp_replicate": 4, "micro_batch": 2, "activation_checkpointing": "full"}),
    Config({"dp_shard": 4, "micro_batch": 1, "activation_checkpointing": "full"}),
    Config({"dp_replicate": 2, "pp": 2, "micro_batch": 1}),
    Config({"pp": 4, "micro_batch": 1}),
    Config({"dp_shard": 2, "tp": 2, "micro_batch": 2, "activation_checkpointing": "full"}),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Wall time of one trial and the part of it spent in steps, seconds."""

    trial_s: float
    steps_s: float

    @property
    def overhead_s(self) -> float:
        """What is left of the trial, seconds."""
        return self.trial_s - self.steps_s


def measured(evaluator: TrialEvaluator, study: Study, config: Config) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        outcome = evaluator.evaluate(study, config, Path(folder))
        trial_s = time.perf_counter() - started
        if isinstance(outcome, Failed):
            raise SystemExit(f"{config}: {outcome}")
        traces = read_traces(sorted(Path(folder).glob("rank*_trace.json.gz")))
    profiled = [(trace.steps.end_ns - trace.steps.start_ns) / 1e9 for trace in traces.ranks]
    profiled_s = float(sum(max(step) for step in zip(*profiled, strict=True)))
    return Cost(trial_s, unprofiled_s(outcome.measurement) + profiled_s)


def unprofiled_s(measurement: Measurement) -> float:
    warmup_s: float = sum(max(step) for step in zip(*measurement.warmup_times_s, strict=True))
    return warmup_s + sum(measurement.slowest_rank_s)


def row(name: str, costs: Sequence[Cost]) -> str:
    trial_s = statistics.median(cost.trial_s for cost in costs)
    steps_s = statistics.median(cost.steps_s for cost in costs)
    overhead_s = statistics.median(cost.overhead_s for cost in costs)
    share = statistics.median(cost.overhead_s / cost.trial_s for cost in costs)
    return f"{name:<64} {trial_s:7.2f} {steps_s:7.2f} {overhead_s:9.2f} {share:6.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Overhead of a trial beyond its steps.")
    parser.add_argument("--repeats", type=int, default=3, help="launches of each configuration")
    repeats = parser.parse_args().repeats
    study = builtin_study(local_environment())
    path = f"{Path(sys.executable).parent}:{os.defpath}"
    launcher = LocalLauncher({"PATH": path}, study.launch.threads_per_rank)
    evaluator = TrialEvaluator(BuiltinRecipe(), launcher, lambda _phase: None)
    try:
        first = measured(evaluator, study, CONFIGS[0])
        rounds = [[measured(evaluator, study, c) for c in CONFIGS] for _ in range(repeats)]
    finally:
        launcher.close()
    print(
        f"{'median of ' + str(repeats):<64} {'trial s':>7} {'steps s':>7} {'overhead s':>9}      %"
    )
    for config, costs in zip(CONFIGS, zip(*rounds, strict=True), strict=True):
        print(row(str(config), costs))
    print(row("all", [cost for costs in rounds for cost in costs]))
    again_s = statistics.median(costs[0].overhead_s for costs in rounds)
    print(f"starting the warm process, once per search: {first.overhead_s - again_s:.1f} s")


if __name__ == "__main__":
    main()
