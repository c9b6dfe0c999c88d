"""CCL-Bench cards and tuning files (YAML) as studies, and CCL-Search scripts as their commands.

Published cards seldom follow their template: only fields that a study needs are read, from the
places where published cards have them. A missing field is reported with its path.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field, ValidationError

from evaluator.recipes.command import locate
from policies.contract import FIRST
from records.codec import from_document
from records.errors import Strict, StudyError
from records.files import read_text
from records.study import (
    Command,
    Context,
    Dimension,
    Environment,
    Objective,
    SearchSpace,
    Study,
    Value,
)
from records.workload import Workload
from search.study.card_reader import Card, CardReader, Given
from search.study.study_file import first_fault

TIMEOUT_S = 3600.0
"""The time limit of CCL-Search for a script."""

_TRUE_WORDS = ("true", "yes", "on")
_BOOLEAN = "tag:yaml.org,2002:bool"


def with_script(study: Study, script: Path, tuning: Path | None) -> Study:
    """Return the study with a script as its command; the tuning file has been read before."""
    if tuning is None:
        raise StudyError("--command needs the script's knobs; add --tuning FILE")
    if not script.is_file():
        raise StudyError(f"--command {script}: file not found")
    command = Command(run=("bash", str(script.absolute())))
    booleans = _spelled_booleans(tuning)
    if booleans is not None:
        command = replace(command, booleans=booleans)
    return replace(
        study,
        seed_policy=FIRST,
        command=locate(command, script.parent),
        launch=replace(study.launch, recipe="command"),
        measure=replace(study.measure, timeout_s=TIMEOUT_S),
    )


def _spelled_booleans(path: Path) -> tuple[str, str] | None:
    """Return the spellings of true and false in a tuning file; None where it lacks one.

    A script compares texts, and YAML allows many spellings. Raises `StudyError` for several.
    """
    words = set(_boolean_words(yaml.compose(read_text(path), yaml.SafeLoader)))
    true = sorted(word for word in words if word.lower() in _TRUE_WORDS)
    false = sorted(words - {*true})
    if len(true) > 1 or len(false) > 1:
        raise StudyError(
            f"{path}: spells booleans as {', '.join([*true, *false])}; a script needs one spelling"
        )
    return (true[0], false[0]) if true and false else None


def _boolean_words(node: yaml.Node | None) -> Iterator[str]:
    """Yield the texts of booleans anywhere below a node."""
    match node:
        case yaml.ScalarNode(tag=tag, value=word) if tag == _BOOLEAN:
            yield word
        case yaml.SequenceNode(value=children):
            for child in children:
                yield from _boolean_words(child)
        case yaml.MappingNode(value=pairs):
            for _, child in pairs:
                yield from _boolean_words(child)


KNOB_NAMES = {"dp": "dp_replicate", "micro_batch_size": "micro_batch"}
METRIC_NAMES = {"avg_step_time": "step_time"}
SEEDED = "dp_shard"
CHECKPOINTING = {True: "full", False: "none"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningKnob(Strict):
    """A knob of a tuning file; what its type is follows from the choices."""

    key: str
    choices: Annotated[tuple[Value, ...], Field(min_length=1)]
    type: object = None
    description: Value = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningMetric(Strict):
    """A term of the objective."""

    name: str
    weight: int | float = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningGoal(Strict):
    """The objective, the sum of its metrics."""

    direction: Literal["minimize", "maximize"]
    metrics: Annotated[tuple[TuningMetric, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning(Strict):
    """A tuning file of CCL-Search; it publishes nothing here."""

    config_space: tuple[TuningKnob, ...]
    optimization_goal: TuningGoal | None = None
    publish_dir: object = None


def card_study(
    card: Path,
    tuning: Path | None,
    given: Given,
    base: Study,
    command: Path | None = None,
) -> Study:
    """Return the base study with the card's workload and environment, and the tuning file's space.

    With `command`, the knobs of the tuning file keep their names, which the script knows. Options
    and the study file override the card. All listed batch sizes but the first become contexts.
    """
    reader = CardReader(Card(card), given)
    workload = reader.workload(base.workload.seed)
    environment = reader.environment(base.environment)
    contexts = _batch_contexts(reader, workload, environment)
    study = replace(
        base,
        name=card.stem,
        workload=workload,
        environment=environment,
        contexts=contexts or base.contexts,
        inferences=tuple(reader.inferences),
        # The budget of the base is for the base's model.
        launch=replace(base.launch, memory_budget_bytes=None),
    )
    knobs = None if tuning is None else _tuning(tuning)
    if command is not None:
        study = with_script(study, command, tuning)
    return study if knobs is None else _tuned(study, knobs)


def _batch_contexts(
    reader: CardReader, workload: Workload, environment: Environment
) -> tuple[Context, ...]:
    """Return a context for each batch size but the first, which is the study's own."""
    first, *others = reader.batch_sizes()
    if others:
        reader.inferences.append(
            f"batch_size lists {1 + len(others)} sizes: {first} is the study's own and each other "
            "a context, so every trial is launched with all of them; --batch-size N takes one"
        )
    return tuple(
        Context(
            name=f"batch-{batch}",
            workload=replace(workload, global_batch=batch),
            environment=environment,
        )
        for batch in others
    )


def _tuning(path: Path) -> Tuning:
    try:
        return from_document(Tuning, Card(path).fields)
    except ValidationError as error:
        raise StudyError(f"{path}: {first_fault(error, Tuning)}") from error
    except (TypeError, ValueError) as error:
        raise StudyError(f"{path}: {error}") from error


def _tuned(study: Study, tuning: Tuning) -> Study:
    study = replace(study, objective=_objective(tuning) or study.objective)
    is_script = study.command is not None
    dimensions = tuple(_dimension(knob, own_names=is_script) for knob in tuning.config_space)
    if is_script:
        return replace(study, space=SearchSpace(dimensions=dimensions))
    # The default seed sets knobs that this space may lack.
    has_knob = any(dimension.name == SEEDED for dimension in dimensions)
    return replace(
        study,
        space=replace(study.space, dimensions=dimensions),
        seed_policy=study.seed_policy if has_knob else FIRST,
    )


def _dimension(knob: TuningKnob, *, own_names: bool) -> Dimension:
    name = knob.key if own_names else KNOB_NAMES.get(knob.key, knob.key)
    meant = knob.choices
    if name == "activation_checkpointing" and not own_names:
        meant = tuple(CHECKPOINTING[c] if isinstance(c, bool) else c for c in knob.choices)
    return Dimension(name=name, choices=meant, description=str(knob.description))


def _objective(tuning: Tuning) -> Objective | None:
    goal = tuning.optimization_goal
    if goal is None:
        return None
    terms = [(METRIC_NAMES.get(each.name, each.name), each.weight) for each in goal.metrics]
    only = terms[0][0] if len(terms) == 1 and terms[0][1] == 1 else None
    expression = only or " + ".join(f"{weight} * {name}" for name, weight in terms)
    return Objective(expression=expression, direction=goal.direction)
