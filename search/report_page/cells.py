"""Values as tables show them."""

from evaluator.timing.spread import Spread
from records.rule import size_words
from records.trial import MetricValue
from search.report_page.blocks import Cell
from search.words.quantities import many
from search.words.trial import number


def spread_cell(found: Spread) -> Cell:
    """Launches of a trial by their centre, interval and number."""
    interval = ""
    if found.low is not None and found.high is not None:
        interval = f" ({number(found.low)} to {number(found.high)})"
    count = many(found.launch_count, "launch", "launches")
    return Cell(text=f"{number(found.centre)}{interval}, {count}", value=found.centre)


def metric_words(metric: MetricValue) -> str:
    """A value with its unit, bytes in the one that people read them in."""
    if metric.unit == "bytes":
        return size_words(metric.value)
    return f"{number(metric.value)} {metric.unit}".rstrip()
