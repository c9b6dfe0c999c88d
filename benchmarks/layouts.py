"""How well the trace of one launch predicts the step times of other configurations of a study.

`--record` launches every configuration once, with a profiled step, and adds a line for each to the
data file: its step times, and where each rank's profiled step went. It continues where it was
interrupted. Then each configuration's step time is predicted from each other one: from its step
time alone or with its trace, by ratios or by the fit that the search makes. What is printed: the
error by what was changed, the rank correlation, and how much slower than the best the configuration
is that a prediction ranks first. It is done with the estimate as it is, and with estimates of which
each part is off by a random factor, as on a machine that differs from what is assumed of it.

    python benchmarks/layouts.py
    python benchmarks/layouts.py --record -c study.toml --data moe.jsonl --out moe.svg
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from math import log
from pathlib import Path
from random import Random
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias

import numpy as np
from landscape import asked_study, header, row
from measured_landscapes import measured_study
from scipy.stats import spearmanr

from evaluator.evaluate import TrialEvaluator
from evaluator.launchers.local import LocalLauncher
from evaluator.recipes.catalog import recipe_of
from evaluator.traces.analysis.breakdown import job_split
from evaluator.traces.readers.read import read_folder
from records.study import Study
from records.trial import Config
from search import settings
from search.strategies.cost_model import calibrate
from search.strategies.surrogate import Floats
from search.study.spaces import space_of
from search.views.charts import Panel, Point, Series, xy_chart
from search.views.format import differing_knobs
from search.views.svg import ChartAxis, standalone

DATA = Path(__file__).parent / "data" / "layouts.jsonl"
TIMEOUT_S = 600.0
TRACED: Final[Mapping[str, Sequence[str]]] = {
    "work": (
        *("compute", "recompute", "launch_overhead", "slicing_overhead"),
        *("optimizer", "step_overhead"),
    ),
    "collectives": (
        *("tensor_communication", "context_communication", "expert_communication"),
        *("data_communication", "between_nodes"),
    ),
    "transfers": ("pipeline_transfers", "bubble"),
}
"""Parts of a step that a trace shows separately, each with the matching ones of the estimate."""
MISJUDGED, DRAWS = 2.0, 20
"""Typical factor by which a part of the estimate is off, and how many such estimates are made."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--record", action="store_true", help="launch what is not in the data file")
    parser.add_argument("-c", "--config", type=Path, help="study file; else the built-in study")
    parser.add_argument("--data", type=Path, default=DATA, help="data file; %(default)s")
    parser.add_argument("--out", type=Path, default=Path("layouts.svg"), help="picture to write")
    options = parser.parse_args()
    if options.record:
        record(asked_study(options.config), options.data)
    about, *rows = map(json.loads, options.data.read_text(encoding="utf-8").splitlines())
    layouts = layouts_of(measured_study(options.config, about), rows)
    found = {"the estimate as it is": scores(layouts)}
    draws = [scores(misjudged(layouts, seed)) for seed in range(DRAWS)]
    found[f"each part off by a factor of {MISJUDGED:g}"] = {
        name: Score.mean([draw[name] for draw in draws]) for name in METHODS
    }
    for heading, each in found.items():
        print_table(heading, each)
    options.out.write_text(standalone(draw_errors(found)), encoding="utf-8")
    print(f"written: {options.out}")


def record(study: Study, out: Path) -> None:
    recipe = recipe_of(study)
    recipe.check(study)
    if not out.exists():
        out.write_text(json.dumps(header(study)) + "\n", encoding="utf-8")
    lines = out.read_text(encoding="utf-8").splitlines()[1:]
    done = {Config(json.loads(line)["config"]) for line in lines}
    waiting = [config for config in space_of(study).feasible if config not in done]
    Random(0).shuffle(waiting)
    launched = replace(
        study,
        launch=replace(study.launch, memory_budget_bytes=None),  # a profile needs more of it
        measure=replace(study.measure, profiled_steps=1, timeout_s=TIMEOUT_S),
    )
    environment = recipe.inherited(study, settings.trial_environment())
    launcher = LocalLauncher(environment, study.launch.threads_per_rank)
    evaluator = TrialEvaluator(recipe, launcher, lambda _phase: None)
    try:
        for i, config in enumerate(waiting):
            print(f"\r{i + 1}/{len(waiting)}", end="", file=sys.stderr)
            with TemporaryDirectory() as folder:
                launch = row(0, config, evaluator.evaluate(launched, config, Path(folder)))
                if "kind" not in launch:
                    launch["ranks"] = seconds_by_rank(Path(folder))
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(launch) + "\n")
    finally:
        launcher.close()
        print(file=sys.stderr)


