"""Every kind of parallelism and the combinations of two and three, in real launches.

Each layout trains the same tiny model for a few steps; its losses are compared with those of a
single process. A row tells whether it runs, how far the losses are apart, the median step time, or
torch's reason why not, and the rule by which the built-in recipe would have refused it. A row that
fails without a rule, or is refused though it runs, is a mistake: the last lines count them.

Axes that share the ranks get 2 each, the first of them what is left over. `ep` stands for sharded
data parallelism whose ranks also share out the experts of a model that has some; in a row with
`dp_shard` or `cp` too, experts are dealt to pairs of the ranks along them all.

    python benchmarks/parallelism_matrix.py --world-sizes 2 4 8 --json matrix.json

With `--one-way` every way of a single axis is tried, and each combination in one of its ways. With
`--resume` layouts that the file has as right are not launched again.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations, product
from math import prod
from pathlib import Path

from evaluator.failures.classify import classify
from evaluator.launchers.local import LocalLauncher
from evaluator.machine import local_environment
from evaluator.ports import Job
from evaluator.rank.job import Config as RankConfig
from evaluator.rank.job import DeviceKind, Measure
from evaluator.rank.job import Job as RankJob
from evaluator.recipes.builtin import BuiltinRecipe, rank_workload
from evaluator.samples import read_measurement
from records.errors import StudyError
from records.study import Study, Value
from records.trial import Config, Failed, Measurement
from records.workload import Workload
from search.study.study_file import builtin_study

AXES = ("dp_replicate", "dp_shard", "cp", "pp", "ep", "tp")
VARIANTS: Mapping[str, tuple[Mapping[str, Value], ...]] = {
    "pp": (
        {"pipeline_schedule": "gpipe"},
        {"pipeline_schedule": "1f1b"},
        {"pipeline_schedule": "interleaved_1f1b", "stages_per_rank": 2},
        {"pipeline_schedule": "looped_bfs", "stages_per_rank": 2},
        {"pipeline_schedule": "interleaved_zero_bubble", "stages_per_rank": 2},
        {"pipeline_schedule": "zbv_zero_bubble", "stages_per_rank": 2},
        {"pipeline_schedule": "dualpipev", "stages_per_rank": 2},
    ),
    "cp": ({"context_method": "ring"},),
}
ALONE: Mapping[str, tuple[Mapping[str, Value], ...]] = {
    "dp_shard": ({}, {"compile": True}),
    "cp": tuple({"context_method": method} for method in ("ring", "all_gather", "ulysses")),
    "tp": tuple(
        {"sequence_parallel": sequence, "loss_parallel": loss}
        for sequence in (True, False)
        for loss in (True, False)
    ),
}
"""Ways of doing an axis that are only tried where it is the only one."""
DENSE = Workload(
    name="matrix",
    family="dense",
    layer_count=4,
    hidden_size=64,
    head_count=16,
    kv_head_count=8,
    ffn_size=96,
    vocab_size=128,
    sequence_length=64,
    global_batch=16,
)
EXPERTS = replace(
    DENSE,
    family="moe",
    expert_count=8,
    experts_per_token=2,
    shared_expert_count=1,
    expert_ffn_size=64,
    dense_layer_count=1,
)
TOLERANCE = 1e-4
TIMEOUT_S = 120.0
COMPILING_TIMEOUT_S = 600.0
"""Each rank compiles its layers, and all of them may share a core."""
MODULES = ("evaluator.workloads.training",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One layout; `difference` is the largest of the losses, relative to the single process."""

    axes: str
    world_size: int
    config: Mapping[str, Value]
    difference: float | None
    step_s: float | None
    reason: str | None
    rule: str | None

    @property
    def is_right(self) -> bool:
        """Whether it runs and trains the same."""
        return self.difference is not None and self.difference <= TOLERANCE

    def cells(self) -> tuple[str, ...]:
        """The row as it is printed."""
        runs = "same" if self.is_right else "no" if self.difference is None else "OTHER LOSS"
        shown = (f"{name}={value}" for name, value in self.config.items() if name != "micro_batch")
        return (
            self.axes,
            str(self.world_size),
            " ".join(shown),
            runs,
            "" if self.difference is None else f"{self.difference:.0e}",
            "" if self.step_s is None else f"{1e3 * self.step_s:.0f}",
            "; ".join(text for text in (self.reason, self.rule) if text).replace("|", "/"),
        )


