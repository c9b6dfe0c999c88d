"""The benchmark of decisions, on launches whose truth is known."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "decision_quality.py"
SLOWER_BY = {"A": 0, "A2": 0, "B3": 3, "B10": 10}
ROUND_COUNT = 24


def line(number, position, which, noise):
    launch_s = 0.1 * (1 + SLOWER_BY[which] / 100) * (1 + 0.05 * number)
    steps = launch_s * np.exp(noise.normal(0, 0.004) + noise.normal(0, 0.01, 20))
    return {
        "kind": "relaunch",
        "round": number,
        "position": position,
        "which": which,
        "status": "measured",
        "step_times_s": steps.tolist(),
        "wall_s": 3.0,
        "conditions": None,
    }


@pytest.fixture(scope="module")
def quality(tmp_path_factory):
    noise = np.random.default_rng(5)
    rows = [
        line(number, position, which, noise)
        for number in range(ROUND_COUNT)
        for position, which in enumerate(noise.permutation(list(SLOWER_BY)).tolist())
    ]
    rows[-1] = {**rows[-1], "status": "failed", "message": "crash: it fell over"}
    path = tmp_path_factory.mktemp("recording") / "launches.jsonl"
    about = {"machine": "imagined"}
    path.write_text("".join(json.dumps(row) + "\n" for row in (about, *rows)), encoding="utf-8")
    asked = [sys.executable, BENCHMARK, "stored", "--json", "--file", path]
    result = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)["judged"][-1]


def test_known_slowdowns_are_found_without_the_round_of_a_failed_launch(quality):
    assert (quality["round_count"], quality["broken_round_count"]) == (ROUND_COUNT - 1, 1)
    for job, ratio in (("A2", 1.0), ("B3", 1.03), ("B10", 1.10)):
        assert quality["shifts"][job]["ratio"] == pytest.approx(ratio, abs=0.005)


def test_paired_rounds_see_a_slowdown_through_drift_and_claim_none_where_there_is_none(quality):
    jobs = quality["outcomes"]["paired, as in the final"]
    assert jobs["A2"]["claimed"]["share"] == 0
    assert jobs["B3"]["verdicts"]["slow"]["share"] == 1
    assert jobs["B10"]["verdicts"]["slow"]["share"] == 1
    assert jobs["B10"]["launches_a_side"] == 4


def test_the_lower_mean_always_claims_and_its_interval_counts_series_that_share_no_round(quality):
    always = quality["outcomes"]["lower mean of 1"]["A2"]
    ten = quality["outcomes"]["lower mean of 10"]["B10"]
    assert (always["claimed"]["share"], always["disjoint_count"]) == (1, quality["round_count"])
    assert (ten["series_count"], ten["disjoint_count"]) == (14, 2)
    assert (ten["claimed"]["low"], ten["claimed"]["high"]) == pytest.approx((0.025**0.5, 1))
