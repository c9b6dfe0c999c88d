"""Search spaces with a known result for every configuration, of files and of recorded studies."""

import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Final, Literal, TypeAlias

from pydantic import ValidationError

from evaluator.objective import Scoring, scoring_of
from evaluator.recipes.catalog import recipe_of
from policies.space import Space
from records.codec import first_problem, from_document
from records.errors import Strict, StudyError
from records.expression import Rule
from records.files import read_json
from records.store.rows import StudyRow
from records.store.store import Store
from records.study import (
    Budget,
    Command,
    Environment,
    Launch,
    Objective,
    SearchSpace,
    Study,
    Value,
)
from records.trial import (
    Config,
    Failed,
    FailureKind,
    History,
    Measured,
    Outcome,
    Repeat,
    Score,
    Stage,
    Trial,
)
from records.workload import Workload
from search.loop.leader import STEP_OBJECTIVES, counted
from search.views.format import one_line

VERSION = 1
MOST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """How every launch of a configuration that cannot be measured ends."""

    kind: FailureKind
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One configuration: a sample of the objective for each launch, or how its launches fail.

    `estimate` is the seconds that a step should take, by what takes them, as a cost model has it
    before anything is launched; None where none speaks. `peak_memory_bytes` is that of the rank
    that needs most, where it was measured.
    """

    config: Mapping[str, Value]
    samples: tuple[float, ...] = ()
    failure: Fault | None = None
    estimate: Mapping[str, float] | None = None
    peak_memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if bool(self.samples) is (self.failure is not None):
            raise StudyError(f"{self.words} needs either samples or a failure")
        if any(sample <= 0 for sample in self.samples):
            raise StudyError(f"{self.words} has a sample of {min(self.samples)}, not above 0")
        if any(seconds < 0 for seconds in (self.estimate or {}).values()):
            raise StudyError(f"{self.words} has an estimate below 0")

    @property
    def words(self) -> str:
        """Which entry it is, for messages."""
        return f"entry {json.dumps(dict(self.config))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Landscape(Strict):
    """A space of which every configuration that may be launched has an entry.

    What has no entry is not feasible. Where `noise_sigma` is given, a launch draws from a
    log-normal distribution around the median of the samples, with this deviation of the logarithm;
    else it draws one of the samples. `launch` and `command` name the recipe whose names
    rules may use, and whose estimates these are.
    """

    version: Literal[1]
    name: str
    about: str
    objective: Objective
    unit: str
    workload: Workload
    environment: Environment
    launch: Launch | None = None
    command: Command | None = None
    space: SearchSpace
    seed: Mapping[str, Value]
    noise_sigma: float | None = None
    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        if self.objective.direction is None:
            raise StudyError("[objective] needs a direction: minimize or maximize")
        if self.noise_sigma is not None and not 0 <= self.noise_sigma < 1:
            raise StudyError(f"noise_sigma is {self.noise_sigma}; it must be from 0 to below 1")
        if not any(entry.samples for entry in self.entries):
            raise StudyError("no entry has samples; measure at least one configuration")


def read_landscape(path: Path) -> Landscape:
    """The landscape of a file; raises `StudyError`, in one line that names what is wrong."""
    try:
        document = read_json(path, MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"{path}: cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise StudyError(f"{path}: not JSON: {error}") from error
    if isinstance(document, dict) and document.get("version") != VERSION:
        given = document.get("version")
        raise StudyError(f"{path}: version is {given!r}; this cclsearch reads {VERSION}")
    try:
        return from_document(Landscape, document)
    except ValidationError as error:
        raise StudyError(f"{path}: {first_problem(error)}") from error
    except StudyError as error:
        raise StudyError(f"{path}: {error}") from error


class RecordedSpace(Space):
    """The space of a landscape: feasible is what satisfies the rules and has an entry."""

    recorded: frozenset[Config] = frozenset()

    @cached_property
    def feasible(self) -> tuple[Config, ...]:
        """Every configuration with an entry, in knob order."""
        return tuple(sorted(self.recorded, key=self._place))

    def check(self, candidate: Mapping[str, object]) -> Config | tuple[str, ...]:
        """Return the configuration of these values, or why it is not feasible."""
        found = super().check(candidate)
        if isinstance(found, Config) and self.recorded and found not in self.recorded:
            return (f"{found} cannot be launched here; choose one that is feasible",)
        return found


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
            {} if landscape.launch is None else recipe_of(self.study).derived(self.study),
        )
        self._entries = {self._config(each.words, each.config): each for each in landscape.entries}
        if len(self._entries) < len(landscape.entries):
            raise StudyError(f"landscape {self.name}: an entry is there twice")
        self.space.recorded = frozenset(self._entries)
        self.seed = self._config("seed", landscape.seed)

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

    def peak_memory_bytes(self, config: Config) -> int | None:
        """What a configuration that can be measured needs; None where it was not measured."""
        return self._entries[config].peak_memory_bytes

    def launch(self, config: Config, number: int, seed: int) -> float | Failed:
        """The result of launch `number` of a configuration; the same for every strategy."""
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


def with_estimates(landscape: Landscape) -> Landscape:
    """The landscape with what its recipe estimates of each configuration, before any launch."""
    study = study_of(landscape)
    recipe = recipe_of(study)

    def estimate(config: Config) -> Mapping[str, float] | None:
        parts = recipe.estimate(study, config) or {}
        return {part: float(f"{seconds:.4g}") for part, seconds in parts.items()} or None

    entries = (replace(each, estimate=estimate(Config(each.config))) for each in landscape.entries)
    return replace(landscape, entries=tuple(entries))


Result: TypeAlias = float | Fault


def entry_of(config: Config, results: Sequence[Result]) -> Entry:
    """What most launches of it gave: samples, or the first failure where it mostly failed."""
    samples = tuple(result for result in results if not isinstance(result, Fault))
    faults = [result for result in results if isinstance(result, Fault)]
    if len(faults) > len(samples):
        return Entry(config=config.values, failure=faults[0])
    return Entry(config=config.values, samples=samples)


MESSAGE_CHARS: Final = 300
NO_LAUNCH: Final = "came to no launch"
PER_TOKEN: Final = STEP_OBJECTIVES[1]
"""The objective that allows for other work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyLandscape:
    """The landscape, and how many launches are left out of it, by why."""

    landscape: Landscape
    left_out: Mapping[str, int]

    @property
    def words(self) -> str | None:
        """What is left out in one line; None where nothing is."""
        if not self.left_out:
            return None
        reasons = ", ".join(f"{count} {why}" for why, count in self.left_out.items())
        return f"{self.landscape.name}: {sum(self.left_out.values())} launches left out: {reasons}"


