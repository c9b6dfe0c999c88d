"""Statistics of runs against cases worked out on paper, and `bench search` as it is typed."""

import json
from dataclasses import replace

import numpy as np
import pytest

from records.trial import Config
from search.strategy_bench.comparison import (
    Quartiles,
    announcements,
    curve,
    hit,
    paired,
    quartiles,
    report,
    success_with_launches,
    summary,
)
from search.strategy_bench.run import Announced, Run, Step


def run(*excesses, seed=0, own_s=0.0, announced=0.0):
    """A run whose leader was so much worse than the best; every third trial failed."""
    steps = tuple(
        Step(config=Config({"n": n}), failed=n % 3 == 2, excess=excess, launch_count=2 * n + 1)
        for n, excess in enumerate(excesses)
    )
    ended = Announced(
        excess=announced, trial_count=2, launch_count=4, failure_count=0, stop_reason="enough"
    )
    return Run(strategy="x", seed=seed, steps=steps, announced=ended, own_s=own_s)


def test_a_hit_is_the_first_trial_within_reach_counted_from_one():
    assert hit(run(None, 0.5, 0.05, 0.3, 0.0), 0.05) == 3
    assert hit(run(0.0), 0.05) == 1
    assert hit(run(None, 0.5, 0.051), 0.05) is None


@pytest.mark.parametrize(
    ("hits", "expected"),
    [
        ([4], (4, 4, 4)),
        ([1, 2, 3, 4], (1.75, 2.5, 3.25)),
        ([3, 1, 2, None], (1.75, 2.5, None)),
        ([None, None, 5, 7], (6.5, None, None)),
        ([None, 5], (None, None, None)),
    ],
)
def test_a_quartile_that_takes_a_miss_into_account_is_a_miss(hits, expected):
    low, median, high = expected
    assert quartiles(hits) == Quartiles(low=low, median=median, high=high)


def test_a_summary_counts_misses_with_all_their_trials():
    runs = [
        run(1.0, 0.5, 0.02, 0.02, own_s=0.3),
        run(1.0, 1.0, 1.0, 0.5, own_s=0.6),
        run(0.01, 0.0, seed=2),
    ]
    found = summary("x", runs, [3, None, 1], 4, (), reach=0.05)
    assert found.hit_count == 2
    assert found.success == {5: 2 / 3, 10: 2 / 3, 15: 2 / 3, 30: 2 / 3}
    assert found.running_time == (3 + 4 + 1) / 2
    assert found.launches == pytest.approx((5 + 7 + 1) / 3)
    assert found.failures == pytest.approx((1 + 1 + 0) / 3)
    assert found.own_s == pytest.approx(0.9 / 10)


def test_success_at_a_mark_counts_hits_up_to_it():
    runs = [run(*[1.0] * (at - 1), 0.0) for at in (5, 6, 15, 31)]
    found = summary("x", runs, [5, 6, 15, 31], 40, (), reach=0.05)
    assert found.success == {5: 0.25, 10: 0.5, 15: 0.75, 30: 0.75}


def test_without_any_hit_there_is_no_running_time():
    assert summary("x", [run(1.0, 1.0)], [None], 2, (), reach=0.05).running_time is None


def test_regret_is_unknown_until_every_run_measured_something_and_then_stays():
    found = curve([run(None, 1.0, 0.2), run(0.8, 0.6)], 4)
    assert found.mean == (None, 0.8, pytest.approx(0.4), pytest.approx(0.4))
    assert found.low == (None, 0.7, pytest.approx(0.3), pytest.approx(0.3))
    assert found.high == (None, 0.9, pytest.approx(0.5), pytest.approx(0.5))
    assert found.median == found.mean


def test_announcements_count_those_within_reach_and_what_never_ran_is_infinitely_far():
    runs = [run(1.0, announced=excess) for excess in (0.0, 0.05, 0.3, None)]
    found = announcements(runs, 0.05)
    assert found.success == 0.5
    assert found.median_regret == pytest.approx(0.175)
    assert announcements([run(1.0, announced=None)], 0.05).median_regret is None


