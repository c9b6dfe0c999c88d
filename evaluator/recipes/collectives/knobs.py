"""Every knob of the recipe by its name, bound to a study: choices, conditions, defaults."""

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches

from evaluator.recipes.collectives.knob import Knob
from evaluator.recipes.collectives.nccl import NCCL_KNOBS
from evaluator.recipes.collectives.open_mpi import OPEN_MPI_KNOBS
from evaluator.recipes.collectives.setup_knobs import setup_knobs
from records.errors import StudyError
from records.expression import parse
from records.rule import facts
from records.study import Dimension, Study, Value


def knobs(study: Study) -> Mapping[str, Knob]:
    """The knobs by name, those first that the conditions of others name."""
    return {**setup_knobs(study.environment.device), **NCCL_KNOBS, **OPEN_MPI_KNOBS}


def mix(study: Study) -> frozenset[str]:
    """The collectives that a step makes, one with a single tensor counted as the one with lists."""
    return frozenset(m.collective.removesuffix("_single") for m in study.workload.messages)


def defaults(study: Study) -> Mapping[str, Value]:
    """What every knob is where a configuration leaves it out."""
    return {name: knob.default for name, knob in knobs(study).items()}


def completed(given: Dimension, study: Study) -> Dimension:
    """A dimension of a study with what it leaves out.

    Raises `StudyError` for an unknown knob, and for a choice that the knob does not have.
    """
    ends = (given.range.low, given.range.high) if given.range else ()
    for choice in (*(given.choices or ()), *ends):
        check_setting(given.name, choice, study)
    knob = _known(given.name, study)
    listed_here = given.choices is not None or given.range is not None
    return replace(
        given,
        choices=given.choices if listed_here else knob.choices,
        when=given.when or knob.condition(mix(study)),
        description=given.description or knob.description,
    )


def check_setting(name: str, value: Value, study: Study) -> None:
    """Raise `StudyError` when the recipe has no such knob, or it cannot be set to this."""
    fault = _known(name, study).fault(value)
    if fault is not None:
        raise StudyError(f"[space] {name} {fault}")


def live(settings: Mapping[str, Value], study: Study) -> dict[str, Value]:
    """The settings with the default of every knob that has no effect among them."""
    names, kinds = facts(study.workload, study.environment), mix(study)
    found = dict(settings)
    for name, knob in knobs(study).items():
        when = knob.condition(kinds)
        if when is not None and not parse(when).holds({**names, **found}):
            found[name] = knob.default
    return found


def _known(name: str, study: Study) -> Knob:
    known = knobs(study)
    if name not in known:
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(known)}"
        raise StudyError(f"[space] {name!r} is not a knob of the collectives recipe; {hint}")
    return known[name]
