"""What a policy decides without a launch: in the contexts of a study, and over a grid of values."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product

from pydantic import ValidationError

from policies.contract import decide
from policies.space import Space
from records.codec import first_problem, from_document
from records.errors import StudyError
from records.study import Environment, Study, Value
from records.trial import Config, Failed, FailureKind, Policy, Stage
from records.workload import Workload
from search.study.spaces import completed, space_of, study_in
from search.study.study_file import suggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCheck:
    """What a policy decided in one context."""

    name: str
    held_out: bool
    answer: Config | Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextPlace:
    """Where a policy is asked: a study with one context, or why nothing is feasible there."""

    name: str
    held_out: bool
    study: Study
    space: Space | Failed


def check_policy(
    policy: Policy, study: Study, varied: Mapping[str, Sequence[Value]]
) -> Iterator[PolicyCheck]:
    """Run a policy in each context of a study, and for every combination of varied values.

    `study` is not completed yet: what is searched follows from the sizes of each context. Raises
    `StudyError` for a varied key that is no field, `EnvironmentFault` without a sandbox.
    """
    for place in places(study, varied):
        yield PolicyCheck(name=place.name, held_out=place.held_out, answer=asked(policy, place))


def places(study: Study, varied: Mapping[str, Sequence[Value]]) -> Iterator[ContextPlace]:
    """Each context of a study, its own first, and every combination of varied values."""
    alone = replace(study, contexts=())
    yield _place(study.name, alone)
    for context in study.contexts:
        yield _place(context.name, study_in(study, context), held_out=context.held_out)
    for values in product(*varied.values()) if varied else ():
        changes = dict(zip(varied, values, strict=True))
        name = " ".join(f"{field}={value}" for field, value in changes.items())
        yield _place(name, _changed(alone, changes))


def asked(policy: Policy, place: ContextPlace) -> Config | Failed:
    """What a policy decides there; raises `EnvironmentFault` without a sandbox."""
    if isinstance(place.space, Failed):
        return place.space
    return decide(policy, place.study.workload, place.study.usable_environment, place.space)


def varied_values(texts: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    """Fields with the values to try, from texts like `global_batch=16,32`."""
    known = [field.name for part in (Workload, Environment) for field in fields(part)]
    found: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        field, separator, listed = text.partition("=")
        if not separator or not listed:
            raise StudyError(f"--vary {text!r} lists no values; write global_batch=16,32")
        if field not in known:
            raise StudyError(f"--vary: {field!r} is no field; {suggestion(field, known)}")
        found[field] = tuple(_value(word) for word in listed.split(","))
    return found


def _value(word: str) -> Value:
    try:
        value = json.loads(word)
    except ValueError:
        return word
    return value if isinstance(value, bool | int | float) else word


def _changed(study: Study, changes: Mapping[str, Value]) -> Study:
    """The study's own context with other values; raises `StudyError` for one that cannot be."""
    here = {field.name for field in fields(Workload)}
    work = {field: value for field, value in changes.items() if field in here}
    machine = {field: value for field, value in changes.items() if field not in here}
    try:
        return replace(
            study,
            workload=from_document(Workload, {**asdict(study.workload), **work}),
            environment=from_document(Environment, {**asdict(study.environment), **machine}),
        )
    except ValidationError as error:
        raise StudyError(f"--vary {first_problem(error)}") from error


def _place(name: str, study: Study, *, held_out: bool = False) -> ContextPlace:
    try:
        whole = completed(study)
        return ContextPlace(name=name, held_out=held_out, study=whole, space=space_of(whole))
    except StudyError as error:
        message = f"nothing is feasible here: {error}"
        failed = Failed(stage=Stage.CHECK, kind=FailureKind.INVALID_CONFIG, message=message)
        return ContextPlace(name=name, held_out=held_out, study=study, space=failed)
