"""Two trials or two studies against each other."""

from typing import Annotated

from fastapi import APIRouter, Query

from search.comparing.compared import Comparisons
from search.comparing.facts import comparisons_facts
from search.comparing.sides import OnRecord
from search.service.answers_compared import (
    Comparison,
    StudiesCompared,
    StudySide,
    TrialsCompared,
)
from search.service.edge.access import Reader, TheService
from search.service.facts.compared import (
    StudyBeside,
    compared_studies,
    compared_trials,
)
from search.service.lookups import SIDE, side_of
from search.service.state import MissingError, Service

router = APIRouter(tags=["comparisons"])

Side = Annotated[
    str,
    Query(
        pattern=f"^{SIDE}$",
        description="STUDY:N, or STUDY for its best trial.",
    ),
]
OneStudy = Annotated[str, Query(min_length=1, max_length=100, description="The id of a study.")]


@router.get("/compare/trials")
def compare_trials(service: TheService, _caller: Reader, a: Side, b: Side) -> TrialsCompared:
    """Whether trial B is faster than trial A, and how sure that is: as `cclsearch compare`."""
    found = compared_trials(_side(a, service), _side(b, service))
    return TrialsCompared(comparison=_comparison(found.found), settings=[*found.settings])


@router.get("/compare/studies")
def compare_studies(
    service: TheService, _caller: Reader, a: OneStudy, b: OneStudy
) -> StudiesCompared:
    """Whether the best of study B is faster than that of study A, and how both searches went."""
    rows = service.study(a), service.study(b)
    found = compared_studies(*rows, service.records, service.explored.history)
    return StudiesCompared(
        comparison=None if found.found is None else _comparison(found.found),
        why=found.why,
        a=_study(rows[0].id, found.a),
        b=_study(rows[1].id, found.b),
        settings=[*found.settings],
    )


def _side(text: str, service: Service) -> OnRecord:
    row, side = side_of(service, text)
    if side is None:
        raise MissingError(f"study {row.id} has no trial that may lead")
    return side


def _comparison(found: Comparisons) -> Comparison:
    return Comparison.model_validate(comparisons_facts(found))


def _study(study_id: str, side: StudyBeside) -> StudySide:
    return StudySide(
        study=study_id,
        best=side.best,
        value=side.value,
        unit=side.unit,
        caveats=[*side.caveats],
        history=side.history,
    )
