"""A landscape made ready for searches: its study, its space, and what a launch on it gives."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from random import Random

from evaluator.recipes.catalog import recipe_of
from policies.space import Derived, Space
from records.errors import StudyError
from records.study import Budget, Launch, Study
from records.trial import Config, Failed, Stage
from search.search_bench.landscape import Entry, Landscape


class RecordedSpace(Space):
    """The space of a landscape: feasible is what satisfies the rules and is on record."""

    recorded: frozenset[Config] = frozenset()

    @cached_property
    def feasible(self) -> tuple[Config, ...]:
        """Every configuration on record, in knob order."""
        return tuple(sorted(self.recorded, key=self._place))


class Ground:
    """Answers launches from a landscape; raises `StudyError` where that contradicts itself.

    A cost is the objective, lower is better: negative where higher is better.
    """

    def __init__(self, landscape: Landscape) -> None:
        self.landscape = landscape
        self.name = landscape.name
        self.lower_is_better = landscape.objective.direction == "minimize"
        self.study = study_of(landscape)
        self.space = RecordedSpace(
            landscape.space,
            landscape.workload,
            landscape.environment,
            _derived(landscape, self.study),
        )
        self._entries = {self._checked(entry): entry for entry in landscape.entries}
        if len(self._entries) < len(landscape.entries):
            raise StudyError(f"landscape {self.name}: an entry is there twice")
        self.space.recorded = frozenset(self._entries)
        self.seed = self._config("seed", landscape.seed)
        if self.seed not in self._entries:
            raise StudyError(f"landscape {self.name}: the seed {self.seed} has no entry")

    @cached_property
    def truths(self) -> Mapping[Config, float]:
        """Median of the samples of each configuration that can be measured."""
        return {
            config: statistics.median(entry.samples)
            for config, entry in self._entries.items()
            if entry.samples
        }

    @cached_property
    def best(self) -> float:
        """The best of all truths."""
        return min(self.truths.values()) if self.lower_is_better else max(self.truths.values())

    def excess(self, config: Config) -> float:
        """How much worse than the best a measured configuration truly is: 0.05 for 5 %."""
        ratio = self.truths[config] / self.best
        return (ratio if self.lower_is_better else 1 / ratio) - 1

    def targets(self, reach: float) -> tuple[Config, ...]:
        """The configurations that are at most `reach` worse than the best."""
        return tuple(config for config in self.truths if self.excess(config) <= reach)

    def estimate(self, config: Config) -> Mapping[str, float] | None:
        """Seconds that a step should take, by what takes them; None where nothing is known."""
        entry = self._entries.get(config)
        return None if entry is None else entry.estimate

    def launch(self, config: Config, number: int, seed: int) -> float | Failed:
        """What launch `number` of a configuration gives; the same for every strategy."""
        entry = self._entries[config]
        if entry.failure is not None:
            return Failed(
                stage=Stage.LAUNCH, kind=entry.failure.kind, message=entry.failure.message
            )
        draw = Random(f"{seed}/{number}/{config.digest}")
        sigma = self.landscape.noise_sigma
        if sigma is None:
            return draw.choice(entry.samples)
        return self.truths[config] * math.exp(draw.gauss(0, sigma))

    def cost(self, value: float) -> float:
        """The cost of a value of the objective."""
        return value if self.lower_is_better else -value

    def _checked(self, entry: Entry) -> Config:
        return self._config(entry.words, entry.config)

    def _config(self, what: str, values: Mapping[str, object]) -> Config:
        config = self.space.check(values)
        if isinstance(config, tuple):
            raise StudyError(f"landscape {self.name}: {what}: {config[0]}")
        if dict(config.values) != dict(values):
            raise StudyError(f"landscape {self.name}: {what} should be written {config}")
        return config


def study_of(landscape: Landscape) -> Study:
    """The study whose searches a landscape answers."""
    return Study(
        name=landscape.name,
        workload=landscape.workload,
        environment=landscape.environment,
        space=landscape.space,
        objective=landscape.objective,
        seed_policy="first",
        budget=Budget(),
        launch=landscape.launch or Launch(),
        command=landscape.command,
    )


def _derived(landscape: Landscape, study: Study) -> Derived:
    return {} if landscape.launch is None else recipe_of(study).derived(study)


def estimated(landscape: Landscape) -> Landscape:
    """The landscape with what its recipe estimates of each configuration, before any launch."""
    study = study_of(landscape)
    recipe = recipe_of(study)
    entries = (
        replace(entry, estimate=rounded(recipe.estimate(study, Config(entry.config))))
        for entry in landscape.entries
    )
    return replace(landscape, entries=tuple(entries))


def rounded(estimate: Mapping[str, float] | None) -> Mapping[str, float] | None:
    """An estimate with as many digits as are worth keeping."""
    if estimate is None:
        return None
    return {part: float(f"{seconds:.4g}") for part, seconds in estimate.items()}
