"""docs/metrics.md says of metrics and tables what the code says, and its example works."""

import re
from pathlib import Path
from runpy import run_path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
GLOO = Path(__file__).parents[2] / "data" / "traces" / "gloo_ddp_2rank"


@pytest.fixture
def document():
    return (DOCS / "metrics.md").read_text(encoding="utf-8")


def test_definitions_and_columns_are_those_of_the_code(document):
    written = run_path(str(DOCS / "generate_metrics.py"))["written"]

    assert document == written(document), "run: python docs/generate_metrics.py"


def test_the_metric_of_the_example_can_be_computed(document, cclsearch, tmp_path):
    (example,) = re.findall(r"```python\n(from evaluator.*?)```", document, re.DOTALL)
    (tmp_path / "mine.py").write_text(example, encoding="utf-8")

    ended = cclsearch(
        *("metrics", "compute", GLOO, "copied_share", "--no-cache"),
        *("--metrics-file", tmp_path / "mine.py"),
    )

    assert ended.code == 0
    assert "copied_share      0  fraction" in ended.out
