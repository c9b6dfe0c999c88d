"""What may be submitted: a choice among what the operator configured, and how to search it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from evaluator.limits import limit
from evaluator.machine import local_environment
from evaluator.objective import scoring, scoring_of
from evaluator.recipes.catalog import recipe_of
from policies.catalog import seed_names
from records.choices import choices_of
from records.errors import StudyError
from records.study import Dimension, Objective, Study, digest
from search.builtin import builtin_study
from search.compose import resolved_strategy
from search.llm.prices import priced
from search.service.config import Limits, Offered, ServiceConfig
from search.spaces import completed, space_of, study_in
from search.study_file import read_study_file, suggestion

PRINTED = r"^[^\x00-\x1f\x7f-\x9f]*$"
Text = Annotated[str, Field(min_length=1, max_length=1000)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Scalar = bool | int | float | Annotated[str, Field(max_length=200)]


class Work(BaseModel):
    """Sizes of the workload that differ from the environment's own study."""

    model_config = ConfigDict(extra="forbid")

    global_batch: Count | None = None
    sequence_length: Count | None = None
    output_length: Count | None = None


class NewStudy(BaseModel):
    """A study to search: one of the configured environments, and what is asked about it."""

    model_config = ConfigDict(extra="forbid")

    environment: Text = "builtin"
    name: Annotated[str, Field(max_length=200, pattern=PRINTED)] | None = None
    objectives: Annotated[list[Text], Field(max_length=8)] = Field(default_factory=list)
    direction: Literal["minimize", "maximize"] | None = None
    limits: Annotated[list[Text], Field(max_length=16)] = Field(default_factory=list)
    strategy: Annotated[str, Field(max_length=40)] = "auto"
    trials: Count | None = None
    patience: Count | None = None
    max_wall_s: Annotated[float, Field(ge=1, le=1e8, allow_inf_nan=False)] | None = None
    max_tokens: Annotated[int, Field(ge=0, le=10**12)] | None = None
    max_cost_usd: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = None
    parallel: Annotated[int, Field(ge=1, le=1024)] | None = None
    seed_policy: Annotated[str, Field(max_length=100)] | None = None
    seed_source: Annotated[str, Field(max_length=100_000)] | None = None
    workload: Work = Field(default_factory=Work)
    choices: Annotated[
        dict[Annotated[str, Field(max_length=100)], Annotated[list[Scalar], Field(max_length=100)]],
        Field(max_length=50),
    ] = Field(default_factory=dict)


class RefusedError(StudyError):
    """Fields that were refused, each with its reason."""

    def __init__(self, faults: Mapping[str, str]) -> None:
        super().__init__("; ".join(faults.values()))
        self.faults = faults


def offered_study(offered: Offered, folder: Path) -> Study:
    """The study that an environment starts from; its file is read where it was configured."""
    base = builtin_study(local_environment())
    return base if offered.study is None else read_study_file(folder / offered.study, base)


def check_offered(config: ServiceConfig, folder: Path) -> None:
    """Raise `StudyError` where an environment has no study: the operator is told, at the start."""
    for name, offered in config.environment.items():
        try:
            offered_study(offered, folder)
        except StudyError as error:
            raise StudyError(f"[environment.{name}] {error}") from error


def study_of(asked: NewStudy, base: Study, config: ServiceConfig, policies: Path) -> Study:
    """The study that is asked for; raises `StudyError` where it cannot be searched.

    The text of a seed policy is kept in `policies` under its digest.
    """
    faults = faults_in(asked, base, config.limits)
    if faults:
        raise RefusedError(faults)
    study = replace(
        _with_work(asked, base),
        name=asked.name or base.name,
        objective=_objective(asked, base),
        more_objectives=tuple(Objective(expression=text) for text in asked.objectives[1:])
        or (base.more_objectives if not asked.objectives else ()),
        limits=tuple(asked.limits) or base.limits,
    )
    study = completed(study)  # only now it is known which choices each knob has
    space = replace(study.space, dimensions=_dimensions(asked.choices, study))
    study = replace(
        _with_budget(replace(study, space=space), asked, config.limits),
        strategy=_strategy(asked),
        llm=priced(study.llm),
        seed_policy=_seed(asked, policies) or study.seed_policy,
    )
    _check(study)
    _keep_seed(asked, policies)
    return study


def faults_in(asked: NewStudy, base: Study, most: Limits) -> dict[str, str]:
    """What is wrong by field; each field is checked whatever the others hold."""
    more = [Objective(expression=text) for text in asked.objectives[1:]]
    checks: Sequence[tuple[str, Callable[[], object]]] = [
        ("objective", partial(scoring, _objective(asked, base))),
        *(("more_objectives", partial(scoring, one)) for one in more),
        *(("limits", partial(limit, text)) for text in asked.limits),
        ("choices", partial(_narrowed, asked, base)),
        ("strategy", partial(_strategy, asked)),
        ("trials", partial(_trials, asked, base, most)),
        ("max_cost_usd", partial(_cost_usd, asked, base, most)),
        ("seed_policy", partial(_require_seed, asked)),
    ]
    found: dict[str, list[str]] = {}
    for name, check in checks:
        try:
            check()
        except StudyError as error:
            found.setdefault(name, []).append(str(error))
    return {name: "; ".join(words) for name, words in found.items()}


