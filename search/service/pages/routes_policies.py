"""Pages about policies: which a study tried, what each changed, what the models took for them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from records.policy_outlines import PolicyResult
from records.rows import StudyRow
from records.store import Store
from search.service.edge.access import Reader, TheService
from search.service.facts.repeats import reached_again
from search.service.lookups import policy_of
from search.service.pages.differences import lines_of, one_below_the_other, side_by_side
from search.service.pages.rendering import page
from search.service.routes.studies import Offset
from search.service.told import disturbed_in, study_short
from search.words.model import use_facts

router = APIRouter(include_in_schema=False)

MOST_TRIALS = 8
"""Of each policy in the list; the page of a policy has more."""
MANY_TRIALS = 500

Limit = Annotated[int, Query(ge=1, le=200)]
Against = Annotated[str, Query(max_length=64, pattern="^[0-9a-f]*$")]


@router.get("/studies/{study_id}/policies")
def policies(
    request: Request,
    study_id: str,
    service: TheService,
    _caller: Reader,
    limit: Limit = 50,
    offset: Offset = 0,
    learnt: Literal["yes", "no"] = "no",
) -> Response:
    """The policies of a study in the order in which they were tried.

    What failures taught is told when it is asked for: with many knobs it takes seconds.
    """
    row, records = service.study(study_id), service.records
    outlines, total = records.policy_outlines(row.id, limit, offset)
    return page(
        request,
        "policies.html",
        disturbed=disturbed_in(row, service),
        study=study_short(row, service),
        tab="policies",
        outlines=outlines,
        results=_results(row, [each.digest for each in outlines], MOST_TRIALS, records),
        total=total,
        limit=limit,
        offset=offset,
        models=use_facts(records.model_uses(row.id), row.study.llm),
        failed=records.counts(row.id).failed,
        learnt=service.writing.learnt(service.store, row) if learnt == "yes" else None,
    )


@router.get("/studies/{study_id}/policies/{digest}")
def policy(
    request: Request,
    study_id: str,
    digest: str,
    service: TheService,
    _caller: Reader,
    against: Against = "",
    view: Literal["side", "unified"] = "side",
) -> Response:
    """A policy, what it changed of its parent or of the one given, and its trials."""
    row, records = service.study(study_id), service.records
    found = policy_of(service, row.id, digest)
    before = None if found.parent is None else records.policy(row.id, found.parent)
    if against:
        before = policy_of(service, row.id, against)
    rows = () if before is None else side_by_side(before.source, found.source)
    return page(
        request,
        "policy.html",
        disturbed=disturbed_in(row, service),
        study=study_short(row, service),
        tab="policies",
        policy=found,
        digest=digest,
        before=before,
        view=view,
        rows=rows if view == "side" else tuple(one_below_the_other(rows)),
        lines=lines_of(found.source),
        results=_results(row, [digest], MANY_TRIALS, records).get(digest, ()),
    )


def _results(
    row: StudyRow, digests: Sequence[str], most: int, records: Store
) -> Mapping[str, tuple[PolicyResult, ...]]:
    """How the first trials of these policies ended, by all launches that count."""
    again = reached_again(row, records)
    found = records.policy_results(row.id, digests, most)
    return {
        digest: tuple(
            replace(each, value=again[each.ordinal].centre) if each.ordinal in again else each
            for each in results
        )
        for digest, results in found.items()
    }