def seconds_by_rank(folder: Path) -> list[Mapping[str, float | None]]:
    split = job_split(read_folder(folder))
    if split is None:
        raise SystemExit(f"{folder}: no step is in the traces of all ranks")
    return [
        {name: value and round(value, 6) for name, value in asdict(each).items()}
        for _, each in split.by_rank
    ]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layouts:
    """Measured configurations, with the parts of their estimates and those that traces show."""

    configs: Sequence[Config]
    step_s: Floats
    """Of shape (configurations,)."""
    traced_s: Floats
    """Of shape (configurations, traced), scaled so that they make up the step without profiler."""
    estimate_s: Floats
    """Of shape (configurations, parts)."""
    within: Floats
    """1 where a traced part includes a part of the estimate, else 0; of shape (traced, parts)."""


def layouts_of(study: Study, rows: Sequence[Mapping[str, Any]]) -> Layouts:
    recipe = recipe_of(study)
    measured = {Config(each["config"]): each for each in rows if "kind" not in each}
    each = [recipe.estimate(study, config) or {} for config in measured]
    names = sorted(name for name in each[0] if any(parts[name] for parts in each))
    step_s = np.array([median(launch["step_times_s"]) for launch in measured.values()])
    traced_s = np.array([traced(launch["ranks"]) for launch in measured.values()])
    return Layouts(
        configs=tuple(measured),
        step_s=step_s,
        traced_s=traced_s / traced_s.sum(axis=1, keepdims=True) * step_s[:, None],
        estimate_s=np.array([[parts[name] for name in names] for parts in each]),
        within=np.array([[float(name in parts) for name in names] for parts in TRACED.values()]),
    )


def traced(ranks: Sequence[Mapping[str, float | None]]) -> Sequence[float]:
    """Mean seconds of work, collectives and transfers."""
    step, exposed, transfers = (
        fmean(rank[name] or 0.0 for rank in ranks)
        for name in ("window_s", "exposed_communication_s", "pipeline_bubble_s")
    )
    return step - exposed, exposed - transfers, transfers


def misjudged(layouts: Layouts, seed: int) -> Layouts:
    draw = np.random.default_rng(seed)
    factors = np.exp(draw.normal(0, log(MISJUDGED), layouts.estimate_s.shape[1]))
    return replace(layouts, estimate_s=layouts.estimate_s * factors)


Method: TypeAlias = Callable[[Layouts, int], Floats]
"""Logarithms of all step times, by the launch of one configuration."""


def by_ratio(layouts: Layouts, launched: int) -> Floats:
    total_s = layouts.estimate_s.sum(axis=1)
    return np.log(layouts.step_s[launched] * total_s / total_s[launched])


def by_ratios(layouts: Layouts, launched: int) -> Floats:
    """What the launch has none of changes as its whole step does."""
    estimate_s = layouts.estimate_s @ layouts.within.T
    own_s = estimate_s[launched]
    usual = layouts.step_s[launched] / own_s.sum()
    factors = np.divide(
        layouts.traced_s[launched], own_s, out=np.full_like(own_s, usual), where=own_s > 0
    )
    return np.log(estimate_s @ factors)


def by_traced_fit(layouts: Layouts, launched: int) -> Floats:
    """Fit as the search does; a traced part is one more configuration, with an estimate of only it.

    To a step time alone the search fits one common factor, which is `by_ratio`.
    """
    parts = layouts.estimate_s[launched] * layouts.within
    seconds = layouts.traced_s[launched]
    known = (parts.sum(axis=1) > 0) & (seconds > 0)
    rows = np.concatenate((layouts.estimate_s, parts[known]))
    count = len(layouts.step_s)
    measured = [launched, *range(count, len(rows))]
    logs = np.log([layouts.step_s[launched], *seconds[known]])
    return calibrate(rows, measured, logs).logs[:count]


