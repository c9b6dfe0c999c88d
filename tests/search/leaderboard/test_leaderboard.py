"""`cclsearch leaderboard`: the best of studies side by side, ranked as far as it can be told."""

import csv
import io
import json
import re
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.timing.decision import Spread
from records.codec import to_json
from records.store.rows import ComputedMetric, Labels
from records.store.store import Store
from search.leaderboard.ranking import leaderboard
from search.leaderboard.submission import Reading, Submission, Work
from search.loop.study_result import StudyResult
from tests.support import records as testing

HOSTILE = "<script>alert(1)</script>=cmd"
WORK = Work(
    model="m",
    phase="training",
    batch=1,
    sequence_length=1,
    output_length=None,
    precision="bf16",
)


def finding(winner, centre, low=None, high=None, count=1, ties=()):
    return StudyResult(
        stop_reason="",
        winner=winner,
        unit="s",
        result=Spread(centre=centre, low=low, high=high, launch_count=count),
        against_seed=None,
        ties=ties,
        unreliable=(),
    )


@pytest.fixture
def root(tmp_path):
    """Three studies of the same work and one of other work; `slow` and `equal` overlap."""
    with closing(Store(tmp_path / "board")) as store:
        for name, best_s, found in [
            ("fast", 0.2, finding(1, 0.2, 0.19, 0.21, 4)),
            ("slow", 0.4, finding(1, 0.4, 0.35, 0.45, 4, ties=(0,))),
            ("equal", 0.42, finding(1, 0.42, 0.38, 0.47, 4)),
        ]:
            trials = testing.history(0.5, best_s).trials
            store.add_study(name, testing.study(), "1", trials, summary=to_json(found))
        other = testing.study()
        other = replace(other, name=HOSTILE, workload=replace(other.workload, global_batch=32))
        store.add_study("other", other, "1", testing.history(0.1).trials)
        store.add_study("nothing", testing.study(), "1", testing.history(testing.failed()).trials)
    return store.root


@pytest.fixture
def told(cclsearch, root):
    """Runs the command on the studies; gives what it says for programs."""

    def run(*arguments):
        ended = cclsearch("leaderboard", *arguments, "--store", root, "--json")
        assert (ended.code, ended.err) == (0, "")
        return json.loads(ended.out)

    return run


def test_only_what_did_the_same_work_is_ranked_as_far_as_it_can_be_told_apart(told):
    board = told()

    assert [
        [(each["name"], each["rank"]) for each in g["submissions"]] for g in board["groups"]
    ] == [
        [("fast", 1), ("slow", 2), ("equal", 2)],
        [("other", None)],  # one launch shows nothing
    ]
    assert board["notes"] == [
        "left out 1 study without a measured trial within its limits: nothing"
    ]


def test_an_archived_study_is_ranked_only_where_it_is_named(told, root):
    with closing(Store(root)) as store:
        store.label("fast", Labels(archived=True))

    def listed(*names):
        return [each["name"] for g in told(*names)["groups"] for each in g["submissions"]]

    assert "fast" not in listed()
    assert "fast" in listed("fast", "slow")


def test_a_line_says_how_sure_it_is(told, cclsearch, root):
    slow = told("slow")["groups"][0]["submissions"][0]
    out = cclsearch("leaderboard", "slow", "--store", root).out

    step_time = slow["metrics"]["step_time"]
    assert (slow["launches"], slow["ties"]) == (4, ["trial 0"])
    assert (step_time["low"], step_time["high"]) == (0.35, 0.45)
    assert "0.35 to 0.45" in out
    assert "ranks: a rank is one more than the number of submissions shown to be better" in out


def test_metrics_computed_afterwards_have_columns(told, root):
    late = ComputedMetric(
        name="late",
        version=1,
        unit="x",
        better="higher",
        value=7.0,
        absent=None,
        definition="d",
        computed_at=testing.END,
    )
    with closing(Store(root)) as store:
        store.record_metrics("fast", {1: (late,)})

    board = told("--by", "late", "--metric", "step_time")

    assert {column["name"] for column in board["columns"]} == {"step_time", "late"}
    group = board["groups"][0]
    assert (group["ranked_by"], group["submissions"][0]["name"]) == ("late", "fast")
    assert [each["rank"] for each in group["submissions"]] == [None, None, None]


