"""A file of the user's adds metrics; what is wrong with it is told by file and line."""

import pytest

from evaluator.metrics.base import Evidence, MetricError
from evaluator.metrics.registry import measure_all, read_metrics_file

TWO = """
from evaluator.metrics.base import Absent, Formula

COMMON = {"unit": "J", "better": "lower", "sources": frozenset({"samples"}), "label": "Energy"}


def _answer(evidence):
    return Absent("nobody metered it") if evidence.rank_count is None else evidence.rank_count * 2


joules = Formula(name="joules", description="Theirs.", formula=_answer, **COMMON)
again = joules
watts = Formula(name="watts", description="Theirs.", formula=lambda _: 5, **COMMON)
_hidden = Formula(name="hidden", description="Theirs.", formula=lambda _: 5, **COMMON)
"""


@pytest.fixture
def written(tmp_path):
    def write(text, name="mine.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_a_file_adds_its_public_metrics(written):
    added = read_metrics_file(written(TWO))
    assert [metric.name for metric in added] == ["joules", "watts"]
    measures = measure_all(Evidence(rank_count=3), added)
    assert {value.name: value.value for value in measures.values} == {
        "joules": 6.0,
        "rank_count": 3.0,
        "watts": 5.0,
    }
    assert measure_all(Evidence(), added).absent["joules"] == "nobody metered it"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ndef f(:\n", r"mine\.py:2: invalid syntax"),
        ("x = 1\n\nx / 0\n", r"mine\.py:3: ZeroDivisionError: division by zero"),
        ("import nowhere_to_be_found\n", r"mine\.py:1: ModuleNotFoundError: No module"),
        ("def f():\n    raise KeyError\n\nf()\n", r"mine\.py:2: KeyError$"),
        ("x = 1\n", r"mine\.py: holds no metric"),
        (TWO.replace('"lower"', '"down"'), r"mine\.py: metric joules calls 'down' better"),
        (TWO.replace('"Theirs."', '""'), r"mine\.py: metric joules has no description"),
        (
            TWO.replace('{"samples"}', '{"thermometer"}'),
            r"metric joules is computed from frozenset",
        ),
        (TWO.replace('"watts", ', '"watts", version=0, '), r"metric watts has version 0; count fr"),
    ],
)
def test_what_is_wrong_with_a_file_is_told(written, text, message):
    with pytest.raises(MetricError, match=message):
        read_metrics_file(written(text))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(MetricError, match=r"none\.py: cannot be read: No such file"):
        read_metrics_file(tmp_path / "none.py")


def test_a_file_that_is_no_python_is_named(written):
    with pytest.raises(MetricError, match=r"mine\.txt: is not a Python file"):
        read_metrics_file(written(TWO, name="mine.txt"))
