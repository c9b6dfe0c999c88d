"""The whole landscape of a study: every valid configuration, launched several times.

Rounds are interleaved in a shuffled order, so that whatever else the machine does hits all
configurations alike. The data file gets one line a launch, after a first line that says of which
study and on which machine; a run that was stopped goes on where it was. What is printed: how many
configurations run, how far the best is from the worst, how many are within reach of the best, and
how much launches of one configuration differ.

    python benchmarks/landscape.py --launches 3 --out benchmarks/data/landscape.jsonl
    python benchmarks/landscape.py -c docs/examples/collectives/study.toml --out mpi.jsonl
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random

import torch

from evaluator.evaluate import TrialEvaluator
from evaluator.launchers.local import LocalLauncher
from evaluator.machine import local_environment
from evaluator.recipes.catalog import recipe_of
from records.study import Study
from records.trial import Config, Measured, Outcome
from search import settings
from search.study.spaces import completed, space_of
from search.study.study_file import builtin_study, read_study_file

TIE = 1.05


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch as the data file has it; a step time exists exactly when it was measured."""

    config: Config
    step_s: float | None
    failure: str | None


def main() -> None:
    parser = argparse.ArgumentParser(description="The landscape of a study.")
    parser.add_argument("-c", "--config", type=Path, help="study file; else the built-in study")
    parser.add_argument("--launches", type=int, default=3, help="launches of each configuration")
    parser.add_argument("--out", type=Path, required=True, help="data file, continued if there")
    parser.add_argument("--summary", action="store_true", help="only tell what the file holds")
    options = parser.parse_args()
    if not options.summary:
        measure(asked_study(options.config), options.out, options.launches)
    report(list(read(options.out)))


def asked_study(path: Path | None) -> Study:
    study = builtin_study(local_environment())
    return completed(unprofiled(read_study_file(path, study) if path else study))


def measure(study: Study, out: Path, launches: int) -> None:
    recipe, space = recipe_of(study), space_of(study)
    recipe.check(study)
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(header(study)) + "\n", encoding="utf-8")
    done = Counter(launch.config for launch in read(out))
    environment = recipe.inherited(study, settings.trial_environment())
    launcher = LocalLauncher(environment, study.launch.threads_per_rank)
    evaluator = TrialEvaluator(recipe, launcher, lambda _phase: None)
    try:
        for number in range(launches):
            waiting = [config for config in space.feasible if done[config] <= number]
            Random(number).shuffle(waiting)
            for i, config in enumerate(waiting):
                print(f"\rround {number + 1}: {i + 1}/{len(waiting)}", end="", file=sys.stderr)
                with tempfile.TemporaryDirectory() as folder:
                    outcome = evaluator.evaluate(study, config, Path(folder))
                with out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row(number, config, outcome)) + "\n")
    finally:
        launcher.close()
        print(file=sys.stderr)


def unprofiled(study: Study) -> Study:
    return replace(study, measure=replace(study.measure, profiled_steps=0))


def header(study: Study) -> dict[str, object]:
    return {
        "study": study.name,
        "workload": asdict(study.workload),
        "machine": study.environment.accelerator,
        "world_size": study.environment.world_size,
        "memory_budget_bytes": study.launch.memory_budget_bytes,
        "torch": torch.__version__,
    }


def row(number: int, config: Config, outcome: Outcome) -> dict[str, object]:
    about = {"round": number, "config": dict(config.values), "status": outcome.status}
    if isinstance(outcome, Measured):
        return about | {
            "step_times_s": [round(step, 6) for step in outcome.measurement.slowest_rank_s],
            "peak_memory_bytes": max(outcome.measurement.peak_memory_bytes),
            "wall_s": round(outcome.measurement.wall_s or 0.0, 3),
        }
    return about | {"kind": outcome.kind, "message": outcome.message}


def read(path: Path) -> Iterator[Launch]:
    with path.open(encoding="utf-8") as lines:
        next(lines)
        for line in lines:
            told = json.loads(line)
            steps = told.get("step_times_s")
            yield Launch(
                Config(told["config"]),
                statistics.median(steps) if steps else None,
                told.get("kind"),
            )


def report(launches: Sequence[Launch]) -> None:
    configs = dict.fromkeys(launch.config for launch in launches)
    steps = {
        config: [x.step_s for x in launches if x.config == config and x.step_s is not None]
        for config in configs
    }
    failures = Counter(launch.failure for launch in launches if launch.failure)
    always = {config: times for config, times in steps.items() if times}
    ranked = sorted(always, key=lambda config: statistics.median(always[config]))
    if not ranked:
        raise SystemExit("nothing was measured")
    typical = [statistics.median(always[config]) for config in ranked]
    spreads = [max(times) / min(times) - 1 for times in always.values() if len(times) > 1]
    print(f"valid configurations  {len(configs)}, launches {len(launches)}")
    print(f"measured at least once {len(always)}; failed launches {dict(failures) or 'none'}")
    print(f"best                  {typical[0]:.4f} s  {ranked[0]}")
    print(f"worst                 {typical[-1]:.4f} s  {ranked[-1]}")
    print(f"worst to best         {typical[-1] / typical[0]:.2f}x")
    print(f"median to best        {statistics.median(typical) / typical[0]:.2f}x")
    print(f"within 5 % of best    {sum(step <= TIE * typical[0] for step in typical)}")
    if spreads:
        spreads.sort()
        print(
            f"between launches      max/min - 1: median {statistics.median(spreads):.1%}, "
            f"90th percentile {spreads[int(0.9 * (len(spreads) - 1))]:.1%}, most {spreads[-1]:.1%}"
        )


if __name__ == "__main__":
    main()
