"""Tables of compared result files: every cell as agreed, and nothing hidden that counts."""

import difflib
import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from evaluator.timing.decision import Verdict
from evaluator.timing.intervals.estimate import Estimate, TimeRange
from evaluator.timing.nvbench.compare import ComparedFiles, DeviceChoice, compare_files
from records.errors import StudyError
from search.compare.intervals_view import (
    Display,
    View,
    bound_cells,
    bulk_script,
    change_cell,
    comparison_facts,
    interval_cells,
    report_lines,
    report_renderables,
    summary_lines,
    time_cells,
)
from tests.support.nvbench import Json, benchmark, device, state, times, write_result

GOLDEN = Path(__file__).parent / "golden"
US, MS = 1e-6, 1e-3
RUNS: dict[str, tuple[list | None, list | None]] = {
    "fast": (
        times(19.38 * US, 19.7 * US, 19.944 * US, 20.5 * US),
        times(18.1 * US, 18.2 * US, 18.3 * US, 18.46 * US),
    ),
    "slow": (
        times(1.434 * MS, 1.44 * MS, 1.446 * MS, 1.458 * MS),
        times(1.57 * MS, 1.58 * MS, 1.59 * MS, 1.60 * MS),
    ),
    "same": (
        times(2.237 * MS, 2.28 * MS, 2.3 * MS, 2.389 * MS, noise=0.01),
        times(2.237 * MS, 2.28 * MS, 2.301 * MS, 2.389 * MS, noise=0.01),
    ),
    "noisy": (
        times(0.09, 0.1, 0.11, 0.12, clock_hz=None),
        times(0.09, 0.1, 0.11, 0.13, clock_hz=None),
    ),
    "noisier": (times(1.0, 1.1, 1.2, 1.3), times(1.0, 1.1, 1.2, 1.35)),
    "apart": (times(*[2.5] * 4, clock_hz=None), times(*[2.6] * 4, clock_hz=None)),
    "skipped": (times(*[1 * US] * 4), None),
}


def found_of(folder: Path) -> ComparedFiles:
    """Every kind of row, and a second table of other devices."""
    sides = []
    for place, name in enumerate(("ref", "cmp")):
        runs = [
            state(pair[place], {"case": case, "Size": f"2^{size}"}, skipped=pair[place] is None)
            for size, (case, pair) in enumerate(RUNS.items(), start=8)
        ]
        bare = benchmark("bare", [state(times(*[3.0] * 4), device=1)], [1])
        devices: list[Json] = [device(), device(1, ("Old GPU", "New | GPU")[place])]
        sides.append(
            write_result(folder / f"{name}.json", [benchmark("copy", runs), bare], devices)
        )
    return compare_files(*sides, devices=DeviceChoice.of(ignore_difference=True))


@pytest.fixture
def found(tmp_path: Path) -> ComparedFiles:
    return found_of(tmp_path)


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("results")
    return folder / "ref.json", folder / "cmp.json"


@pytest.mark.parametrize("display", list(Display))
def test_a_table_is_what_the_golden_file_says(
    display: Display, found: ComparedFiles, tmp_path: Path
):
    golden = GOLDEN / f"intervals_{display}.md"
    actual = tmp_path / golden.name

    actual.write_text("\n".join(report_lines(found, View(display=display))) + "\n")

    expected, seen = golden.read_text(encoding="utf-8"), actual.read_text(encoding="utf-8")
    change = difflib.unified_diff(expected.splitlines(), seen.splitlines(), lineterm="")
    assert seen == expected, f"to accept: cp {actual} {golden}\n" + "\n".join(change)


def test_a_terminal_shows_verdicts_in_colours(found: ComparedFiles):
    page = io.StringIO()
    console = Console(file=page, force_terminal=True, width=120, color_system="standard")

    for part in report_renderables(found, View(display=Display.EXPLAIN)):
        console.print(part)

    colours = {"FAST": 32, "SLOW": 31, "SAME": 34, "AMBG": 90, "????": 33}
    for word, code in colours.items():
        assert f"\x1b[{code}m{word}" in page.getvalue()
    assert "Ref [Lo / Ce / Hi]" in page.getvalue()


def test_a_threshold_hides_rows_but_counts_them(found: ComparedFiles):
    view = View(threshold_percent=5.0)

    lines = report_lines(found, view)

    shown = [line.split()[1] for line in lines if line.startswith("| ") and "case" not in line]
    assert shown == ["fast", "slow", "skipped"]
    assert "- total: 8" in lines
    assert summary_lines(found, view)[-1] == "- not shown, below 5 %: 5"


@pytest.mark.parametrize("percent", [-1.0, float("nan"), float("inf")])
def test_a_threshold_is_a_finite_percentage(percent: float):
    with pytest.raises(StudyError, match="--threshold-diff"):
        View(threshold_percent=percent)


def test_the_message_of_a_reason_is_that_of_its_worst_case(found: ComparedFiles):
    lines = [line for line in summary_lines(found, View()) if "noise_too_high" in line]

    assert len(lines) == 1
    assert lines[0].startswith("    - noise_too_high: 2 (")
    assert "27.3 %" in lines[0]


