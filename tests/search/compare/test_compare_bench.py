"""Benchmark rows are compared point by point, in rounds where both sides name them."""

import csv
import io
import json

import pytest

POINT = {
    "Collective": "all_reduce",
    "ReduceOp": "sum",
    "DType": "float32",
    "SendMsgSize(B)": 1024,
    "Ranks": 8,
    "DispatchMode": "sync",
    "SyncInterval": 0,
}
ALLOWED = "--allow-undecided"
STEADY = (1.0, 1.01, 0.99, 1.0, 1.005)


def row(latency, **columns):
    return POINT | {"LatAvg(us)": latency} | columns


def rounds(scale, column="Block", **columns):
    """Five rounds with a latency of 10 us times a scale."""
    return [
        row(10 * scale * factor, **{column: number}, **columns)
        for number, factor in enumerate(STEADY)
    ]


@pytest.fixture
def sides(tmp_path):
    """Writes the rows of A and B; gives their files."""

    def write(a, b):
        files = tmp_path / "a.csv", tmp_path / "b.csv"
        for file, rows in zip(files, (a, b), strict=True):
            text = io.StringIO(newline="")
            columns = list(dict.fromkeys(name for each in rows for name in each))
            table = csv.DictWriter(text, columns, restval="n/a")
            table.writeheader()
            table.writerows(rows)
            file.write_text(text.getvalue(), newline="")
        return files

    return write


@pytest.fixture
def compared(cclsearch, sides):
    """Compares these rows; gives what is printed for programs."""

    def compare(a, b, *flags):
        ended = cclsearch("compare", *sides(a, b), *flags, "--json")
        assert (ended.code, ended.err) == (0, "")
        return json.loads(ended.out)

    return compare


def test_rounds_that_both_name_decide(compared):
    (found,) = compared(rounds(1.0), rounds(0.8))["rows"]

    assert (found["verdict"], found["round_count"]) == ("fast", 5)
    assert found["ratio"] == pytest.approx(0.8)
    assert found["rounds"][1] == {"round": "1", "a": pytest.approx(10.1), "b": pytest.approx(8.08)}


@pytest.mark.parametrize("column", ["Block", "LaunchId", "RunId"])
def test_each_of_three_columns_names_rounds(compared, column):
    (found,) = compared(rounds(1.0, column), rounds(1.25, column))["rows"]

    assert (found["verdict"], found["round_count"]) == ("slow", 5)


def test_runs_of_their_own_are_not_paired_by_equal_launch_numbers(compared):
    a, b = rounds(1.0, "LaunchId", RunId="x"), rounds(0.8, "LaunchId", RunId="y")

    (found,) = compared(a, b)["rows"]

    assert (found["verdict"], found["reason"]) == ("undecided", "not_interleaved")


def test_blocks_of_one_launch_count_once(compared):
    a, b = rounds(1.0, LaunchId="only"), rounds(0.8, LaunchId="only")

    (found,) = compared(a, b)["rows"]

    assert (found["reason"], found["round_count"]) == ("too_few_rounds", 1)
    assert found["ratio"] == pytest.approx(0.8)


def test_launches_with_names_of_their_own_are_paired_by_block(compared):
    a = [each | {"LaunchId": f"a{number}"} for number, each in enumerate(rounds(1.0))]
    b = [each | {"LaunchId": f"b{number}"} for number, each in enumerate(rounds(0.8))]

    (found,) = compared(a, b)["rows"]

    assert (found["verdict"], found["round_count"]) == ("fast", 5)


def test_it_is_noticed_when_the_order_in_a_round_decides(compared):
    turns = range(8)
    a = [row(10 + turn % 2 / 50, Block=turn, Order=turn % 2) for turn in turns]
    b = [row((8 if turn % 2 else 6) + turn / 500, Block=turn, Order=1 - turn % 2) for turn in turns]

    (found,) = compared(a, b)["rows"]

    assert (found["verdict"], found["reason"]) == ("undecided", "order_effect")


def test_one_mean_per_side_is_undecided_and_shows_the_change(compared):
    found = compared([row(10.04)], [row(10.0)])

    (line,) = found["rows"]
    assert (line["verdict"], line["reason"]) == ("undecided", "one_sample")
    assert line["ratio"] == pytest.approx(10 / 10.04)
    assert line["change"] == pytest.approx(-0.004)
    assert found["next"] == [
        "run A and B in turns, 4 times or more, and name each round in a column Block of both files"
    ]


def test_replicates_without_rounds_are_undecided(compared):
    (found,) = compared([row(10.0), row(10.1)], [row(8.0), row(8.1)])["rows"]

    assert found["reason"] == "not_interleaved"
    assert (found["a"]["launch_count"], found["b"]["launch_count"]) == (2, 2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((name, "other") for name in ("Collective", "ReduceOp", "DType", "DispatchMode")),
        *((name, 4) for name in ("SendMsgSize(B)", "Ranks", "SyncInterval")),
    ],
)
def test_rows_of_different_points_are_not_paired(compared, field, value):
    found = compared([row(10.0), row(9.0, **{field: value})], [row(10.0)])

    assert len(found["rows"]) == 1
    assert len(found["only_a"]) == 1
    assert sum(found["counts"].values()) == 1


