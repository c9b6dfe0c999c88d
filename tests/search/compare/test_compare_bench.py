"""Benchmark rows are compared point by point, in rounds where both sides name them."""

import re

import pytest

from tests.search.compare.conftest import UNEVEN, rounds, row

ALLOWED = "--allow-undecided"


def numbered(name, rows):
    """Each row with a launch of its own."""
    return [each | {"LaunchId": f"{name}{number}"} for number, each in enumerate(rows)]


BY_ORDER = [
    [row(10 + turn % 2 / 50, Block=turn, Order=turn % 2) for turn in range(8)],
    [row((8 if turn % 2 else 6) + turn / 500, Block=turn, Order=1 - turn % 2) for turn in range(8)],
]


@pytest.mark.parametrize(
    ("a", "b", "verdict", "reason", "round_count"),
    [
        *(
            (rounds(1.0, name), rounds(1.25, name), "slow", "paired_interval_clears_band", 5)
            for name in ("Block", "LaunchId", "RunId")
        ),
        (
            rounds(1.0, "LaunchId", RunId="x"),
            rounds(0.8, "LaunchId", RunId="y"),
            *("undecided", "not_interleaved", 0),
        ),
        (  # blocks of one launch
            rounds(1.0, LaunchId="only"),
            rounds(0.8, LaunchId="only"),
            *("undecided", "too_few_rounds", 1),
        ),
        (
            numbered("a", rounds(1.0)),
            numbered("b", rounds(0.8)),
            *("fast", "paired_interval_clears_band", 5),
        ),
        (*BY_ORDER, "undecided", "order_effect", 8),
        ([row(10.0), row(10.1)], [row(8.0), row(8.1)], "undecided", "not_interleaved", 0),
    ],
)
def test_rounds_that_both_name_decide(compared, a, b, verdict, reason, round_count):
    (found,) = compared(a, b)["rows"]

    assert (found["verdict"], found["reason"]) == (verdict, reason)
    assert found["round_count"] == len(found["rounds"]) == round_count


def test_one_mean_per_side_is_undecided_and_shows_the_change(compared):
    found = compared([row(10.04)], [row(10.0)])

    (line,) = found["rows"]
    assert (line["verdict"], line["reason"]) == ("undecided", "one_sample")
    assert line["ratio"] == pytest.approx(10 / 10.04)
    assert line["change"] == pytest.approx(-0.004)
    assert found["next"] == [
        "run A and B in turns, 4 times or more, and name each round in a column Block of both files"
    ]


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


@pytest.mark.parametrize("columns", [{"Block": 1}, {}])
@pytest.mark.parametrize(
    ("latency", "reason"),
    [("n/a", "no_samples"), (0.0, "bad_time"), (-1.0, "bad_time"), (1e300, "bad_time")],
)
def test_a_point_without_a_latency_is_unknown(compared, latency, reason, columns):
    found = compared([row(10.0, **columns)], [row(latency, **columns)])

    assert (found["rows"][0]["verdict"], found["rows"][0]["reason"]) == ("unknown", reason)
    assert found["counts"]["unknown"] == 1


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


def test_points_are_rows_with_their_reasons(cclsearch, sides):
    a = [row(10.0), row(10.0, DType="float16")]
    b = [row(10.1), row(12.0, DType="float16")]

    ended = cclsearch("compare", *sides(a, b), "--display", "explain")

    assert "verdicts: 2 undecided\n" in ended.out
    assert "LatAvg of all_reduce sum ... 1024B 8 ranks sync, lower is better\n" in ended.out
    assert re.search(r"float16 +10 us +12 us +1.20x slower +undecided +0 +one_sample\n", ended.out)
    assert "rounds  reason\n" in ended.out


STEADIER = [rounds(1.0, factors=(1.0,) * 5, Ranks=n) for n in (8, 4)]
SLOWER = rounds(1.06, factors=UNEVEN)


@pytest.mark.parametrize(
    ("a", "b", "flags", "code"),
    [
        (rounds(1.0), rounds(1.25), "", 0),
        (rounds(1.0), rounds(1.25), "--fail-on slow", 3),
        (rounds(1.25), rounds(1.0), "--fail-on slow", 0),
        (rounds(1.0), rounds(1.25), "--fail-on slow --margin 0.5", 0),
        (STEADIER[0], SLOWER, "--fail-on slow", 3),  # the same, but corrected for two of them:
        ([*STEADIER[0], *STEADIER[1]], [*SLOWER, *STEADIER[1]], "--fail-on slow", 5),
        ([row(10.0)], [row(48.8)], "", 0),
        ([row(10.0)], [row(48.8)], "--fail-on slow", 5),
        ([row(10.0)], [row(48.8)], f"--fail-on slow {ALLOWED}", 0),
    ],
)
def test_a_gate_fails_for_slower_points_and_for_undecided_ones(cclsearch, sides, a, b, flags, code):
    ended = cclsearch("compare", *sides(a, b), *flags.split())

    assert ended.code == code
    assert (ended.err.startswith("undecided: ")) is (code == 5)


def test_what_a_gate_may_let_pass_needs_a_gate(cclsearch, sides):
    ended = cclsearch("compare", *sides(rounds(1.0), rounds(1.0)), ALLOWED)

    assert (ended.code, "needs --fail-on slow" in ended.err) == (2, True)


def test_results_without_a_common_point_are_refused(cclsearch, sides):
    ended = cclsearch("compare", *sides([row(10.0)], [row(10.0, DType="float16")]))

    assert (ended.code, ended.out) == (2, "")
    assert "have no point in common (all_reduce sum float32 1024B 8 ranks sync" in ended.err