def study_landscape(row: StudyRow, store: Store) -> StudyLandscape:
    """The landscape of a study; raises `StudyError` where its record makes none."""
    study, history = row.study, store.history(row.id)
    if study.contexts:
        raise StudyError(f"study {row.id} has several contexts, and a landscape has one")
    launches = list(_launches(history, counted(store.repeats(row.id), study.measure)))
    dead = _dead(study, launches)
    scoring, tokens = scoring_of(study).over(history), _usual_tokens(study, launches)
    space, derived = _alive(study.space, dead), recipe_of(study).derived(study)
    bound = Space(space, study.workload, study.usable_environment, derived)
    results: dict[Config, list[Result]] = defaultdict(list)
    left_out: Counter[str] = Counter()
    for config, outcome in launches:
        known = None if config is None else without(config, dead)
        found = NO_LAUNCH if known is None else _read(outcome, scoring, tokens)
        if not isinstance(found, str) and known is not None and bound.check(known.values) != known:
            found = "are outside of the study's space"
        if isinstance(found, str) or known is None:
            left_out[str(found)] += 1
        else:
            results[known].append(found)
    return StudyLandscape(landscape=_landscape(row, results, dead), left_out=left_out)


def _read(outcome: Outcome, scoring: Scoring, tokens: int | None) -> Result | str:
    """What a launch says of its configuration, or why it is left out."""
    if isinstance(outcome, Failed):
        if outcome.kind.is_infrastructure:
            return "failed by their surroundings"
        if outcome.kind in (FailureKind.DUPLICATE, FailureKind.POLICY_ERROR):
            return NO_LAUNCH
        return Fault(kind=outcome.kind, message=one_line(outcome.message, MESSAGE_CHARS))
    per_token = scoring.expression.text.strip() == PER_TOKEN
    if not per_token and outcome.measurement.tokens_per_step != tokens:
        return "did other work per step"
    score = scoring.of(outcome)
    if not isinstance(score, Score) or score.value <= 0:
        return "have no objective above 0"
    return "break a limit of the study" if score.broken else score.value


