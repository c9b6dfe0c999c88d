"""What all importers make of a record: study, workload, rules, and what counts as a number."""

import math
from collections.abc import Mapping
from typing import Final, Literal

from records.codec import from_document
from records.models import model_named
from records.origin import Origin
from records.study import Command, Constraint, Dimension, Environment, Launch, SearchSpace, Study
from records.workload import Workload
from search.importing.objectives import objective_of
from search.importing.search_rows import Aim, Work

AUTHOR: Final = "ccl-search"
RANKS: Final = ("tp", "dp", "pp", "cp")
MOST_PUBLISHED: Final = 200
MOST_NAME_CHARS: Final = 100
SCRIPT: Final = Command(run=("recorded",))
"""Whoever ran these ran a script, which is not here."""


def study_of(
    *,
    name: str,
    aim: Aim | None,
    workload: Workload,
    environment: Environment,
    origin: Origin,
    rules: tuple[Constraint, ...] = (),
    inferences: tuple[str, ...] = (),
) -> Study:
    """A study of an imported search, without what was tried in it."""
    return Study(
        name=name[:MOST_NAME_CHARS],
        workload=workload,
        environment=environment,
        space=SearchSpace(dimensions=(Dimension(name="tried", choices=(0,)),), constraints=rules),
        objective=objective_of(aim),
        seed_policy="recorded",
        launch=Launch(recipe="command"),
        command=SCRIPT,
        strategy=AUTHOR,
        origin=origin,
        inferences=inferences,
    )


def workload_of(work: Work, name: str) -> Workload:
    """The work as it was declared; sizes of a model that is well known are added."""
    model = model_named(work.model) if work.model else None
    document: dict[str, object] = {
        **(model.sizes if model is not None else {}),
        "name": name,
        "model": work.model or None,
        "global_batch": work.card_batch_size or work.batch_size or 1,
        "sequence_length": work.seq_len,
        "precision": work.precision,
        "phase": "inference" if work.phase == "inference" else "training",
    }
    return from_document(Workload, document)


def direction_of(aim: Aim | None) -> Literal["minimize", "maximize"]:
    """Which way the tool's own score is better."""
    return "maximize" if aim is not None and aim.direction == "maximize" else "minimize"


def rules_of(*, fixed_batch: bool) -> tuple[Constraint, ...]:
    """What every launch of such a script has to keep to, whatever the search knew of it."""
    ranks = Constraint(name="ranks", expression="tp * dp * pp <= world_size")
    experts = Constraint(name="experts", expression="dp % ep == 0")
    batch = Constraint(name="batch", expression="global_batch % (dp * micro_batch_size) == 0")
    return (ranks, experts, batch) if fixed_batch else (ranks, experts)


def rank_count(config: Mapping[str, object]) -> int | None:
    """Devices that a configuration takes by its degrees of parallelism, if it names any."""
    degrees = [config[name] for name in RANKS if name in config]
    whole = [one for one in degrees if isinstance(one, int) and one > 0]
    return math.prod(whole) if degrees and len(whole) == len(degrees) else None


def published_of(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Numbers of the record beside the score and the step time, which have names of their own."""
    own = ("avg_step_time", "gpu_step_score")
    known = {name: float(value) for name, value in metrics.items() if value is not None}
    told = {n: v for n, v in known.items() if n not in own and math.isfinite(v) and _is_name(n)}
    return dict(list(told.items())[:MOST_PUBLISHED])


def _is_name(text: str) -> bool:
    """Whether an expression could name a metric so."""
    return text.isidentifier() and len(text) <= MOST_NAME_CHARS


def author_of(ordinal: int) -> str:
    """Who wrote the policy of a trial."""
    return AUTHOR if ordinal else "seed"


def positive(seconds: float | None) -> float | None:
    """A time that can be one."""
    return seconds if seconds is not None and 0 < seconds < math.inf else None
