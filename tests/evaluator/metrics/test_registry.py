"""Metrics by name, of packages and files; every one keeps to the contract or is caught."""

import sys

import pytest

from evaluator.metrics import registry
from evaluator.metrics.base import Absent, Evidence, Formula, MetricError
from evaluator.metrics.registry import (
    entries_of_packages,
    measure,
    measure_all,
    metric,
    metric_names,
    read_metrics_file,
)
from evaluator.metrics.testing import MetricConformance

SEEN = Evidence(step_times_s=(0.2, 0.1, 0.4), rank_count=2)


def formula(answer, **changed):
    given = {
        "name": "joules",
        "label": "Energy",
        "unit": "J",
        "better": "lower",
        "sources": frozenset({"samples"}),
        "description": "Theirs.",
        "formula": answer,
    }
    return Formula(**(given | changed))


def install(monkeypatch, folder, line, value="evidence.rank_count * 1.5", declared='"lower"'):
    """Make an installed package that declares a metric, as pip would leave it."""
    (folder / "theirs.py").write_text(
        "from evaluator.metrics.base import Formula\n"
        'joules = Formula(name="joules", label="Energy", unit="J", version=3,\n'
        f"    better={declared}, sources=frozenset({{'samples'}}), description='Theirs.',\n"
        f"    formula=lambda evidence: {value})\n"
    )
    package = folder / "theirs-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[cclsearch.metrics]\n{line}")
    monkeypatch.setattr(registry, "entries_of_packages", entries_of_packages.__wrapped__)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "theirs", raising=False)


class Unspeakable(Exception):
    def __str__(self):
        raise TypeError


def fails_without_words(_evidence):
    raise Unspeakable


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("step_tme", "no metric is called 'step_tme'; did you mean 'step_tim"),
        ("zzz", "known are .*communication_fraction, .*step_time, "),
    ],
)
def test_a_misspelt_metric_is_answered_with_the_nearest_or_all(name, words):
    with pytest.raises(MetricError, match=words):
        metric(name)


def test_an_installed_package_adds_a_metric(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, "joules = theirs:joules")
    assert "joules" in metric_names()
    assert measure(metric("joules"), SEEN).value == 3
    assert metric("joules").version == 3


def test_two_metrics_of_one_name_are_refused(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, "step_time = theirs:joules")
    with pytest.raises(MetricError, match=r"throughput:step_time and by theirs:joules"):
        metric_names()


@pytest.mark.parametrize(
    ("line", "declared", "message"),
    [
        ("joules = theirs:missing", '"lower"', "cannot be loaded: AttributeError"),
        ("joules = nowhere:joules", '"lower"', "cannot be loaded: ModuleNotFoundError: No module"),
        ("joules = theirs:__doc__", '"lower"', "not a metric named 'joules'"),
        (
            "joules = evaluator.metrics.throughput:peak_memory",
            '"lower"',
            "not a metric named 'joules'",
        ),
        (
            "joules = theirs:joules",
            '"up"',
            r"\(theirs:joules\) calls 'up' better; say lower or hi",
        ),
    ],
)
def test_a_metric_that_cannot_be_loaded_is_refused(monkeypatch, tmp_path, line, declared, message):
    install(monkeypatch, tmp_path, line, declared=declared)
    with pytest.raises(MetricError, match=message):
        metric("joules")
    measures = measure_all(SEEN)
    assert "step_time" in {value.name for value in measures.values}
    assert "joules" in measures.absent["joules"]


