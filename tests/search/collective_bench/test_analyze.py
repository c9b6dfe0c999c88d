"""`bench analyze`: what it says, what it writes, and how it ends."""

import json
import math
import random

import pytest


@pytest.fixture
def analyze(cclsearch, made):
    """Analyses the folders of these rows into `out`; gives how the command ended."""

    def run(sides, *flags):
        folders = [f"--dir={label}:{made.folder(label, rows)}" for label, rows in sides.items()]
        return cclsearch("bench", "analyze", *folders, "--outdir", made.root / "out", *flags)

    return run


def test_a_comparison_lists_what_differs_the_worst_first(analyze, made):
    sides = {
        label: [
            row
            for size, factor in ((1024, 1.0), (2048, 0.8), (4096, 1.2))
            for row in made.rounds(
                10.0 * (factor if label == "new" else 1.0), **{"SendMsgSize(B)": size}
            )
        ]
        for label in ("old", "new")
    }

    ended = analyze(sides, "--baseline", "old")

    assert (ended.code, ended.err) == (0, "")
    old, _, counts, about, heading, slow, fast, written = ended.out.splitlines()
    assert old == f"old: 3 points in {made.root / 'old'}"
    assert counts == "new against old: 1 regression, 1 improvement, 1 neutral"
    assert about == "float32, 4 ranks, sync, cpu"
    assert heading.split()[-2:] == ["interval", "verdict"]
    assert (slow.split()[:2], slow.split()[-1]) == (["all_reduce", "4KB"], "regression")
    assert (fast.split()[:2], fast.split()[-1]) == (["all_reduce", "2KB"], "improvement")
    assert written == f"written: {made.root / 'out'}"


@pytest.mark.parametrize(
    ("latency", "flags", "code"),
    [
        (12.0, "--fail-on-regression", 3),
        (12.0, "", 0),
        (8.0, "--fail-on-regression", 0),
        (12.0, "--fail-on-regression --threshold 25", 0),
    ],
)
def test_the_exit_code_is_3_only_for_a_regression_that_was_to_fail(
    analyze, made, latency, flags, code
):
    sides = {"old": made.rounds(10.0), "new": made.rounds(latency)}

    ended = analyze(sides, "--baseline", "old", "--json", *flags.split())

    assert ended.code == code
    assert json.loads(ended.out)["exit"] == code
    assert json.loads((made.root / "out" / "verdict.json").read_text())["exit"] == code


def test_one_launch_a_side_does_not_pass_the_gate(analyze, made):
    sides = {"old": [made.row(10.0)], "new": [made.row(48.8)]}
    flags = ("--baseline", "old", "--fail-on-regression")

    careful, allowed = analyze(sides, *flags), analyze(sides, *flags, "--allow-undecided")

    assert (careful.code, allowed.code) == (5, 0)
    assert careful.err.startswith("undecided: 1 point may hide a regression")
    assert (
        "caveat: 1 of 1 points of new were measured too seldom to decide; measure it and the "
        "baseline in turns, 4 rounds or more" in careful.out
    )


UNEVEN = (1.0, 1.04, 0.97, 1.03, 0.98, 1.0)


@pytest.mark.parametrize(
    ("latency", "factors", "code", "said"),
    [
        (10.6, UNEVEN, 0, "new: points that pass may be up to 9.08 % slower"),
        (10.7, UNEVEN, 5, "1 point may hide a regression of up to 10.1 %, so"),
        (10.0, (0.7, 1.8, 0.8, 1.5, 0.9, 1.3), 5, "a regression of up to 63.1 %, so"),
        (15.0, (0.5, 2.6, 0.9, 4.0, 0.7, 3.0), 5, "a regression of up to 5.5x, so"),
    ],
)
def test_a_gate_passes_only_what_is_not_slower_by_twice_the_threshold(
    analyze, made, latency, factors, code, said
):
    sides = {"old": made.rounds(10.0), "new": made.rounds(latency, factors)}

    ended = analyze(sides, "--baseline", "old", "--fail-on-regression")

    assert ended.code == code
    assert said in ended.out + ended.err
    assert ("must exclude 10 %, twice the threshold" in ended.err) is (code == 5)


def test_quiet_points_pass_the_gate_whatever_their_number(analyze, made):
    draw = random.Random(0)
    sides = {
        label: [
            row
            for size in range(1, 326)
            for row in made.rounds(
                10.0,
                [math.exp(draw.gauss(0, 0.01)) for _ in range(6)],
                **{"SendMsgSize(B)": 1024 * size},
            )
        ]
        for label in ("old", "new")
    }

    ended = analyze(sides, "--baseline", "old", "--fail-on-regression", "--json")

    assert (ended.code, json.loads(ended.out)["undecided_count"]) == (0, 0)


