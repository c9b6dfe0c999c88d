"""Compared nvbench files as tables and JSON: nothing that counts is hidden."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.timing.nvbench.compare import ComparedFiles, compare_files
from search.compare.nvbench_view import comparison_facts, nvbench_document
from search.compare.view import Display
from search.views.document import Table
from search.views.terminal import print_blocks
from tests.support.nvbench import (
    Json,
    benchmark,
    device,
    state,
    times,
    write_result,
)

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
SAME = times(*[1.0] * 4)
VALUES = [1.0] * 4


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> ComparedFiles:
    """Every kind of row, and a second table of other devices."""
    folder, sides = tmp_path_factory.mktemp("results"), []
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
    return compare_files(*sides)


@pytest.fixture
def lines_of(capsys):
    """Prints a comparison; gives its lines."""

    def print_and_read(found, *display):
        print_blocks(nvbench_document(found, *display).sections[0].blocks, spaced=True)
        return capsys.readouterr().out.splitlines()

    return print_and_read


@pytest.mark.parametrize("display", list(Display))
def test_a_table_is_what_the_golden_file_says(display, found, lines_of):
    golden = (GOLDEN / f"intervals_{display}.txt").read_text(encoding="utf-8")

    assert lines_of(found, display) == golden.splitlines()


def test_rows_have_the_tones_of_their_verdicts(found):
    (section,) = nvbench_document(found).sections

    rows = [row for block in section.blocks if isinstance(block, Table) for row in block.rows]
    assert [row.tone for row in rows] == ["fast", "slow", "same", *["open"] * 4, "same"]


def test_every_row_is_json(found):
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
    assert rows[7]["candidate_file"].endswith("cmp.json")


EXTREME = st.floats(min_value=5e-324, max_value=1.7e308)


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    folder = tmp_path_factory.mktemp("extremes")
    return folder / "ref.json", folder / "cmp.json"


@settings(max_examples=30)
@given(st.lists(st.tuples(EXTREME, EXTREME), min_size=1, max_size=4))
def test_any_times_can_be_shown_and_told(sides, pairs):
    for place, path in enumerate(sides):
        runs = [state(times(*[pair[place]] * 4), {"i": str(i)}) for i, pair in enumerate(pairs)]
        write_result(path, [benchmark("copy", runs)])

    found = compare_files(*sides)

    assert json.dumps(comparison_facts(found), allow_nan=False)
    for display in Display:
        table, _ = nvbench_document(found, display).sections[0].blocks
        assert table.about == "copy, [0] Test GPU"


def test_names_of_a_file_cannot_break_a_table(tmp_path, lines_of):
    for name in ("ref", "cmp"):
        values = [{"name": "a|b", "type": "string", "value": "x\x1b[31m|y"}]
        result = [benchmark("copy\n# [red]", [state(SAME) | {"axis_values": values}])]
        write_result(tmp_path / f"{name}.json", result)

    lines = lines_of(compare_files(tmp_path / "ref.json", tmp_path / "cmp.json"))

    assert lines[0] == "copy # [red], [0] Test GPU"
    assert lines[1].startswith("a|b ")
    assert lines[2].startswith("x [31m|y ")


def test_tables_of_several_files_name_them(tmp_path, lines_of):
    for folder in ("ref", "cmp"):
        (tmp_path / folder).mkdir()
        for name in ("a.json", "b.json"):
            write_result(tmp_path / folder / name, [benchmark("copy", [state(SAME)])])

    lines = lines_of(compare_files(tmp_path / "ref", tmp_path / "cmp"))

    assert [line for line in lines if "[0]" in line] == [
        "a.json, copy, [0] Test GPU",
        "b.json, copy, [0] Test GPU",
    ]
