"""`compare` on every kind of side: what it prints, what it refuses, and with which exit code."""

import json

import pytest

from evaluator.timing.timing import LaunchTimes, Task, Timing
from records.codec import to_json
from records.trial import Repeat
from tests.search.compare.conftest import STEADY, STUDY, UNEVEN, csv_text, measuring, row
from tests.support import records as testing
from tests.support.nvbench import benchmark, device, state, times, write_result

USUAL, FASTER = times(1.0, 1.001, 1.002, 1.003), times(0.8, 0.801, 0.802, 0.803)


@pytest.fixture
def recorded(store):
    """A study whose trials 0 and 1 took turns and whose trial 2 failed; gives its folder."""
    turns = [
        Repeat(series=3, round=number, ordinal=ordinal, outcome=testing.measured(cost))
        for number, factor in enumerate(STEADY)
        for ordinal, cost in ((0, 0.5), (1, 0.4 * factor))
    ]
    trials = testing.history(0.5, 0.4, testing.failed())
    return store(**{STUDY: (measuring(), trials, turns)})


@pytest.fixture
def benchmarks(tmp_path):
    """Writes two results of nvbench, of a state that became faster and one that did not."""
    paths = tmp_path / "ref.json", tmp_path / "cmp.json"
    for path, first in zip(paths, (USUAL, FASTER), strict=True):
        states = [state(first, {"T": "I32"}), state(USUAL, {"T": "F32"})]
        write_result(path, [benchmark("copy", states), benchmark("scan", states)])
    return paths


def timing(per_call_s, launches=STEADY, **names):
    """Ten blocks of two calls in every launch."""
    return Timing(
        task=Task(stmt="x + y", **names),
        number_per_run=2,
        launches=tuple(
            LaunchTimes(launch=str(number), raw_times_s=(2 * per_call_s * factor,) * 10)
            for number, factor in enumerate(launches)
        ),
    )


def timings(*each):
    """Timings as a file holds several."""
    return json.dumps([json.loads(to_json(one)) for one in each])


def test_people_are_told_who_is_who_then_the_verdict_then_the_evidence(cclsearch, recorded):
    ended = cclsearch("compare", "trial:0", "best", "--store", recorded)

    a, b = f"trial:{STUDY}:0", f"trial:{STUDY}:1"
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines() == [
        f"A: {a}  n=0",
        f"B: {b}  n=1",
        "verdict: B is 1.25x faster than A (95 % interval 1.23x to 1.26x, 5 interleaved rounds)",
        "why: the whole interval lies on one side of 1",
        "",
        "step_time, lower is better",
        "    value  95 % interval         launches  steps",
        "A  500 ms  500 ms to 500 ms             5     25",
        "B  400 ms  396.7 ms to 404.1 ms         5     25",
        "",
        "sensitivity: 6 rounds detect differences of 1.8 % in 80 % of cases; the ratio of a round "
        "varies by 0.74 %",
        f"next: cclsearch trace diff {a} {b} --store {recorded}",
    ]


@pytest.mark.parametrize(
    ("margin", "words"),
    [
        ("0.1", ("is 1.25x faster", "the whole interval is beyond the margin of 10.0 %")),
        ("0.24", ("looks 1.25x faster", "the difference may be too small to matter")),
        ("0.5", ("no difference in practice", "the whole interval is within the margin of 50.0 %")),
    ],
)
def test_a_difference_has_to_exceed_the_margin_that_is_asked_for(
    margin, words, cclsearch, recorded
):
    shown = cclsearch("compare", "trial:0", "best", "--margin", margin, "--store", recorded).out

    assert [each for each in words if each not in shown] == []


def test_explaining_lists_the_rounds(cclsearch, recorded):
    sides = ("compare", "trial:0", "trial:1", "--store", recorded)

    explained = cclsearch(*sides, "--display", "explain").out

    assert "round             A       B  B over A\n" in explained
    assert "confirm 3 1  500 ms  404 ms     0.808\n" in explained


def test_a_failed_side_has_no_value_but_a_reason(cclsearch, recorded):
    ended = cclsearch("compare", "trial:0", f"trial:{STUDY}:2", "--store", recorded)

    assert ended.code == 0
    assert ended.out.splitlines()[2:] == [
        "verdict: unknown, B failed: it broke",
        f"next: cclsearch trial show {STUDY} 2 --store {recorded}",
    ]


def test_timings_under_the_same_launch_names_are_rounds(cclsearch, sides):
    before, after = timing(1e-6, (1.0,) * 5, env="before"), timing(2e-6, env="after")

    ended = cclsearch("compare", *sides(to_json(before), to_json(after)), "--fail-on", "slow")

    assert ended.code == 3
    assert "verdict: B is 2.00x slower than A" in ended.out
    assert "time of a call of x + y before, lower is better\n" in ended.out


@pytest.mark.parametrize(("task_count", "code"), [(1, 3), (2, 5)])
def test_a_gate_over_timings_is_corrected_for_their_number(cclsearch, sides, task_count, code):
    steady = [timing(1e-6, (1.0,) * 5, label=name) for name in ("x", "y")[:task_count]]
    slower = timing(1.06e-6, UNEVEN, label="x")

    files = sides(timings(*steady), timings(slower, *steady[1:]))

    assert cclsearch("compare", *files, "--fail-on", "slow").code == code


