"""Tables of compared result files: every cell as agreed, and nothing hidden that counts."""

import difflib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text

from evaluator.timing.nvbench.compare import ComparedFiles, DeviceChoice, compare_files
from records.errors import StudyError
from search.compare.intervals_view import bulk_script, comparison_facts, nvbench_lines
from search.compare.view import Display, View
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


def lines_of(found: ComparedFiles, view: View) -> list[str]:
    return list(map(str, nvbench_lines(found, view)))


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
    golden = GOLDEN / f"intervals_{display}.txt"
    actual = tmp_path / golden.name

    actual.write_text("\n".join(lines_of(found, View(display=display))) + "\n")

    expected, seen = golden.read_text(encoding="utf-8"), actual.read_text(encoding="utf-8")
    change = difflib.unified_diff(expected.splitlines(), seen.splitlines(), lineterm="")
    assert seen == expected, f"to accept: cp {actual} {golden}\n" + "\n".join(change)


def test_rows_have_the_colours_of_their_verdicts(found: ComparedFiles):
    lines = [line for line in nvbench_lines(found, View()) if isinstance(line, Text)]

    styles = {line.plain.split()[0]: str(line.style) for line in lines}
    assert styles["fast"] == "green"
    assert styles["slow"] == "red"
    assert styles["same"] == "blue"
    assert styles["noisy"] == styles["skipped"] == "yellow"


def test_a_threshold_hides_rows_but_counts_them(found: ComparedFiles):
    lines = lines_of(found, View(threshold_percent=5.0))

    rows = [line.split()[0] for line in lines if line.split()[:1] and line.split()[0] in RUNS]
    assert rows == ["fast", "slow", "skipped"]
    assert "verdicts: 1 fast, 1 slow, 2 same, 3 undecided, 1 unknown" in lines
    assert lines[-1] == "not shown: 5 that differ by less than 5 %"


@pytest.mark.parametrize("percent", [-1.0, float("nan"), float("inf")])
def test_a_threshold_is_a_finite_percentage(percent: float):
    with pytest.raises(StudyError, match="--threshold-diff"):
        View(threshold_percent=percent)


def test_the_message_of_a_reason_is_that_of_its_worst_case(found: ComparedFiles):
    lines = [line for line in lines_of(found, View()) if "noise_too_high" in line]

    assert len(lines) == 1
    assert lines[0].startswith("undecided: 2 noise_too_high (")
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
        assert lines_of(found, View(display=display))[0] == "copy, [0] Test GPU"


def test_names_of_a_file_cannot_break_a_table(tmp_path: Path):
    hostile = {"a|b": "x\x1b[31m|y"}
    for name in ("ref", "cmp"):
        run = state(times(*[1.0] * 4)) | {
            "axis_values": [
                {"name": axis, "type": "string", "value": value} for axis, value in hostile.items()
            ]
        }
        write_result(tmp_path / f"{name}.json", [benchmark("copy\n# [red]", [run])])

    lines = lines_of(compare_files(tmp_path / "ref.json", tmp_path / "cmp.json"), View())

    assert lines[0] == "copy # [red], [0] Test GPU"
    assert lines[1].startswith("a|b ")
    assert lines[2].startswith("x [31m|y ")


def test_tables_of_several_files_name_them(tmp_path: Path):
    for folder in ("ref", "cmp"):
        (tmp_path / folder).mkdir()
        for name in ("a.json", "b.json"):
            runs = [state(times(*[1.0] * 4))]
            write_result(tmp_path / folder / name, [benchmark("copy", runs)])

    lines = lines_of(compare_files(tmp_path / "ref", tmp_path / "cmp"), View())

    assert [line for line in lines if "[0]" in line] == [
        "a.json, copy, [0] Test GPU",
        "b.json, copy, [0] Test GPU",
    ]
