"""Metrics computed after their trials: the newest version counts, and every version stays."""

import math
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.codec import from_json, to_json
from records.errors import CodecError
from records.store.journal import MetricsComputed
from records.store.rows import ComputedMetric, newest, with_newest
from records.store.store import Store
from records.trial import MetricValue
from tests.support.records import END, history, measured, study


def computed(version, value=None, absent=None, name="step_time"):
    return ComputedMetric(
        name=name,
        version=version,
        unit="s",
        better="lower",
        value=value,
        absent=absent,
        definition=None,
        computed_at=END,
    )


VERSIONS = st.lists(
    st.tuples(st.integers(0, 5), st.none() | st.floats(0.1, 9.0)),
    max_size=5,
    unique_by=lambda v: v[0],
)


@given(VERSIONS, st.integers(0, 5))
def test_the_newest_version_counts_whatever_it_says(told, measured_version):
    first = MetricValue(name="x", value=1.0, unit="s", better="lower", version=measured_version)
    later = [
        computed(version, value, None if value is not None else "gone", name="x")
        for version, value in told
    ]

    values = newest([first], later)

    versions = {each.version: each.value for each in later}
    last = max([measured_version, *versions])
    wanted = versions.get(last, 1.0)
    assert [value.value for value in values] == ([] if wanted is None else [wanted])


def test_an_outcome_tells_why_a_newer_version_has_no_value():
    outcome = with_newest(measured(0.5), [computed(2, absent="the traces tell nothing")])

    assert outcome.metrics == ()
    assert outcome.absent == {"step_time": "the traces tell nothing"}


def test_the_table_has_every_version_once_and_the_view_the_newest(tmp_path):
    with closing(Store(tmp_path)) as store:
        store.add_study("one", study(), "1", history(0.5, 0.2).trials)
        store.record_metrics("one", {0: (computed(2, 0.75),), 1: (computed(0, 9.0),)})
        store.record_metrics("one", {0: (computed(3, 0.75),)})
        store.record_metrics("one", {0: (computed(3, 0.25),)})

        assert [each.version for each in store.computed_metrics("one", 0)[0]] == [2, 3]
        values = store.metric_values("one")
        assert {n: [v.value for v in found] for n, found in values.items()} == {0: [0.25], 1: [0.2]}
        rows = store._db.query("select ordinal, value from newest_metrics order by ordinal")
        assert [tuple(row.values()) for row in rows] == [(0, 0.25), (1, 0.2)]


@pytest.mark.parametrize(
    ("value", "absent"), [(None, None), (1.0, "why"), (math.nan, None), (math.inf, None)]
)
def test_a_value_is_a_finite_number_or_there_is_a_reason(value, absent):
    with pytest.raises(ValueError, match="metric step_time: "):
        computed(1, value, absent)
    text = to_json(MetricsComputed(metrics={0: (computed(1, 0.5),)}))
    with pytest.raises(CodecError):
        from_json(MetricsComputed, text.replace("0.5", "NaN"))
