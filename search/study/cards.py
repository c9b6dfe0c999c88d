"""CCL-Bench cards and tuning files (YAML) as studies, and CCL-Search scripts as their commands.

Published cards seldom follow their template: only fields that a study needs are read, from the
places where published cards have them. A missing field is reported with its path.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from evaluator.recipes.command import locate
from policies.contract import FIRST
from records.errors import StudyError, shown, suggestion
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
from search.study.card_reader import Card, CardReader, Given, is_number

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
TUNING_KEYS = ("config_space", "optimization_goal", "publish_dir")
GOAL_KEYS = ("direction", "metrics")
KNOB_KEYS = ("key", "type", "description", "choices")
METRIC_KEYS = ("name", "weight")
CHECKPOINTING = {True: "full", False: "none"}


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
    knobs = None if tuning is None else Card(tuning)
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


def _tuned(study: Study, tuning: Card) -> Study:
    _refuse_unknown(tuning, "", tuning.fields, TUNING_KEYS)
    study = replace(study, objective=_objective(tuning) or study.objective)
    is_script = study.command is not None
    items = tuning.items("config_space")
    dimensions = tuple(_dimension(item, tuning, own_names=is_script) for item in items)
    if is_script:
        return replace(study, space=SearchSpace(dimensions=dimensions))
    # The default seed sets knobs that this space may lack.
    has_knob = any(dimension.name == SEEDED for dimension in dimensions)
    return replace(
        study,
        space=replace(study.space, dimensions=dimensions),
        seed_policy=study.seed_policy if has_knob else FIRST,
    )


def _dimension(item: Mapping[object, object], tuning: Card, *, own_names: bool) -> Dimension:
    _refuse_unknown(tuning, "config_space: ", item, KNOB_KEYS)
    key, choices = item.get("key"), item.get("choices")
    if not isinstance(key, str) or not isinstance(choices, list) or not choices:
        raise StudyError(
            f"{tuning.path}: config_space: each entry needs a key and choices: {shown(item)}"
        )
    name = key if own_names else KNOB_NAMES.get(key, key)
    meanings = {} if own_names or name != "activation_checkpointing" else CHECKPOINTING
    return Dimension(
        name=name,
        choices=tuple(_choice(name, choice, tuning, meanings) for choice in choices),
        description=str(item.get("description", "")),
    )


def _choice(knob: str, choice: object, tuning: Card, meanings: Mapping[bool, str]) -> Value:
    if isinstance(choice, bool) and choice in meanings:
        return meanings[choice]
    if isinstance(choice, bool | str) or is_number(choice):
        return choice
    raise StudyError(f"{tuning.path}: choice {shown(choice)} of {knob} is not a plain value")


def _objective(tuning: Card) -> Objective | None:
    goal = tuning.get("optimization_goal")
    if goal is None:
        return None
    if isinstance(goal, dict):
        _refuse_unknown(tuning, "optimization_goal: ", goal, GOAL_KEYS)
    direction = tuning.text("optimization_goal.direction")
    terms = [_term(metric, tuning) for metric in tuning.items("optimization_goal.metrics")]
    if direction not in {"minimize", "maximize"} or not terms:
        raise StudyError(
            f"{tuning.path}: optimization_goal needs a direction, minimize or maximize, and metrics"
        )
    only = terms[0][0] if len(terms) == 1 and terms[0][1] == 1 else None
    expression = only or " + ".join(f"{weight} * {name}" for name, weight in terms)
    return Objective(
        expression=expression, direction="minimize" if direction == "minimize" else "maximize"
    )


def _term(metric: Mapping[object, object], tuning: Card) -> tuple[str, int | float]:
    """Return the name and weight of one metric of the goal."""
    _refuse_unknown(tuning, "optimization_goal.metrics: ", metric, METRIC_KEYS)
    name, weight = metric.get("name"), metric.get("weight", 1)
    if not isinstance(name, str) or not is_number(weight):
        raise StudyError(
            f"{tuning.path}: optimization_goal.metrics: each entry needs a name and, if it has "
            f"one, a weight that is a number: {shown(metric)}"
        )
    return METRIC_NAMES.get(name, name), weight


def _refuse_unknown(
    tuning: Card, where: str, table: Mapping[object, object], known: Sequence[str]
) -> None:
    for key in table:
        if key not in known:
            hint = suggestion(str(key), list(known))
            raise StudyError(f"{tuning.path}: {where}unknown key {shown(key)}; {hint}")