def test_without_a_baseline_each_label_is_a_table(analyze, made):
    ended = analyze({"a": [made.row(10.0)], "b": [made.row(12.0)]})

    assert [line.split()[-4] for line in ended.out.splitlines() if " 1KB " in line] == ["10", "12"]
    assert "next: add --baseline LABEL to compare them" in ended.out
    assert json.loads((made.root / "out" / "verdict.json").read_text())["points"] == []


def test_what_is_left_out_is_told_on_the_side(analyze, made):
    sides = {"old": made.rounds(10.0), "new": made.rounds(10.0)}
    (made.folder("new", sides["new"]) / "empty.csv").write_text("")

    ended = analyze(sides, "--baseline", "old", "--dir", "gone:/no/such/folder", "--json")

    assert ended.code == 0
    lines = ended.err.splitlines()
    assert lines[0] == "warning: gone: there is no folder /no/such/folder; it is left out"
    assert "empty.csv: has no column Collective" in lines[1]
    assert json.loads(ended.out)["warnings"] == [line.removeprefix("warning: ") for line in lines]


def test_results_without_a_common_point_are_a_caveat(analyze, made):
    sides = {"old": made.rounds(10.0), "new": made.rounds(10.0, DeviceName="H100")}

    ended = analyze(sides, "--baseline", "old")

    assert ended.code == 0
    assert "caveat: new and old have no point in common, so nothing was compared" in ended.out


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        ("--baseline olf", "--baseline olf is not a label of a --dir; did you mean old?"),
        ("--baseline xyz", "--baseline xyz is not a label of a --dir; give one of old, new, none"),
        ("--fail-on-regression", "--fail-on-regression needs verdicts; add --baseline LABEL"),
        ("--baseline old --allow-undecided", "add --fail-on-regression"),
        ("--baseline old --alpha 2", "--alpha 2: give 0.001 or more"),
        ("--threshold -1", "--threshold -1: give a percentage"),
        ("--threshold 100", "--threshold 100: give a percentage"),
        ("--dir old:/elsewhere", "several folders are labelled old; give each a separate label"),
        ("--baseline none", "the baseline none has no results"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_is_written(analyze, made, flags, fault):
    ended = analyze({"old": [made.row(1.0)], "new": [made.row(1.0)], "none": []}, *flags.split())

    assert (ended.code, ended.out) == (2, "")
    assert fault in ended.err
    assert not (made.root / "out").exists()


def test_a_gate_that_compared_nothing_is_an_error(analyze, made):
    gate = ("--baseline", "old", "--fail-on-regression")
    other = made.rounds(10.0, **{"SendMsgSize(B)": 2048})

    missing = analyze({"old": made.rounds(10.0)}, *gate, "--dir", "new:/no/such/folder")
    apart = analyze({"old": made.rounds(10.0), "new": other}, *gate)

    assert missing.code == apart.code == 2
    assert "nothing but the baseline old has results" in missing.err
    assert "new and old have no point in common, so nothing was compared" in apart.err


def test_a_gate_does_not_pass_points_that_the_candidate_lacks(analyze, made):
    sides = {"old": [*made.rounds(10.0), *made.rounds(9.0, Ranks=8)], "new": made.rounds(10.0)}
    flags = ("--baseline", "old", "--fail-on-regression")

    ended = analyze(sides, *flags)

    assert ended.code == 5
    assert "caveat: new has no row at 1 of the points that old was measured at" in ended.out
    assert analyze(sides, *flags, "--allow-undecided").code == 0


def test_a_gate_says_what_size_of_regression_it_could_have_shown(analyze, made):
    sides = {"old": made.rounds(10.0), "new": made.rounds(10.0)}

    ended = analyze(sides, "--baseline", "old", "--fail-on-regression", "--json")

    (point,) = json.loads(ended.out)["points"]
    assert point["detectable_percent"] >= 5
    assert "these rounds show a slowdown of" in json.loads(ended.out)["caveats"][0]


def test_a_folder_that_cannot_be_written_is_named(analyze, made):
    (made.root / "out").write_text("a file")

    ended = analyze({"a": [made.row(10.0)]})

    assert ended.code == 4
    assert f"cannot write {made.root / 'out'}" in ended.err


@pytest.mark.parametrize(("status", "code"), [("failed", 3), ("timeout", 3), ("skipped", 0)])
def test_a_gate_does_not_let_pass_what_broke(analyze, made, status, code):
    broke = made.row("n/a", **{"SendMsgSize(B)": 2048}, Status=status, Reason="rank 1 died")
    sides = {
        "old": [*made.rounds(10.0), *made.rounds(10.0, **{"SendMsgSize(B)": 2048})],
        "new": [*made.rounds(10.0, Status="measured"), broke],
    }

    ended = analyze(sides, "--baseline", "old", "--fail-on-regression")

    told = json.loads((made.root / "out" / "verdict.json").read_text())
    assert (ended.code, told["exit"]) == (code, code)
    assert [point["size_bytes"] for point in told["broken"]["new"]] == [2048] * (code == 3)
