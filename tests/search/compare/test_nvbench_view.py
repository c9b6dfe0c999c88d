"""Compared nvbench files as tables, JSON and a program: nothing that counts is hidden."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.timing.nvbench.compare import ComparedFiles, DeviceChoice, compare_files
from search.compare.nvbench_view import bulk_script, comparison_facts, nvbench_document
from search.compare.view import Display, View
from search.views.document import Table
from search.views.terminal import print_blocks
from tests.support.nvbench import (
    Json,
    benchmark,
    device,
    sample_reference,
    samples,
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
    return compare_files(*sides, devices=DeviceChoice.of(ignore_difference=True))


@pytest.fixture
def lines_of(capsys):
    """Prints a comparison; gives its lines."""

    def print_and_read(found, **view):
        print_blocks(nvbench_document(found, View(**view)).sections[0].blocks, spaced=True)
        return capsys.readouterr().out.splitlines()

    return print_and_read


@pytest.mark.parametrize("display", list(Display))
def test_a_table_is_what_the_golden_file_says(display, found, lines_of):
    golden = (GOLDEN / f"intervals_{display}.txt").read_text(encoding="utf-8")

    assert lines_of(found, display=display) == golden.splitlines()


def test_rows_have_the_tones_of_their_verdicts(found):
    (section,) = nvbench_document(found, View()).sections

    rows = [row for block in section.blocks if isinstance(block, Table) for row in block.rows]
    assert [row.tone for row in rows] == ["fast", "slow", "same", *["open"] * 4, "same"]


def test_a_threshold_hides_rows_but_counts_them(found, lines_of):
    lines = lines_of(found, threshold_percent=5.0)

    rows = [line.split()[0] for line in lines if line.split()[:1] and line.split()[0] in RUNS]
    assert rows == ["fast", "slow", "skipped"]
    assert "verdicts: 1 fast, 1 slow, 2 same, 3 undecided, 1 unknown" in lines
    assert lines[-1] == "not shown: 5 that differ by less than 5 %"
    program = bulk_script(found, View(threshold_percent=5.0))
    assert [row["axes"]["case"] for row in run(program)["ROWS"]] == rows


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
        run(bulk_script(found, View(display=display)))
        table, _ = nvbench_document(found, View(display=display)).sections[0].blocks
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


# The program that loads raw samples.


def sampled(folder: Path, extra: Json | None = None) -> ComparedFiles:
    """Two states, of which the first has samples on both sides."""
    for side in ("ref", "cmp"):
        path = folder / f"{side}.json"
        told = [samples(path, 0, VALUES), samples(path, 0, [2.0] * 4, clocks=True)]
        runs = [
            state([*SAME, *told], {"case": "sampled"}),
            state([*SAME, *([extra] if extra else [])], {"case": "plain"}),
        ]
        write_result(path, [benchmark("copy", runs)])
    return compare_files(folder / "ref.json", folder / "cmp.json")


def run(program: str) -> dict:
    names: dict = {}
    exec(compile(program, "bulk", "exec"), names)
    return names


def test_the_program_says_of_each_row_what_it_is_and_loads_its_samples(tmp_path):
    program = bulk_script(sampled(tmp_path), View())

    names = run(program)
    first, second = names["ROWS"]
    loaded, plain = map(names["load"], (first, second))
    assert [row["row_index"] for row in (first, second)] == [0, 1]
    assert [row["axes"] for row in (first, second)] == [{"case": "sampled"}, {"case": "plain"}]
    assert first["reference_times_file"] == str(tmp_path / "ref.json-bin/0.bin")
    assert (first["reference_times_count"], second["reference_times_count"]) == (4, None)
    assert (first["verdict"], first["benchmark"]) == ("same", "copy")
    assert np.array_equal(loaded["reference_times"], VALUES)
    assert np.array_equal(loaded["candidate_clocks"], [2.0] * 4)
    assert plain == dict.fromkeys(loaded)
    with pytest.raises(ValueError, match="holds 4 samples, not 5"):
        names["load"](first | {"reference_times_count": 5})
    lines = program.splitlines()
    assert (lines[0], lines[-1]) == ("# BULK-BEGIN", "# BULK-END")


def test_a_file_outside_of_the_folder_is_not_named(tmp_path):
    found = sampled(tmp_path, extra=sample_reference("/etc/hostname", 2))

    assert run(bulk_script(found, View()))["ROWS"][1]["reference_times_file"] is None


HOSTILE = [
    "'''+__import__('os').abort()+'''",
    '"""\n# BULK-END\nraise SystemExit',
    "\\",
    "\n# BULK-BEGIN",
    "é\u2028\x00\x1b",
]


@given(st.sampled_from(HOSTILE) | st.text(max_size=30))
def test_no_name_becomes_code(found, name):
    named = replace(found.sections[0], benchmark=name)

    program = bulk_script(replace(found, sections=(named,)), View())

    assert run(program)["ROWS"][0]["benchmark"] == name
    assert program.isascii()
    assert len([line for line in program.splitlines() if line.startswith("# BULK")]) == 2
