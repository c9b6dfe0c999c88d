"""`cclsearch.trace`: tables with the documented columns, one type each, that agree."""

from pathlib import Path

import pandas as pd
import pytest

import cclsearch
from evaluator.metrics.registry import metric_names
from search.traces.tables import COLUMNS

TRACES = Path(__file__).parents[2] / "data" / "traces"


@pytest.fixture(scope="module")
def synthetic():
    return cclsearch.trace(TRACES / "synth_fsdp_4rank_straggler2", use_cache=False)


@pytest.fixture(scope="module")
def gloo():
    return cclsearch.trace(TRACES / "gloo_ddp_2rank", use_cache=False)


@pytest.mark.parametrize("table", COLUMNS)
def test_a_table_has_the_documented_columns_each_of_one_type_and_no_sentinel(
    synthetic, gloo, table
):
    frame = getattr(synthetic, table)()
    numeric = [getattr(each, table)().select_dtypes("number") for each in (synthetic, gloo)]

    assert list(frame.columns) == list(COLUMNS[table])
    assert len(frame) > 0 or len(getattr(gloo, table)()) > 0  # of no module, say
    assert dict(numeric[0].dtypes) == dict(numeric[1].dtypes)
    assert not any((each == -1).any(axis=None) for each in numeric)


def test_steps_and_ranks_agree_with_their_mean(synthetic):
    steps, breakdown = synthetic.steps(), synthetic.breakdown()

    by_rank = steps.groupby("rank")["compute_s"].mean()
    told = breakdown.dropna(subset="rank").set_index("rank")["compute_s"]
    pd.testing.assert_series_equal(by_rank, told, check_names=False)
    assert breakdown.iloc[-1]["compute_s"] == pytest.approx(steps["compute_s"].mean())


def test_calls_belong_to_the_collectives_that_they_name(synthetic):
    calls, collectives = synthetic.calls(), synthetic.collectives()

    longest = calls.groupby("instance")["duration_s"].agg(["min", "max", "count"])
    assert list(longest["min"]) == list(collectives["time_s"])
    assert list(longest["max"]) == list(collectives["longest_s"])
    assert list(longest["count"]) == list(collectives["shown_count"])


def test_a_call_that_is_matched_to_none_says_why(gloo):
    calls = gloo.calls()

    assert (calls["instance"].isna() == calls["unmatched"].notna()).all()


def test_every_metric_has_a_value_or_a_reason(synthetic):
    metrics = synthetic.metrics()

    assert list(metrics["name"]) == list(metric_names())
    assert (metrics["value"].isna() == metrics["absent"].notna()).all()


def test_the_traces_of_a_trial_are_read_from_its_store(traced_store, synthetic):
    trace = cclsearch.trace("trial:0", store=traced_store())

    assert any("truth.json" in caveat for caveat in synthetic.caveats)
    assert repr(trace) == "Trace('trial 0 of study 20260101-000000-aaaa', 2 ranks)"
    assert trace.metrics().set_index("name").loc["step_time", "value"] == 0.5