def test_several_timings_are_joined_by_their_tasks(compared):
    small, large, odd = (timing(1e-6, (1.0,), label=name) for name in ("small", "large", "odd"))

    found = compared(timings(small, large), timings(large, odd))

    assert [(each["name"], each["reason"]) for each in found["rows"]] == [
        ("large x + y", "too_few_rounds")
    ]
    assert (found["only_a"], found["only_b"]) == (["small x + y"], ["odd x + y"])


def test_results_of_nvbench_are_compared_state_by_state(cclsearch, benchmarks):
    ended = cclsearch("compare", *benchmarks)

    assert (ended.code, ended.err) == (0, "")
    assert "verdicts: 2 fast, 2 same\n" in ended.out
    assert cclsearch("compare", *reversed(benchmarks), "--fail-on", "slow").code == 3


def test_folders_of_nvbench_results_are_compared_by_name(cclsearch, benchmarks, tmp_path):
    for folder, result in zip(("old", "new"), benchmarks, strict=True):
        (tmp_path / folder).mkdir()
        result.rename(tmp_path / folder / "run.json")

    found = json.loads(cclsearch("compare", tmp_path / "old", tmp_path / "new", "--json").out)

    assert found["counts"]["fast"] == 2


def test_states_are_chosen_by_benchmark_and_axis(cclsearch, benchmarks):
    found = cclsearch("compare", "-b", "scan", "-a", "T=I32", *benchmarks, "--json").out

    rows = [f"{each['benchmark']}/{each['axes']['T']}" for each in json.loads(found)["rows"]]
    assert rows == ["scan/I32"]


def test_other_devices_are_a_caveat(cclsearch, tmp_path):
    results = tmp_path / "ref.json", tmp_path / "cmp.json"
    for path, name in zip(results, ("One", "Other"), strict=True):
        write_result(path, [benchmark("copy", [state(USUAL)])], [device(0, name)])

    ended = cclsearch("compare", *results)

    assert (ended.code, "devices differ in name" in ended.err) == (0, True)


# Sides that cannot be compared, or are none.


@pytest.fixture
def refused(cclsearch, store, tmp_path):
    """Runs compare where one side of each kind lies; gives its error."""
    root = store(**{STUDY: (testing.study(), testing.history(testing.failed()))})
    here = tmp_path / "here"
    for folder in ("both", "empty"):
        (here / folder).mkdir()
    write_result(here / "nvbench.json", [benchmark("copy", [state(times(1.0, 1.1, 1.2, 1.3))])])
    for name, text in {
        "rows.csv": csv_text([row(10.0)]),
        "launch.json": to_json(testing.measured()),
        "odd.json": '{"x": 1}',
        "none.json": "[]",
        "cut.json": '{"benchmarks": [',
        "broken.json": '{"benchmarks": 1}',
        "both/a.csv": csv_text([row(10.0)]),
        "both/a.json": "{}",
    }.items():
        (here / name).write_text(text)

    def run(words):
        ended = cclsearch("compare", *words.split(), "--store", root)
        assert ended.out == ""
        assert "Traceback" not in ended.err
        return ended

    return run


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "compare needs A and B"),
        ("rows.csv", "compare needs A and B"),
        ("rows.csv nowhere", "nowhere: there is no such file or folder; a side is a trial"),
        ("rows.csv trial:9", f"study {STUDY} has no trial 9; it has 1"),
        ("rows.csv trial:x", "'x' names no trial; write trial:3 or trial:STUDY:3"),
        ("rows.csv trial:zzz:0", "no study 'zzz'"),
        ("rows.csv trial:", "names no trial"),
        ("trial:0 trial:0", "A and B are both trial:"),
        (
            "trial:0 rows.csv",
            "is a trial and B, rows.csv, is benchmark CSV; give two sides of the same kind",
        ),
        ("rows.csv nvbench.json", "is benchmark CSV and B, nvbench.json, is nvbench results"),
        ("launch.json nvbench.json", "launch.json: holds no timings or nvbench results"),
        ("odd.json nvbench.json", "odd.json: holds no timings or nvbench results"),
        ("none.json nvbench.json", "none.json: holds no timings"),
        ("cut.json nvbench.json", "cut.json: holds no timings"),
        ("broken.json nvbench.json", "broken.json"),
        ("both rows.csv", "both: holds both CSV and JSON files"),
        ("empty rows.csv", "empty: holds no CSV or JSON file"),
        ("rows.csv rows.csv --margin=-0.1", "--margin -0.1: give 0 or more"),
        ("rows.csv rows.csv --alpha 0.5", "give 0.001 or more and less than 0.5"),
        ("rows.csv rows.csv --alpha nan", "give 0.001 or more and less than 0.5"),
        ("rows.csv rows.csv -b copy", "are only for nvbench files"),
        ("rows.csv rows.csv --preset strict", "are only for nvbench files"),
        ("nvbench.json nvbench.json --margin 0.1", "for nvbench files use --preset"),
        ("nvbench.json nvbench.json -b none", "-b 'none' is in neither file"),
        ("rows.csv rows.csv --preset lax", "--preset"),
        ("rows.csv rows.csv --fail-on fast", "--fail-on"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(refused, words, told):
    ended = refused(words)

    assert ended.code == 2
    assert told in ended.err


def test_a_study_without_a_measured_trial_has_no_best(cclsearch, refused, tmp_path):
    compared = refused("trial:0 best")
    best = cclsearch("best", "--store", tmp_path / "store")

    assert compared.code == best.code == 4
    assert f"study {STUDY} has no measured trial; see `cclsearch show {STUDY}`" in compared.err
    assert "has no measured trial; see `cclsearch show" in best.err
