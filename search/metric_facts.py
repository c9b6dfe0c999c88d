"""A metric's definition for programs."""

from evaluator.metrics.base import Metric


def definition_facts(of: Metric) -> dict[str, object]:
    """What a metric is called, what it is in, and what it means."""
    return {
        "name": of.name,
        "label": of.label,
        "unit": of.unit,
        "better": of.better,
        "sources": sorted(of.sources),
        "version": of.version,
        "description": of.description,
        "differs": of.differs,
    }