def test_every_metric_has_a_value_or_a_reason():
    measures = measure_all(SEEN)
    names = [value.name for value in measures.values]
    assert sorted([*names, *measures.absent]) == list(metric_names())
    assert all(measures.absent.values())
    assert measure_all(Evidence()).absent["step_time"] == "no step was timed"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda _: float("nan"), "'joules' gave nan, not a finite number"),
        (lambda _: float("inf"), "'joules' gave inf, not a finite number"),
        (lambda _: 10**400, "'joules' failed: OverflowError: int too large"),
        (lambda _: None, "'joules' gave None, not a finite number"),
        (lambda _: "3", "'joules' gave '3', not a finite number"),
        (lambda _: True, "'joules' gave True, not a finite number"),
        (lambda _: 1 / 0, "'joules' failed: ZeroDivisionError: division by zero"),
        (lambda seen: seen.watts, "'joules' failed: AttributeError: .*watts"),
        (lambda _: [][1], "'joules' failed: IndexError: list index"),
        (lambda _: exec("raise KeyError"), "'joules' failed: KeyError$"),
        (fails_without_words, r"'joules' failed: .*Unspeakable: <exception str\(\) failed>"),
        (lambda _: exec("raise ValueError('one\\ntwo')"), "failed: ValueError: one two$"),
        (lambda _: exec("raise ValueError('\\ud800')"), r"failed: ValueError: \\ud800$"),
    ],
)
def test_a_metric_that_gives_no_number_is_named_with_what_it_gave(answer, message):
    with pytest.raises(MetricError, match=message):
        measure(formula(answer), SEEN)


def test_a_broken_metric_costs_no_other_its_value(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, "joules = theirs:joules", value="1 / 0")
    measures = measure_all(SEEN)
    assert {"step_time", "rank_count"} <= {value.name for value in measures.values}
    assert measures.absent["joules"] == (
        "metric 'joules' failed: ZeroDivisionError: division by zero"
    )


def test_a_metric_handed_in_is_asked_too():
    added = (formula(lambda _: 5.0),)
    assert metric("joules", added) is added[0]
    assert "joules" in metric_names(added)
    assert {value.name: value.value for value in measure_all(SEEN, added).values}["joules"] == 5.0


def test_a_metric_handed_in_under_a_taken_name_is_refused():
    with pytest.raises(MetricError, match="'step_time' exists already; give yours another name"):
        metric_names((formula(lambda _: 5.0, name="step_time"),))


CHECKS = {
    name: check for name, check in vars(MetricConformance).items() if name.startswith("test_")
}


@pytest.mark.parametrize("name", metric_names())
def test_every_built_in_metric_conforms(name):
    checked = type("Checked", (MetricConformance,), {"metric": metric(name)})()

    for check in CHECKS.values():
        check(checked)


class TestAPlugInOfSomebodyElse(MetricConformance):
    metric = formula(
        lambda seen: (
            700.0 * seen.rank_count * sum(seen.step_times_s)
            if seen.rank_count and seen.step_times_s
            else Absent("no step was timed")
        ),
        description="At 700 W per rank.",
    )


FINITE = "test_it_gives_a_finite_value_or_a_reason_for_whatever_it_is_shown"


def spoils(evidence):
    if evidence.traces is None:
        return Absent("nothing was profiled")
    evidence.traces.ranks[0].spans.flops[:] = 0
    return 1.0


def counts(evidence):
    counts.asked += 1
    return float(counts.asked) if evidence.rank_count else Absent("no ranks")


counts.asked = 0


@pytest.mark.parametrize(
    ("found", "check_name"),
    [
        (formula(lambda _: 1.0, unit=""), "test_it_says_what_it_is"),
        (formula(lambda _: 1.0, description="no sentence"), "test_its_texts_are_sentences"),
        (formula(lambda seen: seen.traces.ranks), FINITE),
        (formula(lambda _: Absent("")), FINITE),
        (formula(lambda _: 0.0), "test_it_has_no_value_without_evidence"),
        (formula(counts), "test_it_gives_the_same_answer_twice"),
        (formula(spoils), "test_it_leaves_the_evidence_as_it_was"),
    ],
)
def test_a_metric_that_breaks_the_contract_is_caught(found, check_name):
    checked = type("Checked", (MetricConformance,), {"metric": found})()
    with pytest.raises((AssertionError, MetricError)):
        CHECKS[check_name](checked)


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


def test_a_file_that_is_not_there_or_no_python_is_named(written, tmp_path):
    with pytest.raises(MetricError, match=r"none\.py: cannot be read: No such file"):
        read_metrics_file(tmp_path / "none.py")
    with pytest.raises(MetricError, match=r"mine\.txt: is not a Python file"):
        read_metrics_file(written(TWO, name="mine.txt"))
