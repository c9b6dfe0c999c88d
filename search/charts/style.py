"""How charts look: colours that the colour-blind tell apart, for light and for dark pages."""

from functools import cache
from importlib.resources import files


@cache
def chart_style() -> str:
    """The style sheet that a page with charts must have."""
    return (files("search.charts") / "charts.css").read_text(encoding="utf-8")