METHODS: Final[Mapping[str, Method]] = {
    "estimate, one factor": by_ratio,
    "parts of the trace": by_ratios,
    "fit to step and trace": by_traced_fit,
}

CHANGES: Final[Mapping[str, Set[str]]] = {
    "micro-batch": {"micro_batch"},
    "recompute": {"activation_checkpointing"},
    "schedule": {"pipeline_schedule"},
    "ep": {"ep"},
    "dp": {"dp_replicate", "dp_shard"},
    "tp": {"dp_replicate", "dp_shard", "tp"},
    "pp": {"dp_replicate", "dp_shard", "pp", "pipeline_schedule"},
}
"""Knobs that change together; what another degree gains, data parallelism loses."""
SEVERAL, ALL = "several", "all"


def change(before: Config, after: Config) -> str:
    knobs = set(differing_knobs(before, after))
    return next((name for name, together in CHANGES.items() if knobs <= together), SEVERAL)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Score:
    """How well one method predicts."""

    errors: Mapping[str, float]
    """Medians of the absolute logarithm of predicted over measured, by what was changed."""
    correlation: float
    """Of ranks, predicted with measured; mean over the launched configurations."""
    regret: float
    """How much slower than the best what is ranked first is; mean likewise."""

    @classmethod
    def mean(cls, some: Sequence["Score"]) -> "Score":
        """Return the mean of scores on the same configurations."""
        return cls(
            errors={name: fmean(each.errors[name] for each in some) for name in some[0].errors},
            correlation=fmean(each.correlation for each in some),
            regret=fmean(each.regret for each in some),
        )


def scores(layouts: Layouts) -> Mapping[str, Score]:
    return {name: score(layouts, method) for name, method in METHODS.items()}


def score(layouts: Layouts, method: Method) -> Score:
    errors: dict[str, list[float]] = {name: [] for name in (*CHANGES, SEVERAL, ALL)}
    correlations, regrets = list[float](), list[float]()
    for launched, before in enumerate(layouts.configs):
        others = np.flatnonzero(np.arange(len(layouts.configs)) != launched)
        predicted, step_s = method(layouts, launched)[others], layouts.step_s[others]
        misses = np.abs(predicted - np.log(step_s)).tolist()
        for place, miss in zip(others.tolist(), misses, strict=True):
            errors[change(before, layouts.configs[place])].append(miss)
            errors[ALL].append(miss)
        correlations.append(float(spearmanr(predicted, step_s).statistic))
        regrets.append(float(step_s[predicted.argmin()] / step_s.min()) - 1)
    return Score(
        errors={name: median(each) for name, each in errors.items() if each},
        correlation=fmean(correlations),
        regret=fmean(regrets),
    )


def print_table(heading: str, found: Mapping[str, Score]) -> None:
    names = list(next(iter(found.values())).errors)
    print(f"{heading}: median error of the step time, by what was changed")
    print(f"{'':24}", *(f"{name:>22}" for name in found))
    for name in names:
        cells = (f"{np.expm1(each.errors[name]):>22.1%}" for each in found.values())
        print(f"  {name:22}", *cells)
    print(f"  {'rank correlation':22}", *(f"{each.correlation:>22.3f}" for each in found.values()))
    print(f"  {'first rank over best':22}", *(f"{each.regret:>22.1%}" for each in found.values()))


def draw_errors(found: Mapping[str, Mapping[str, Score]]) -> str:
    panels = [
        Panel(
            series=[
                Series(
                    name=name,
                    kind=f"tone{tone}",
                    points=[
                        Point(x=place, y=100 * np.expm1(error))
                        for place, error in enumerate(each.errors.values())
                    ],
                )
                for tone, (name, each) in enumerate(methods.items())
            ],
            x=ChartAxis(
                label="what was changed",
                ticks=tuple(enumerate(next(iter(methods.values())).errors)),
            ),
            y=ChartAxis(label="median error, %", kind="zero"),
            heading=heading,
        )
        for heading, methods in found.items()
    ]
    return xy_chart(*panels, title="Step times predicted from one launch")


if __name__ == "__main__":
    main()
