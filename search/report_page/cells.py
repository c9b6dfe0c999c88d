"""Values as tables show them."""

from evaluator.timing.spread import Spread
from records.rule import size_words
from records.trial import MetricValue
from search.report_page.blocks import Cell
from search.words.trial import number, reached_words


def spread_cell(found: Spread) -> Cell:
    """Launches of a trial by their centre, interval and number."""
    return Cell(text=reached_words(found), value=found.centre)


def metric_words(metric: MetricValue) -> str:
    """A value with its unit, bytes in the one that people read them in."""
    if metric.unit == "bytes":
        return size_words(metric.value)
    return f"{number(metric.value)} {metric.unit}".rstrip()
