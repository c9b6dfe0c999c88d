"""What a launch by the agents of an allocation costs, against the local launcher on the same job.

Run it inside an allocation of Slurm of two nodes, with a folder that they share. Each round
launches the same job of two ranks on this machine, on one node, and spread over two nodes, in an
order that changes. `launch` is everything from the configuration to its metrics, `steps` the part
inside its steps, `overhead` the rest; `more than local` is the overhead less that of the local
launch of the same round. The first round starts agents and warm processes, and is left out.

    salloc --nodes=2 --exclusive python benchmarks/cluster_launch.py --shared-dir /shared/me
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from launch import profiled_s, unprofiled_s

from evaluator.evaluate import TrialEvaluator
from evaluator.launchers.cluster.launcher import open_launchers
from evaluator.launchers.cluster.nodes import NodeSlots, nodes_of
from evaluator.machine import local_environment
from evaluator.recipes.builtin import BuiltinRecipe
from records.study import Cluster, Study
from records.trial import Config, Failed
from search import settings
from search.study.study_file import builtin_study

CONFIG = Config({"dp_replicate": 2, "micro_batch": 1})
LOCAL = "local"
PLACES: Mapping[str, tuple[str, int]] = {
    "local": (LOCAL, 1),
    "slurm-step, 1 node": ("slurm-step", 1),
    "slurm-step, 2 nodes": ("slurm-step", 2),
}
"""The launcher and the nodes of each row."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Seconds of one launch, and those of them in steps."""

    launch_s: float
    steps_s: float

    @property
    def overhead_s(self) -> float:
        """What is left of the launch, seconds."""
        return self.launch_s - self.steps_s


def study_at(launcher: str, node_count: int) -> Study:
    """The built-in study on two ranks."""
    here = replace(local_environment(), world_size=2, ranks_per_node=2 // node_count)
    study = builtin_study(here)
    cluster = None if launcher == LOCAL else Cluster(test_nodes=False)
    return replace(study, launch=replace(study.launch, launcher=launcher), cluster=cluster)


@contextmanager
def evaluator_of(root: Path, name: str) -> Iterator[tuple[Study, TrialEvaluator]]:
    """The study of a row, and what launches it."""
    launcher_name, node_count = PLACES[name]
    study, ours = study_at(launcher_name, node_count), settings.trial_environment()
    study_id = f"launches-{os.getpid()}-{node_count}"
    with open_launchers(study, study_id, root, ours, ours=ours) as make:
        launcher = make()
        slots = None if study.is_local else NodeSlots(nodes=nodes_of(study))
        evaluator = TrialEvaluator(BuiltinRecipe(), launcher, lambda _phase: None, slots=slots)
        try:
            yield study, evaluator
        finally:
            launcher.close()


def launch(study: Study, evaluator: TrialEvaluator, root: Path) -> Launch:
    with tempfile.TemporaryDirectory(dir=root) as folder:
        begun_s = time.perf_counter()
        outcome = evaluator.evaluate(study, CONFIG, Path(folder))
        launch_s = time.perf_counter() - begun_s
        if isinstance(outcome, Failed):
            raise SystemExit(str(outcome))
        traces = sorted(Path(folder).glob("rank*_trace.json"))
        return Launch(launch_s, unprofiled_s(outcome.measurement) + profiled_s(traces))


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description="What a launch by agents costs.")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--shared-dir", type=Path, required=True)
    options = parser.parse_args()
    taken: dict[str, list[Launch]] = {name: [] for name in PLACES}
    with ExitStack() as opened:
        root = Path(opened.enter_context(tempfile.TemporaryDirectory(dir=options.shared_dir)))
        places = {name: opened.enter_context(evaluator_of(root, name)) for name in PLACES}
        names = [*PLACES]
        for number in range(1 + options.rounds):
            for name in names[number % 3 :] + names[: number % 3]:
                study, evaluator = places[name]
                taken[name].append(launch(study, evaluator, root))
    headings = ("launch s", "steps s", "overhead s", "more than local s")
    print(f"{options.rounds} launches of each: median, least to most")
    print(f"{'launcher':20}", *(f"{heading:>24}" for heading in headings))
    for name, launches in taken.items():
        pairs = zip(launches[1:], taken[LOCAL][1:], strict=True)
        cells = (
            [each.launch_s for each in launches[1:]],
            [each.steps_s for each in launches[1:]],
            [each.overhead_s for each in launches[1:]],
            [one.overhead_s - local.overhead_s for one, local in pairs],
        )
        print(f"{name:20}", *(f"{spread(cell):>24}" for cell in cells))


if __name__ == "__main__":
    main()
