"""What metrics there are and what they mean."""

from fastapi import APIRouter

from evaluator.metrics.registry import loaded_metrics
from search.metric_facts import definition_facts
from search.service.answers import MetricDefinition, Page
from search.service.edge.access import Reader
from search.service.routes.studies import Limit, Offset

router = APIRouter(tags=["metrics"])


@router.get("/metric-definitions")
def metric_definitions(
    _caller: Reader, limit: Limit = 500, offset: Offset = 0
) -> Page[MetricDefinition]:
    """Every metric, by rising name: its unit, which way is better, and how it is computed."""
    known, _ = loaded_metrics()
    facts = [definition_facts(each) for each in known.values()]
    items = [MetricDefinition.model_validate(each) for each in facts[offset : offset + limit]]
    return Page(items=items, total=len(facts), offset=offset)