def test_a_weakness_of_the_samples_is_a_mark_with_a_legend(cclsearch, root):
    measured = testing.measured(0.1)
    unverified = replace(measured.measurement, tokens_verified=False)
    trials = testing.history(replace(measured, measurement=unverified)).trials
    with closing(Store(root)) as store:
        store.add_study("weak", testing.study(), "1", trials)

    board = json.loads(cclsearch("leaderboard", "weak", "--store", root, "--json").out)
    text = cclsearch("leaderboard", "weak", "--store", root).out

    assert [mark["name"] for mark in board["groups"][0]["submissions"][0]["marks"]] == ["caveat"]
    assert re.search(r"^a: caveat: 1, such as weak: ", text, re.M)


def test_files_have_a_row_each_and_nothing_that_a_spreadsheet_or_browser_runs(
    cclsearch, root, tmp_path
):
    table = cclsearch("leaderboard", "--format", "csv", "--store", root).out
    page = cclsearch("leaderboard", "-o", tmp_path / "board.html", "--store", root)

    rows = list(csv.DictReader(io.StringIO(table)))
    assert [row["submission"] for row in rows] == ["fast", "slow", "equal", "other"]
    assert [row["step_time [s]"] for row in rows] == ["0.2", "0.4", "0.42", "0.1"]
    assert all(row["settings"].startswith("'--n=") for row in rows)
    assert page.out == f"{tmp_path / 'board.html'}: 4 submissions in 2 groups\n"
    text = (tmp_path / "board.html").read_text(encoding="utf-8")
    assert HOSTILE not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--by", "step_tim"), "did you mean 'step_time'?"),
        (("--metric", "nope"), "no submission has metric 'nope'"),
        (("--workload", "gpt"), "no submission of workload 'gpt'"),
        (("nosuch",), "no study 'nosuch'"),
        (("-o", "board.txt"), "use .csv, .json or .html"),
    ],
)
def test_what_cannot_be_ranked_ends_in_one_line(cclsearch, root, arguments, words):
    ended = cclsearch("leaderboard", *arguments, "--store", root)

    assert (ended.code, ended.out) == (2, "")
    assert words in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("Qwen3-4B", "qwen-3-4b", True),
        ("deepseek_v3_16b", "deepseek-v3-16b", True),
        ("llama-3-18b", "llama-31-8b", False),
        ("gpt-2", "gpt-20", False),
    ],
)
def test_a_model_is_the_same_however_it_is_spelled_but_for_its_numbers(one, other, is_same):
    assert (replace(WORK, model=one).key == replace(WORK, model=other).key) is is_same


@given(
    st.lists(
        st.tuples(st.floats(0.1, 10), st.none() | st.floats(0, 1)),
        min_size=1,
        max_size=12,
    )
)
def test_a_rank_is_one_more_than_how_many_are_shown_to_be_better(told):
    submissions = [
        Submission(
            name=str(place),
            source="",
            work=WORK,
            machine="",
            rank_count=None,
            software="",
            settings="",
            readings={
                "step_time": Reading(
                    unit="s",
                    better="lower",
                    value=value,
                    low=None if half is None else value - half,
                    high=None if half is None else value + half,
                )
            },
        )
        for place, (value, half) in enumerate(told)
    ]

    (group,) = leaderboard(submissions, None, ()).groups

    found = [(each.rank, each.submission.readings["step_time"]) for each in group.ranked]
    assert all((rank is not None) == each.has_interval for rank, each in found)
    sure = [(rank, each.ends) for rank, each in found if rank is not None]
    for rank, (low, _) in sure:
        assert rank == 1 + sum(high < low for _, (_, high) in sure)
    assert sorted(rank for rank, _ in sure) == [rank for rank, _ in sure]


def test_launches_that_nothing_tells_apart_have_a_dash_for_a_rank(cclsearch, tmp_path):
    with closing(Store(tmp_path / "board")) as store:
        for name, best_s in (("a", 8.793), ("b", 8.811), ("c", 8.817)):
            trials = testing.history(9.0, best_s).trials
            store.add_study(name, testing.study(), "1", trials)

    out = cclsearch("leaderboard", "--store", tmp_path / "board").out

    lines = [line.split() for line in out.splitlines() if line.startswith(("–", "1", "2", "3"))]
    assert [line[:2] for line in lines] == [["–", "a"], ["–", "b"], ["–", "c"]]
