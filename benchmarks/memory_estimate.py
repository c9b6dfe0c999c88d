"""The memory estimate against measured peaks, over configurations of the built-in study.

Every configuration is launched once, without a memory budget, and printed with the estimate and
its parts, the measured peak of the rank that needed most, and the ratio of the two. On CPU ranks
the allocator is told to give freed memory back at once, for the estimate is of what is in use: as
it is, it keeps up to as much again.

    python benchmarks/memory_estimate.py --sample 20
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

from evaluator.estimate.memory import MemoryEstimate, estimate_memory
from evaluator.evaluate import TrialEvaluator
from evaluator.launchers.local import LocalLauncher
from evaluator.machine import local_environment
from evaluator.rank.job import DeviceKind
from evaluator.recipes.builtin import BuiltinRecipe, rank_config, rank_workload
from records.expression import format_bytes
from records.study import Study
from records.trial import Config, Measured
from search.study.spaces import completed, space_of
from search.study.study_file import builtin_study

GIVEN_BACK_BYTES = 1 << 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=20, help="how many configurations")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    options = parser.parse_args()
    study = unlimited(builtin_study(local_environment()))
    configs = space_of(study).sample(options.sample, Random(options.seed))
    ratios = []
    print(f"{'estimate':>10} {'measured':>10} {'ratio':>6}  configuration: parts of the estimate")
    for config, estimate, measured_bytes in measure(study, configs):
        ratios.append(estimate.total_bytes / measured_bytes)
        print(
            f"{format_bytes(estimate.total_bytes):>10} {format_bytes(measured_bytes):>10}"
            f" {ratios[-1]:6.2f}  {config}: {parts(estimate)}",
            flush=True,
        )
    print(f"ratio: {min(ratios):.2f} to {max(ratios):.2f}, median {statistics.median(ratios):.2f}")


def unlimited(study: Study) -> Study:
    return completed(
        replace(
            study,
            measure=replace(study.measure, profiled_steps=0),
            launch=replace(study.launch, memory_budget_bytes=None),
        )
    )


def measure(
    study: Study, configs: tuple[Config, ...]
) -> Iterator[tuple[Config, MemoryEstimate, int]]:
    path = f"{Path(sys.executable).parent}:{os.defpath}"
    environment = {"PATH": path, "MALLOC_MMAP_THRESHOLD_": str(GIVEN_BACK_BYTES)}
    launcher = LocalLauncher(environment, study.launch.threads_per_rank)
    evaluator = TrialEvaluator(BuiltinRecipe(), launcher, lambda _phase: None)
    work, device = rank_workload(study.workload), DeviceKind(study.environment.device)
    try:
        for config in configs:
            with tempfile.TemporaryDirectory() as folder:
                outcome = evaluator.evaluate(study, config, Path(folder))
            if not isinstance(outcome, Measured):
                print(f"{config}: {outcome}", file=sys.stderr)
                continue
            settings = {**study.space.defaults, **config.values}
            estimate = estimate_memory(work, rank_config(settings), device)
            yield config, estimate, max(outcome.measurement.peak_memory_bytes)
    finally:
        launcher.close()


def parts(estimate: MemoryEstimate) -> str:
    told = ", ".join(
        f"{name} {format_bytes(size)}" for name, size in estimate.parts.items() if size
    )
    return f"{estimate.moment}: {told}"


if __name__ == "__main__":
    main()