def test_every_row_is_json(found: ComparedFiles, tmp_path: Path):
    facts = json.loads(json.dumps(comparison_facts(found), allow_nan=False))

    rows = facts["rows"]
    first = rows[0]
    assert facts["counts"] == {"fast": 1, "slow": 1, "same": 2, "undecided": 3, "unknown": 1}
    assert facts["warnings"] == list(found.warnings)
    assert first["axes"] == {"case": "fast", "Size": "256"}
    assert (first["verdict"], first["reference_device"]) == ("fast", 0)
    assert first["reference"] == {
        "centre_s": 19.944 * US,
        "lower_s": 19.38 * US,
        "upper_s": 20.5 * US,
        "noise": pytest.approx(0.0401, abs=1e-4),
    }
    assert first["relative_change"][1] == pytest.approx(-0.0498, abs=1e-4)
    assert rows[6]["reason"] == "state_skipped"
    assert rows[6]["difference_s"] is None
    assert rows[7]["candidate_file"] == str(tmp_path / "cmp.json")


EXTREME = st.floats(min_value=5e-324, max_value=1.7e308)


@settings(max_examples=30)
@given(st.lists(st.tuples(EXTREME, EXTREME), min_size=1, max_size=4))
def test_any_times_can_be_shown_and_told(
    sides: tuple[Path, Path], pairs: list[tuple[float, float]]
):
    for place, path in enumerate(sides):
        runs = [state(times(*[pair[place]] * 4), {"i": str(i)}) for i, pair in enumerate(pairs)]
        write_result(path, [benchmark("copy", runs)])

    found = compare_files(*sides)

    assert json.dumps(comparison_facts(found), allow_nan=False)
    for display in Display:
        exec(bulk_script(found, View(display=display)), {})
        assert f"- total: {len(pairs)}" in report_lines(found, View(display=display))


def test_names_of_a_file_cannot_break_a_table(tmp_path: Path):
    hostile = {"a|b": "x\x1b[31m|y"}
    for name in ("ref", "cmp"):
        run = state(times(*[1.0] * 4)) | {
            "axis_values": [
                {"name": axis, "type": "string", "value": value} for axis, value in hostile.items()
            ]
        }
        write_result(tmp_path / f"{name}.json", [benchmark("copy\n# [red]", [run])])

    lines = report_lines(compare_files(tmp_path / "ref.json", tmp_path / "cmp.json"), View())

    assert lines[0] == "# copy # [red], [0] Test GPU"
    assert lines[2].startswith("| a/b ")
    assert lines[4].startswith("| x [31m/y |")


def test_tables_of_several_files_name_them(tmp_path: Path):
    for folder in ("ref", "cmp"):
        (tmp_path / folder).mkdir()
        for name in ("a.json", "b.json"):
            runs = [state(times(*[1.0] * 4))]
            write_result(tmp_path / folder / name, [benchmark("copy", runs)])

    lines = report_lines(compare_files(tmp_path / "ref", tmp_path / "cmp"), View())

    assert [line for line in lines if line.startswith("# ")] == [
        "# a.json, copy, [0] Test GPU",
        "# b.json, copy, [0] Test GPU",
        "# summary",
    ]


def estimate(lower: float, centre: float, upper: float) -> Estimate:
    return Estimate(
        centre=centre, interval=TimeRange(lower=lower, centre=centre, upper=upper), noise=0.0
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.0, "1.000 s"),
        (0.9999, "999.900 ms"),
        (1e-3, "1.000 ms"),
        (9.99e-4, "999.000 us"),
        (1e-9, "0.001 us"),
        (0.0, "n/a"),
        (-1.0, "n/a"),
        (None, "n/a"),
        (float("nan"), "n/a"),
        (float("inf"), "n/a"),
    ],
)
def test_a_time_has_three_decimals_of_the_unit_it_fills(seconds: float | None, text: str):
    assert time_cells([Estimate(centre=seconds)]) == [text]


def test_a_spread_is_as_fine_as_its_centre_is_shown():
    told = [
        estimate(2.237 * MS, 2.3 * MS, 2.389 * MS),
        estimate(0.2 * MS, 0.9 * MS, 2.1 * MS),
        estimate(19.38 * US, 19.944 * US, 20.508 * US),
        estimate(1.9, 2.0, 2.1),
        Estimate(centre=123.0 * US),
        Estimate(centre=None),
    ]

    assert interval_cells(told) == [
        "2.300 ms [-63, +89] us",
        "900.000 us [-0.700000, +1.200000] ms",
        " 19.944 [-0.564, +0.564] us",
        "2.000 s [-100, +100] ms",
        "123.000                  us",
        "n/a",
    ]


def test_bounds_share_their_leading_digits_only_where_that_is_worth_it():
    told = [
        estimate(1.434 * MS, 1.446 * MS, 1.458 * MS),
        estimate(9.87 * US, 10.02 * US, 10.3 * US),
        estimate(100.1 * US, 120.2 * US, 123.3 * US),
        estimate(1.5 * MS, 1.5 * MS, 1.5 * MS),
        estimate(1.0, 1.9, 2.0),
        Estimate(centre=5.0),
        Estimate(centre=None),
    ]

    assert bound_cells(told) == [
        "1.4[34 / 46 / 58] ms",
        "[  9.870 /  10.020 /  10.300] us",
        "[100.100 / 120.200 / 123.300] us",
        "1.50[0 / 0 / 0] ms",
        "[  1.000 /   1.900 /   2.000] s",
        "5.000 s",
        "n/a",
    ]


def test_only_a_claim_has_a_change():
    assert change_cell(Verdict.FAST, -0.0498) == "<= -5.0%"
    assert change_cell(Verdict.SLOW, 0.0769) == ">= +7.7%"
    assert change_cell(Verdict.SAME, None) == ""