def _with_work(asked: NewStudy, base: Study) -> Study:
    return replace(
        base,
        workload=replace(base.workload, **asked.workload.model_dump(exclude_none=True)),
        parallel=asked.parallel or base.parallel,
    )


def _narrowed(asked: NewStudy, base: Study) -> None:
    if asked.choices:
        _dimensions(asked.choices, completed(_with_work(asked, base)))


def _strategy(asked: NewStudy) -> str:
    strategy, _ = resolved_strategy(asked.strategy)
    if strategy == "replay":
        raise StudyError("strategy 'replay' is not offered here; it needs --from")
    return strategy


def _objective(asked: NewStudy, base: Study) -> Objective:
    chosen = Objective(expression=asked.objectives[0]) if asked.objectives else base.objective
    return chosen if asked.direction is None else replace(chosen, direction=asked.direction)


def _dimensions(choices: Mapping[str, list[Scalar]], base: Study) -> tuple[Dimension, ...]:
    """Knobs with fewer choices than they have; nothing can be added to them."""
    known = {dimension.name: dimension for dimension in base.space.dimensions}
    for name, values in choices.items():
        if name not in known:
            raise StudyError(f"choices: no knob {name!r}; {suggestion(name, [*known])}")
        offered = choices_of(known[name])
        if not values:
            raise StudyError(f"choices: none are given for {name!r}; leave it out, or give some")
        kinds = {(type(value), value) for value in offered}
        foreign = [value for value in values if (type(value), value) not in kinds]
        if foreign:
            words = ", ".join(map(str, offered))
            raise StudyError(f"choices: {foreign[0]!r} is none of {name!r}; those are {words}")
    return tuple(
        replace(each, choices=tuple(choices[name]), range=None) if name in choices else each
        for name, each in known.items()
    )


def _with_budget(study: Study, asked: NewStudy, most: Limits) -> Study:
    budget = replace(
        study.budget,
        **asked.model_dump(include={"patience", "max_wall_s", "max_tokens"}, exclude_none=True),
        trials=_trials(asked, study, most),
        max_cost_usd=_cost_usd(asked, study, most),
    )
    return replace(study, budget=budget)


def _trials(asked: NewStudy, base: Study, most: Limits) -> int:
    trials = base.budget.trials if asked.trials is None else asked.trials
    if trials > most.trials:
        raise StudyError(f"trials is {trials}; at most {most.trials} are allowed here")
    return trials


def _cost_usd(asked: NewStudy, base: Study, most: Limits) -> float | None:
    cost_usd = base.budget.max_cost_usd if asked.max_cost_usd is None else asked.max_cost_usd
    if most.cost_usd is None:
        return cost_usd
    if cost_usd is None:
        return most.cost_usd
    if cost_usd > most.cost_usd:
        raise StudyError(f"max_cost_usd is {cost_usd:g}; at most {most.cost_usd:g} is allowed")
    return cost_usd


def _require_seed(asked: NewStudy) -> None:
    if asked.seed_policy is None:
        return
    if asked.seed_source is not None:
        raise StudyError("seed_policy and seed_source exclude each other; give one of them")
    if asked.seed_policy not in seed_names():
        known = suggestion(asked.seed_policy, list(seed_names()))
        raise StudyError(f"no built-in seed policy {asked.seed_policy!r}; {known}")


def _seed(asked: NewStudy, policies: Path) -> str | None:
    if asked.seed_source is not None:
        return str(_seed_path(asked.seed_source, policies))
    return asked.seed_policy


def _keep_seed(asked: NewStudy, policies: Path) -> None:
    if asked.seed_source is None:
        return
    path = _seed_path(asked.seed_source, policies)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.with_suffix(".incoming")
        whole.write_text(asked.seed_source, encoding="utf-8", errors="surrogatepass")
        whole.replace(path)


def _seed_path(source: str, policies: Path) -> Path:
    return policies / f"{digest(source)}.py"


def _check(study: Study) -> None:
    """Whatever would stop a search before its first launch is said now."""
    recipe = recipe_of(study)
    for inside in (study, *(study_in(study, context) for context in study.contexts)):
        recipe.check(inside)
    scoring_of(study)
    space = space_of(study)
    if not space.feasible:
        why = "; ".join(space.obstacles()) or "several exclude each other"
        raise StudyError(f"no configuration satisfies the constraints: {why}")