def _launches(
    history: History, repeats: Sequence[Repeat]
) -> Iterator[tuple[Config | None, Outcome]]:
    configs = {trial.ordinal: trial.config for trial in history}
    launches: tuple[Trial | Repeat, ...] = (*history, *repeats)
    for each in launches:
        reached = isinstance(each, Repeat) or each.reached_launch
        yield configs.get(each.ordinal) if reached else None, each.outcome


def _usual_tokens(study: Study, launches: Sequence[tuple[Config | None, Outcome]]) -> int | None:
    """The work that most launches did, of equally many that of the study."""
    outcomes = (outcome for _, outcome in launches)
    counts = Counter(o.measurement.tokens_per_step for o in outcomes if isinstance(o, Measured))
    own = study.workload.tokens_per_step
    return max(counts, key=lambda tokens: (counts[tokens], tokens == own), default=None)


def _landscape(
    row: StudyRow, results: Mapping[Config, Sequence[Result]], dead: Sequence[str]
) -> Landscape:
    study = row.study
    entries = tuple(entry_of(config, found) for config, found in results.items())
    if not any(entry.samples for entry in entries):
        raise StudyError(
            f"study {row.id} has no launch that a landscape could be made of; "
            f"see `cclsearch show {row.id}`"
        )
    scoring = scoring_of(study)
    lower = scoring.lower_is_better
    landscape = Landscape(
        version=1,
        name=f"study-{row.id}",
        about=f"Recorded launches of {study.name}, from study {row.id}.",
        objective=replace(study.objective, direction="minimize" if lower else "maximize"),
        unit=scoring.unit,
        workload=study.workload,
        environment=study.usable_environment,
        launch=study.launch,
        command=study.command,
        space=_alive(study.space, dead),
        seed=entries[0].config,
        entries=entries,
    )
    return with_estimates(landscape)


def _dead(study: Study, launches: Sequence[tuple[Config | None, Outcome]]) -> tuple[str, ...]:
    """Knobs that did nothing, and those that few configurations have although none is conditional.

    Some searches renamed a knob on their way.
    """
    dead = study.origin.dead_knobs if study.origin is not None else ()
    if any(dimension.when for dimension in study.space.dimensions):
        return dead
    sets = Counter(frozenset(config) for config, _ in launches if config is not None)
    usual = max(sets, key=lambda knobs: sets[knobs], default=frozenset())
    return (*dead, *(d.name for d in study.space.dimensions if usual and d.name not in usual))


def _alive(space: SearchSpace, dead: Sequence[str]) -> SearchSpace:
    """The space without knobs that did nothing, and without rules that name them."""
    if not dead:
        return space
    gone = set(dead)
    return replace(
        space,
        dimensions=tuple(d for d in space.dimensions if d.name not in gone),
        constraints=tuple(c for c in space.constraints if not Rule.of(c).expression.names & gone),
        defaults={name: value for name, value in space.defaults.items() if name not in gone},
    )


def without(config: Config, dead: Sequence[str]) -> Config:
    """Return a configuration without these knobs."""
    return Config({knob: value for knob, value in config.values.items() if knob not in dead})