def test_other_adapters_and_versions_are_what_is_compared(compared):
    a = [row(10.0, CommAdapter="c10d", CommBackend="nccl", DeviceName="H100")]
    b = [row(10.0, CommAdapter="torchcomms", CommBackend="ncclx", DeviceName="H200")]

    found = compared(a, b)

    assert found["a"]["settings"] == "c10d nccl"
    assert found["b"]["settings"] == "torchcomms ncclx"
    assert found["caveats"] == ["A was measured on H100, B on H200"]
    assert len(found["rows"]) == 1


@pytest.mark.parametrize(
    ("latency", "reason"),
    [("n/a", "no_samples"), (0.0, "bad_time"), (-1.0, "bad_time"), (1e300, "bad_time")],
)
def test_a_point_without_a_latency_is_unknown(compared, latency, reason):
    found = compared([row(10.0, Block=1)], [row(latency, Block=1)])

    assert (found["rows"][0]["verdict"], found["rows"][0]["reason"]) == ("unknown", reason)
    assert found["counts"]["unknown"] == 1


def test_a_latency_of_nothing_without_rounds_is_unknown_too(compared):
    (found,) = compared([row(10.0)], [row(0.0)])["rows"]

    assert (found["verdict"], found["reason"]) == ("unknown", "bad_time")


def test_people_get_a_table_with_counts_and_what_was_left_out(cclsearch, sides):
    sizes = (1024, 2048)
    a = [each | {"SendMsgSize(B)": size} for size in sizes for each in rounds(size / 1024)]
    b = [each | {"SendMsgSize(B)": size} for size in sizes for each in rounds(size / 1280)]
    a.append(row(5.0, Collective="broadcast", ReduceOp="n/a", Block=0))

    ended = cclsearch("compare", *sides(a, b))

    assert ended.code == 0
    assert ended.out.splitlines()[2:] == [
        "verdicts: 2 fast",
        "",
        "LatAvg of all_reduce sum float32 ... 8 ranks sync, lower is better",
        "              A         B  B is                           verdict",
        "1024B  10.01 us  8.008 us  1.25x faster (1.25x to 1.25x)  fast",
        "2048B  20.02 us  16.02 us  1.25x faster (1.25x to 1.25x)  fast",
        "",
        "paired_interval_clears_band: the whole interval is beyond the margin of 2.0 %",
        "fast and slow are corrected for 2 comparisons (Holm); each interval stands for its own",
        "n/a: broadcast float32 1024B 8 ranks sync, measured for A only",
    ]


def test_a_threshold_hides_rows_and_counts_them_all_the_same(cclsearch, sides):
    a = [row(10.0), row(10.0, DType="float16")]
    b = [row(10.1), row(12.0, DType="float16")]

    ended = cclsearch("compare", *sides(a, b), "--threshold-diff", 5, "--display", "explain")

    assert "verdicts: 2 undecided\nnot shown: 1 that differ by less than 5 %\n" in ended.out
    assert "LatAvg of all_reduce sum ... 1024B 8 ranks sync, lower is better\n" in ended.out
    assert "float16  10 us  12 us  1.20x slower  undecided       0  one_sample\n" in ended.out
    assert "1.01x slower" not in ended.out
    assert "rounds  reason\n" in ended.out


def test_the_exit_code_is_3_only_where_slower_was_to_fail(cclsearch, sides):
    slower = sides(rounds(1.0), rounds(1.25))

    assert cclsearch("compare", *slower).code == 0
    assert cclsearch("compare", *slower, "--fail-on", "slow").code == 3
    assert cclsearch("compare", *reversed(slower), "--fail-on", "slow").code == 0
    assert cclsearch("compare", *slower, "--fail-on", "slow", "--margin", 0.5).code == 0


@pytest.mark.parametrize(
    ("flags", "code"), [((), 0), (("--fail-on", "slow"), 5), (("--fail-on", "slow", ALLOWED), 0)]
)
def test_a_gate_does_not_pass_what_one_launch_a_side_left_undecided(cclsearch, sides, flags, code):
    ended = cclsearch("compare", *sides([row(10.0)], [row(48.8)]), *flags)

    assert ended.code == code
    assert ("undecided: 1 of 1 comparisons" in ended.err) is (code == 5)


UNEVEN = (1.0, 1.04, 0.97, 1.03, 0.98)


@pytest.mark.parametrize(("point_count", "code"), [(1, 3), (2, 5)])
def test_a_gate_is_corrected_for_the_number_of_comparisons(cclsearch, sides, point_count, code):
    slower = [
        each | {"LatAvg(us)": 10 * 1.06 * factor}
        for each, factor in zip(rounds(1.0), UNEVEN, strict=True)
    ]
    steady = [[each | {"LatAvg(us)": 10} for each in rounds(1.0, Ranks=n)] for n in (8, 4)]
    a = [each for point in steady[:point_count] for each in point]

    ended = cclsearch("compare", *sides(a, [*slower, *a[5:]]), "--fail-on", "slow")

    assert ended.code == code


def test_what_a_gate_may_let_pass_needs_a_gate(cclsearch, sides):
    ended = cclsearch("compare", *sides(rounds(1.0), rounds(1.0)), ALLOWED)

    assert (ended.code, "needs --fail-on slow" in ended.err) == (2, True)


def test_results_without_a_common_point_are_refused(cclsearch, sides):
    ended = cclsearch("compare", *sides([row(10.0)], [row(10.0, DType="float16")]))

    assert (ended.code, ended.out) == (2, "")
    assert "have no point in common (all_reduce sum float32 1024B 8 ranks sync" in ended.err
