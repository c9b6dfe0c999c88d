"""Writes the parts of metrics.md that come from the code: python docs/generate_metrics.py."""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from evaluator.metrics.base import Metric
from evaluator.metrics.registry import metric, metric_names
from search.traces.tables import COLUMNS, Columns

DOCUMENT = Path(__file__).parent / "metrics.md"
WIDTH = 100


def written(document: str) -> str:
    """The document with its generated parts as the code has them now."""
    parts = {
        "definitions": "\n".join(_definition(metric(name)) for name in metric_names()),
        "columns": "\n".join(_columns(name, columns) for name, columns in COLUMNS.items()),
    }
    for name, text in parts.items():
        mark = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        document = mark.sub(lambda found, text=text: f"{found[1]}\n{text}\n{found[2]}", document)
    return document


def _definition(of: Metric) -> str:
    sources = ", ".join(sorted(of.sources))
    head = f"{of.label}; {of.unit}, {of.better} is better; version {of.version}; from {sources}"
    paragraphs = [head, of.description]
    if of.differs:
        paragraphs.append(f"*CCL-Bench:* {of.differs}")
    return f"### {of.name}\n\n" + "\n\n".join(map(_wrapped, paragraphs)) + "\n"


def _columns(name: str, columns: Columns) -> str:
    return "\n".join([f"`trace.{name}()`", "", *_rows(columns), ""])


def _rows(columns: Columns) -> Iterator[str]:
    yield "| column | holds |"
    yield "|---|---|"
    for name, meaning in columns.items():
        yield f"| `{name}` | {meaning} |"


def _wrapped(paragraph: str) -> str:
    lines = textwrap.wrap(paragraph, WIDTH, break_on_hyphens=False)
    # A line that begins with a sign would begin a list.
    return "\n".join(re.sub(r"^([-+*>]) ", r"\\\1 ", line) for line in lines)


if __name__ == "__main__":
    DOCUMENT.write_text(written(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