def test_success_with_the_same_launches_stops_where_the_usual_strategy_announced():
    usual = [run(0.0), run(0.0, seed=1)]  # each announced after four launches
    late, early = run(1.0, 1.0, 0.0), run(1.0, 0.0, seed=1)  # leads after five, after three
    assert success_with_launches([late, early], usual, 0.05) == 0.5


def test_pairs_that_all_differ_alike_have_a_narrow_interval_and_a_small_p_value():
    own, others = np.arange(1.0, 11.0), np.arange(1.0, 11.0) + 3
    found = paired("tpe", own, others)
    assert (found.mean, found.low, found.high) == (-3.0, -3.0, -3.0)
    assert found.p_value == pytest.approx(2 / 2**10)  # all of ten on one side, two-sided


def test_pairs_that_do_not_differ_have_no_p_value():
    found = paired("tpe", np.ones(5), np.ones(5))
    assert (found.mean, found.low, found.high, found.p_value) == (0.0, 0.0, 0.0, None)


def test_an_interval_holds_its_mean_and_leaves_out_zero_where_the_difference_is_clear():
    own = np.array([3.0, 4, 5, 3, 4, 6, 5, 4, 3, 5])
    found = paired("tpe", own, own + np.array([6.0, 9, 4, 8, 7, 9, 5, 6, 7, 8]))
    assert found.low < found.mean == -6.9 < found.high < 0


def test_a_report_tells_the_landscape_and_pairs_each_strategy_with_its_rivals(
    ground,
):
    runs = {
        "tpe": [run(1.0, 0.0), run(1.0, 1.0, 0.0)],
        "other": [run(0.0), replace(run(1.0, 1.0, 1.0), seed=1)],
    }
    found = report(ground, runs, reach=0.05, trial_count=3, rivals=("tpe", "coordinate"))
    assert (found.size, found.measurable_count, found.target_count) == (4, 3, 2)
    assert found.random_trials == pytest.approx(5 / 3)
    assert found.seed_excess == pytest.approx(1.0)
    pairs = [(s.strategy, [(p.against, p.mean) for p in s.paired]) for s in found.summaries]
    assert pairs == [("tpe", []), ("other", [("tpe", 0.0)])]  # 1 - 2 and 4 - 3


@pytest.fixture
def bench(cclsearch, document, landscape_file):
    path = landscape_file(document)
    few = ("--strategies", "grid,tpe", "--seeds", "2", "--trials", "4")
    return lambda *more: cclsearch("bench", "search", str(path), *few, *more)


def test_a_table_tells_each_strategy(bench):
    ended = bench()
    assert ended.code == 0
    assert "tiny: 4 configurations, 3 measurable, 2 within reach of 1 s" in ended.out
    assert "random draws need 1.7 on average" in ended.out
    grid = next(line for line in ended.out.splitlines() if line.startswith("  grid "))
    assert grid.split()[:5] == ["grid", "2", "2-2", "2/2", "100/100/100/100"]
    assert "grid against tpe:" in ended.out


def test_json_on_stdout_is_one_document(bench):
    told = json.loads(bench("--json", "--start", "random").out)
    assert (told["seed_count"], told["trial_count"], told["start"]) == (2, 4, "random")
    assert told["strategies"] == ["grid", "tpe"]
    assert told["reports"][0]["summaries"][0]["trials"].keys() == {"low", "median", "high"}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--strategies", "grd"), "strategy 'grd' cannot be benchmarked; did you mean 'grid'?"),
        (("--target", "5 percent"), "--target '5 percent' is not a share"),
        (("--target", "nan"), "--target 'nan' is not a share"),
        (("--start", "middle"), "--start 'middle' is unknown; use seed or random"),
        (("--strategies", "hybrid"), "to ask a model takes a key in ANTHROPIC_API_KEY"),
        (("nowhere.json",), "nowhere.json: cannot be read"),
    ],
)
def test_what_is_asked_wrongly_is_told_in_one_line(bench, more, words):
    ended = bench(*more)
    assert (ended.code, ended.out) == (2, "")
    assert words in ended.err
    assert "Traceback" not in ended.err