def layouts(world_size: int, *, one_way: bool = False) -> Iterator[tuple[str, dict[str, Value]]]:
    """Every combination of up to three axes that takes this many ranks, in each of its ways.

    In `one_way` combinations take their ways, such as the schedules of pipelines, in turn.
    """
    for count in (1, 2, 3):
        for number, axes in enumerate(combinations(AXES, count)):
            if world_size < 2**count:
                continue
            known = VARIANTS if count > 1 else {**VARIANTS, **ALONE}
            ways = [*product(*(known.get(axis, ({},)) for axis in axes))]
            for chosen in [ways[number % len(ways)]] if one_way and count > 1 else ways:
                degrees = _degrees(axes, world_size)
                yield (
                    "+".join(axes),
                    {**degrees, **{k: v for way in chosen for k, v in way.items()}},
                )


def _degrees(axes: Sequence[str], world_size: int) -> dict[str, Value]:
    sizes = dict.fromkeys(axes, 2)
    sizes[axes[0]] = world_size // 2 ** (len(axes) - 1)
    experts = sizes.pop("ep", None)
    if experts is not None:
        sizes["dp_shard"] = sizes.get("dp_shard", 1) * experts
        sizes["ep"] = 2 if len(axes) > 1 else experts
    return dict(sizes)


class Matrix:
    """Launches layouts and compares them with the single process on the same model."""

    def __init__(
        self,
        launcher: LocalLauncher,
        timed_steps: int,
        python: str | None = None,
        *,
        trusts_rules: bool = False,
    ) -> None:
        self._launcher = launcher
        self._trusts_rules = trusts_rules
        self._timed_steps = timed_steps
        self._python = python
        self._references: dict[Workload, tuple[float, ...]] = {}

    def row(self, axes: str, config: dict[str, Value]) -> Row:
        """Launch a layout and tell what came of it."""
        study = self._study(axes, config)
        config = {**config, "micro_batch": _micro_batch(config, study.workload.global_batch)}
        row = Row(
            axes=axes,
            world_size=_rank_count(config),
            config=config,
            difference=None,
            step_s=None,
            reason=None,
            rule=_rule(study, config),
        )
        if row.rule is not None and self._trusts_rules:
            return row
        measured = self._measured(study, config)
        if isinstance(measured, Failed):
            return replace(row, reason=measured.message)
        step_s = statistics.median(measured.slowest_rank_s)
        return replace(row, difference=self._difference(study, measured), step_s=step_s)

    def _study(self, axes: str, config: Mapping[str, Value]) -> Study:
        """The study of a model with enough layers for every stage."""
        world_size = _rank_count(config)
        environment = replace(
            local_environment(), world_size=world_size, ranks_per_node=world_size, memory_bytes=None
        )
        stages = int(config.get("pp", 1)) * int(config.get("stages_per_rank", 1))
        model = EXPERTS if "ep" in axes.split("+") else DENSE
        study = builtin_study(environment)
        return replace(
            study,
            workload=replace(model, layer_count=max(4, stages)),
            launch=replace(study.launch, python=self._python),
            measure=replace(
                study.measure,
                warmup_steps=1,
                timed_steps=self._timed_steps,
                max_timed_steps=self._timed_steps,
                profiled_steps=0,
            ),
        )

    def _difference(self, study: Study, measured: Measurement) -> float:
        if study.workload not in self._references:
            alone = self._measured(study, {"micro_batch": study.workload.global_batch})
            if isinstance(alone, Failed):
                raise SystemExit(f"the single process failed: {alone}")
            self._references[study.workload] = alone.losses
        expected = self._references[study.workload]
        pairs = zip(measured.losses, expected, strict=True)
        return max(abs(loss - alone) / alone for loss, alone in pairs)

    def _measured(self, study: Study, config: Mapping[str, Value]) -> Measurement | Failed:
        """Launch without asking the recipe, which would refuse what its rules exclude."""
        known = {name: type(value) for name, value in asdict(RankConfig()).items()}
        told = {name: known[name](value) for name, value in config.items()}
        job = RankJob(
            entry=f"{MODULES[0]}:train",
            world_size=_rank_count(config),
            device=DeviceKind(study.environment.device),
            init_method="env://",
            workload=rank_workload(study.workload),
            config=RankConfig(**told),
            measure=Measure(warmup_steps=1, timed_steps=self._timed_steps, profiled_steps=0),
        )
        with tempfile.TemporaryDirectory() as folder:
            result = self._launcher.run(
                Job(
                    argv=(),
                    world_size=job.world_size,
                    files={"job.json": json.dumps(asdict(job))},
                    modules=MODULES,
                    python=self._python,
                    timeout_s=COMPILING_TIMEOUT_S if job.config.compile else TIMEOUT_S,
                ),
                Path(folder),
                lambda _phase: None,
            )
            return classify(result) or read_measurement(result, study)


