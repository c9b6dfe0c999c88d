"""Metrics are found by name, asked one by one, and a broken one costs no other its value."""

import sys

import pytest

from evaluator.metrics import registry
from evaluator.metrics.base import Absent, Evidence, Formula, Metric, MetricError
from evaluator.metrics.registry import (
    entries_of_packages,
    measure,
    measure_all,
    metric,
    metric_names,
)

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


# By name.


@pytest.mark.parametrize("name", metric_names())
def test_a_metric_is_found_under_its_own_name(name):
    found = metric(name)
    assert isinstance(found, Metric)
    assert found.name == name


def test_a_misspelt_metric_is_answered_with_the_nearest():
    with pytest.raises(MetricError, match="no metric is called 'step_tme'; did you mean 'step_tim"):
        metric("step_tme")


def test_a_name_like_no_metric_is_answered_with_all():
    with pytest.raises(MetricError, match=r"known are .*communication_fraction, .*step_time, "):
        metric("zzz")


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
    ("line", "message"),
    [
        ("joules = theirs:missing", "cannot be loaded: AttributeError"),
        ("joules = nowhere:joules", "cannot be loaded: ModuleNotFoundError: No module"),
        ("joules = theirs:__doc__", "not a metric named 'joules'"),
        ("joules = evaluator.metrics.throughput:peak_memory", "not a metric named 'joules'"),
    ],
)
def test_a_metric_that_cannot_be_loaded_is_refused(monkeypatch, tmp_path, line, message):
    install(monkeypatch, tmp_path, line)
    with pytest.raises(MetricError, match=message):
        metric("joules")


def test_a_metric_that_declares_nonsense_is_refused(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, "joules = theirs:joules", declared='"up"')
    with pytest.raises(MetricError, match=r"\(theirs:joules\) calls 'up' better; say lower or hi"):
        metric("joules")


# Asked.


def test_a_metric_without_evidence_is_absent_with_a_reason():
    assert measure(metric("step_time"), Evidence()) == Absent("no step was timed")
    assert measure_all(Evidence()).absent["step_time"] == "no step was timed"


def test_every_metric_has_a_value_or_a_reason():
    measures = measure_all(SEEN)
    names = [value.name for value in measures.values]
    assert sorted([*names, *measures.absent]) == list(metric_names())
    assert all(measures.absent.values())


def test_whole_numbers_become_values():
    value = measure(formula(lambda seen: seen.rank_count), SEEN)
    assert (value.value, type(value.value)) == (2.0, float)


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


def test_a_package_that_cannot_be_imported_costs_no_other_its_value(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, "joules = nowhere:joules")
    measures = measure_all(SEEN)
    assert "step_time" in {value.name for value in measures.values}
    assert "cannot be loaded" in measures.absent["joules"]


# Handed in.


def test_a_metric_handed_in_is_asked_too():
    added = (formula(lambda _: 5.0),)
    assert metric("joules", added) is added[0]
    assert "joules" in metric_names(added)
    assert {value.name: value.value for value in measure_all(SEEN, added).values}["joules"] == 5.0


def test_a_metric_handed_in_under_a_taken_name_is_refused():
    with pytest.raises(MetricError, match="'step_time' exists already; give yours another name"):
        metric_names((formula(lambda _: 5.0, name="step_time"),))
