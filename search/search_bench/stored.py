"""A study on record as a landscape: what its launches gave is what launches give.

Launches of one configuration are pooled, those that re-measured it too. What says nothing of a
configuration, or cannot be compared with the rest, is left out and counted.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from evaluator.objective import Scoring, scoring_of
from evaluator.recipes.catalog import recipe_of
from policies.space import Space
from records.errors import StudyError
from records.history import History
from records.rows import StudyRow
from records.rule import Rule
from records.store import Store
from records.study import SearchSpace, Study
from records.trial import Config, Failed, FailureKind, Measured, Outcome, Repeat, Score, Trial
from search.disturbed import counted
from search.rounds import STEP_OBJECTIVES
from search.search_bench.ground import estimated
from search.search_bench.landscape import Entry, Fault, Landscape
from search.words.trial import one_line

MESSAGE_CHARS: Final = 300
OTHER_WORK: Final = "did other work per step"
SURROUNDINGS: Final = "failed by their surroundings"
NO_LAUNCH: Final = "came to no launch"
LIMITS: Final = "break a limit of the study"
NO_VALUE: Final = "have no objective above 0"
OUTSIDE: Final = "are outside of the study's space"
PER_TOKEN: Final = STEP_OBJECTIVES[1]
"""The objective that allows for other work."""

Result: TypeAlias = float | Fault
Left: TypeAlias = str
"""Why a launch is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The landscape, and how many launches are left out of it, by why."""

    landscape: Landscape
    left_out: Mapping[str, int]

    @property
    def words(self) -> str | None:
        """What is left out in one line; None where nothing is."""
        if not self.left_out:
            return None
        told = ", ".join(f"{count} {why}" for why, count in self.left_out.items())
        return f"{self.landscape.name}: {sum(self.left_out.values())} launches left out: {told}"


def stored(row: StudyRow, store: Store) -> Stored:
    """The landscape of a study; raises `StudyError` where its record makes none."""
    study, history = row.study, store.history(row.id)
    if study.contexts:
        raise StudyError(f"study {row.id} has several contexts, and a landscape has one")
    launches = list(_launches(history, counted(store.repeats(row.id), study.measure)))
    dead = _dead(study, launches)
    judge = _Judge(study, scoring_of(study).over(history), _usual_tokens(study, launches))
    bound = _space(study, dead)
    results: dict[Config, list[Result]] = defaultdict(list)
    left_out: Counter[str] = Counter()
    for config, outcome in launches:
        known = None if config is None else _without(config, dead)
        found = judge(outcome) if known is not None else NO_LAUNCH
        if not isinstance(found, str) and known is not None and bound.check(known.values) != known:
            found = OUTSIDE
        if isinstance(found, str) or known is None:
            left_out[str(found)] += 1
        else:
            results[known].append(found)
    return Stored(landscape=_landscape(row, results, dead), left_out=left_out)


@dataclass(frozen=True, slots=True)
class _Judge:
    """Says what a launch tells of its configuration, or why it is left out."""

    study: Study
    scoring: Scoring
    tokens: int | None

    def __call__(self, outcome: Outcome) -> Result | Left:
        if isinstance(outcome, Failed):
            return _fault(outcome)
        per_token = self.scoring.expression.text.strip() == PER_TOKEN
        if not per_token and outcome.measurement.tokens_per_step != self.tokens:
            return OTHER_WORK
        score = self.scoring.of(outcome)
        if not isinstance(score, Score) or score.value <= 0:
            return NO_VALUE
        return LIMITS if score.broken else score.value


def _fault(failed: Failed) -> Fault | Left:
    if failed.kind is FailureKind.INFRASTRUCTURE:
        return SURROUNDINGS
    if failed.kind in (FailureKind.DUPLICATE, FailureKind.POLICY_ERROR):
        return NO_LAUNCH
    return Fault(kind=failed.kind, message=one_line(failed.message, MESSAGE_CHARS))


def _launches(
    history: History, repeats: Sequence[Repeat]
) -> Iterator[tuple[Config | None, Outcome]]:
    configs = {trial.ordinal: trial.config for trial in history}
    launches: tuple[Trial | Repeat, ...] = (*history, *repeats)
    for each in launches:
        config = configs.get(each.ordinal)
        yield (config, each.outcome) if _reached(each) else (None, each.outcome)


def _reached(each: Trial | Repeat) -> bool:
    return each.reached_launch if isinstance(each, Trial) else True


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
    entries = tuple(_entry(config, found) for config, found in results.items())
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
        about=f"Launches on record of {study.name}, from study {row.id}.",
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
    return estimated(landscape)


def _entry(config: Config, results: Sequence[Result]) -> Entry:
    """What most launches of it gave: samples, or the first failure where it mostly failed."""
    samples = tuple(result for result in results if not isinstance(result, Fault))
    faults = [result for result in results if isinstance(result, Fault)]
    if len(faults) > len(samples):
        return Entry(config=config.values, failure=faults[0])
    return Entry(config=config.values, samples=samples)


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


def _space(study: Study, dead: Sequence[str]) -> Space:
    space = _alive(study.space, dead)
    derived = recipe_of(study).derived(study)
    return Space(space, study.workload, study.usable_environment, derived)


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


def _without(config: Config, dead: Sequence[str]) -> Config:
    return Config({knob: value for knob, value in config.values.items() if knob not in dead})