def _micro_batch(config: Mapping[str, Value], global_batch: int) -> int:
    """As large as leaves a pipeline twice as many micro-batches as ranks."""
    per_replica = global_batch // prod(
        int(config.get(name, 1)) for name in ("dp_replicate", "dp_shard")
    )
    stages = int(config.get("pp", 1))
    return max(1, per_replica // (2 * stages if stages > 1 else 1))


def _rank_count(config: Mapping[str, Value]) -> int:
    degrees = ("dp_replicate", "dp_shard", "tp", "cp", "pp")
    return prod(int(config.get(degree, 1)) for degree in degrees)


def _rule(study: Study, config: Mapping[str, Value]) -> str | None:
    """What the recipe says against a configuration."""
    try:
        BuiltinRecipe().job(study, Config(dict(config)))
    except StudyError as error:
        return f"rule: {error}"
    return None


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown, then how many run, and which contradict their rules."""
    head = ("axes", "ranks", "configuration", "trains", "difference", "step ms", "why not")
    lines = [head, ("---",) * len(head), *(row.cells() for row in rows)]
    mistakes = [row for row in rows if row.is_right == (row.rule is not None)]
    return "\n".join(
        [
            *(f"| {' | '.join(cells)} |" for cells in lines),
            "",
            f"{sum(row.is_right for row in rows)} of {len(rows)} train as the single process does.",
            f"{len(mistakes)} contradict the recipe's rules.",
            *(f"- {row.axes}: {' '.join(row.cells()[2:])}" for row in mistakes),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Every parallelism and its combinations.")
    parser.add_argument("--world-sizes", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--steps", type=int, default=5, help="timed steps, after one to warm up")
    parser.add_argument("--axes", nargs="+", choices=AXES, help="only rows with all of these")
    parser.add_argument("--python", help="Python with the torch of the ranks; that of cclsearch")
    parser.add_argument("--allowed", action="store_true", help="launch only what rules allow")
    parser.add_argument("--one-way", action="store_true", help="combinations in one of their ways")
    parser.add_argument("--json", type=Path, help="write the rows to this file as well")
    parser.add_argument(
        "--resume", action="store_true", help="launch no layout again that is right"
    )
    options = parser.parse_args()
    known = right_rows(options.json) if options.resume else {}
    launcher = LocalLauncher({"PATH": f"{Path(sys.executable).parent}:{os.defpath}"}, 1)
    matrix = Matrix(launcher, options.steps, options.python, trusts_rules=options.allowed)
    rows: list[Row] = []
    try:
        for world_size in options.world_sizes:
            for axes, config in layouts(world_size, one_way=options.one_way):
                if set(options.axes or ()) <= set(axes.split("+")):
                    rows.append(known.get(_key(axes, config)) or matrix.row(axes, config))
                    print(" ".join(rows[-1].cells()), file=sys.stderr, flush=True)
                    if options.json is not None:
                        documents = [{**asdict(row), "is_right": row.is_right} for row in rows]
                        options.json.write_text(json.dumps(documents, indent=1))
    finally:
        launcher.close()
    print(table(rows))


def right_rows(path: Path) -> dict[str, Row]:
    """The layouts that a file of rows has as right; none where there is no file."""
    if not path.exists():
        return {}
    documents = json.loads(path.read_text(encoding="utf-8"))
    rows = [Row(**each) for each in documents if each.pop("is_right")]
    return {_key(row.axes, row.config): row for row in rows}


def _key(axes: str, config: Mapping[str, Value]) -> str:
    layout = sorted(item for item in config.items() if item[0] != "micro_batch")
    return json.dumps([axes, layout])


if __name__ == "__main__":
    main()
