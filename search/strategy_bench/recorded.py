"""Landscapes from stored studies: what is pooled, what is left out, and why."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from evaluator.objective import Scoring, scoring_of
from evaluator.recipes.catalog import recipe_of
from policies.space import Space
from records.errors import StudyError
from records.expression import Rule
from records.store.rows import StudyRow
from records.store.store import Store
from records.study import (
    SearchSpace,
    Study,
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
    Trial,
)
from search.loop.leader import STEP_OBJECTIVES, counted
from search.strategy_bench.landscape import (
    Entry,
    Fault,
    Landscape,
    with_estimates,
)
from search.views.format import one_line

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
        if outcome.kind is FailureKind.INFRASTRUCTURE:
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
