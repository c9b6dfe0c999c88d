"""A study on record is scored by another objective without a launch, and says that it was."""

import json
from contextlib import closing
from random import Random

import pytest

from records.store.store import Store
from records.study import Budget
from records.trial import FailureKind
from tests.support import records as testing
from tests.support.evaluator import Fails, Takes
from tests.support.search import relaunch

STUDY_ID = "20260101-000000-aaaa"

TABLE = {
    0: Takes(step_time_s=0.50, peak_memory_bytes=400 << 10),
    1: Takes(step_time_s=0.20, peak_memory_bytes=900 << 10),
    2: Takes(step_time_s=0.40, peak_memory_bytes=100 << 10),
    3: Fails(kind=FailureKind.CRASH),
}


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A store with a trial for each row of the table; 1 was launched four times more."""
    study = testing.study()
    outcomes = [ending.outcome(study, 0, Random(0)) for ending in TABLE.values()]
    again = [relaunch(1, outcomes[1], n, series=4) for n in range(4)]
    with closing(Store(tmp_path_factory.mktemp("scored"))) as store:
        store.add_study(STUDY_ID, study, "test", testing.history(*outcomes).trials, again)
        store.update(STUDY_ID, status="finished")
    return store


def told(cclsearch, made, *arguments):
    ended = cclsearch(*arguments, "--store", made.root)
    assert ended.code == 0, ended.err
    return ended


def test_the_best_is_that_of_the_objective_that_is_asked(cclsearch, searched):
    assert told(cclsearch, searched, "best", "--format", "args").out == "--n=1\n"
    ended = told(cclsearch, searched, "best", "--format", "args", "--objective", "memory_peak")
    assert ended.out == "--n=2\n"
    assert "rescored by memory_peak; nothing was launched\n" in ended.err
    ratio = "step_time@seed/step_time"
    assert told(cclsearch, searched, "best", "--format", "args", "--objective", ratio).out == (
        "--n=1\n"
    )
    slowest = ("--objective", "step_time", "--maximize")
    assert told(cclsearch, searched, "best", "--format", "args", *slowest).out == "--n=0\n"


def test_limits_can_be_asked_of_what_is_on_record(cclsearch, searched):
    limit = ("--limit", "peak_memory < 500 KiB")
    assert told(cclsearch, searched, "best", "--format", "args", *limit).out == "--n=2\n"
    shown = told(cclsearch, searched, "show", *limit).out
    assert "peak_memory < 500 KiB is broken: peak_memory is 900 KiB" in shown
    none = cclsearch("best", "--limit", "step_time < 1 ms", "--store", searched.root)
    assert none.code == 4
    assert "has no trial that satisfies all limits; see `cclsearch show" in none.err


def test_showing_it_by_another_objective_counts_repeated_launches(cclsearch, searched):
    out = told(cclsearch, searched, "show", "--objective", "1/step_time").out.splitlines()
    assert "rescored: by 1/step_time; nothing was launched" in out
    (best,) = [line for line in out if line.startswith("best: ")]
    assert best.endswith("--n=1")
    (value,) = [line for line in out if line.startswith("1/step_time: ")]
    assert value.startswith("1/step_time: 5, median of 4 launches")
    assert not any(line.startswith(("stopped: ", "next: cclsearch resume")) for line in out)
    assert any("best" in line and "--objective 1/step_time" in line for line in out)


def test_a_trial_that_lacks_a_metric_is_a_failure_that_names_it(cclsearch, searched):
    facts = json.loads(told(cclsearch, searched, "show", "--json", "--objective", "mfu").out)
    assert facts["scored_again"] is True
    assert facts["best"] is None
    assert {trial["failure_kind"] for trial in facts["trials"]} == {"metric_error", "crash"}
    assert "the objective needs mfu" in facts["trials"][0]["message"]
    assert json.loads(told(cclsearch, searched, "show", "--json").out)["scored_again"] is False


def test_json_of_the_best_says_that_it_was_scored_again(cclsearch, searched):
    facts = json.loads(told(cclsearch, searched, "best", "--json", "--objective", "gpus").out)
    assert (facts["scored_again"], facts["unit"], facts["score"]) == (True, "ranks", 1.0)


def test_the_front_of_what_is_on_record_is_listed_and_drawn(cclsearch, searched, tmp_path):
    both = ("--front", "--objective", "step_time", "--objective", "peak_memory")
    plot = tmp_path / "front.svg"
    out = told(cclsearch, searched, "show", *both, "--plot", plot).out.splitlines()
    assert out[0] == (
        "front: 2 of 3 measured trials, over step_time and peak_memory; "
        "rescored, nothing was launched"
    )
    assert [line.split(": ")[-1] for line in out[1:]] == ["--n=1", "--n=2"]
    assert "step_time 0.2 s" in out[1]
    assert "step_time (s), lower is better" in plot.read_text()
    members = json.loads(told(cclsearch, searched, "show", *both, "--json").out)
    assert [len(member["reached"]) for member in members] == [2, 2]
    assert members[0]["reached"][0]["value"]["launch_count"] == 4


def test_a_study_with_several_objectives_tells_its_front_everywhere(cclsearch, tabular):
    made = tabular(TABLE, more=("peak_memory",), budget=Budget(trials=4, patience=9))
    made.run()
    shown = told(cclsearch, made, "show").out
    assert shown.count("\nfront: trial ") == 2
    assert "  on the front" in shown
    best = told(cclsearch, made, "best", "--format", "args")
    assert best.out == "--n=1\n"
    assert "also on the Pareto front: " in best.err
    listed = told(cclsearch, made, "show", "--front").out
    assert listed.startswith("front: 2 of 3 measured trials, over step_time and peak_memory\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("show", "--front"), "has one objective, so there is no front; give several"),
        (("show", "--front", "--plot", "x.png"), "x.png: charts are .svg or .html files"),
        (("show", "--plot", "x.svg"), "--plot draws the front; add --front"),
        (("best", "--objective", "nope"), "no metric is called 'nope'"),
        (("best", "--objective", "step_time*mfu"), "say which way is better"),
        (("show", "--limit", "mfu"), "write it as in 'peak_memory < 30 GiB'"),
        (
            ("show", "--front", "--plot", "x.svg", "--objective=mfu", "--objective=step_time"),
            "no trial is on the front; nothing to draw",
        ),
    ],
)
def test_what_cannot_be_asked_ends_in_one_line(cclsearch, searched, arguments, words):
    ended = cclsearch(*arguments, "--store", searched.root)
    assert ended.code == 2
    assert words in ended.err
    assert ended.err.count("\n") == 1
