"""Check a policy without a launch: in the contexts of a study, and over a grid of values."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product

from pydantic import ValidationError

from policies.space import Space
from records.codec import first_problem, from_document
from records.errors import StudyError, suggestion
from records.study import Environment, Study, Value
from records.trial import Config, Failed, FailureKind, Policy, Stage
from records.workload import Workload
from search.study.spaces import completed, decide_in, space_of, study_in


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyContext:
    """Where a policy is checked: a study with one context, or why nothing is feasible there."""

    name: str
    held_out: bool
    study: Study
    space: Space | Failed

    def decide(self, policy: Policy) -> Config | Failed:
        """Return what a policy decides here; raises `EnvironmentFault` without a sandbox."""
        if isinstance(self.space, Failed):
            return self.space
        return decide_in(policy, self.study, self.space)


def policy_contexts(study: Study, varied: Mapping[str, Sequence[Value]]) -> Iterator[PolicyContext]:
    """Yield each context of a study, its own first, and every combination of varied values.

    `study` is not completed yet: the space depends on the sizes of each context. Raises
    `StudyError` for a value that a field cannot have.
    """
    alone = replace(study, contexts=())
    yield _context(study.name, alone)
    for context in study.contexts:
        yield _context(context.name, study_in(study, context), held_out=context.held_out)
    for values in product(*varied.values()) if varied else ():
        changes = dict(zip(varied, values, strict=True))
        name = " ".join(f"{field}={value}" for field, value in changes.items())
        yield _context(name, _changed(alone, changes))


def varied_values(texts: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    """Parse texts like `global_batch=16,32` into fields with the values to try."""
    known = [field.name for part in (Workload, Environment) for field in fields(part)]
    found: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        field, separator, listed = text.partition("=")
        if not separator or not listed:
            raise StudyError(f"--vary {text!r} lists no values; write global_batch=16,32")
        if field not in known:
            raise StudyError(f"--vary: unknown field {field!r}; {suggestion(field, known)}")
        found[field] = tuple(_value(word) for word in listed.split(","))
    return found


def _value(word: str) -> Value:
    try:
        value = json.loads(word)
    except ValueError:
        return word
    return value if isinstance(value, bool | int | float) else word


def _changed(study: Study, changes: Mapping[str, Value]) -> Study:
    """Return the study with other values; raises `StudyError` for one that a field cannot have."""
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


def _context(name: str, study: Study, *, held_out: bool = False) -> PolicyContext:
    space: Space | Failed
    try:
        study = completed(study)
        space = space_of(study)
    except StudyError as error:
        message = f"nothing is feasible here: {error}"
        space = Failed(stage=Stage.CHECK, kind=FailureKind.INVALID_CONFIG, message=message)
    return PolicyContext(name=name, held_out=held_out, study=study, space=space)
