"""The program that loads raw samples runs as it is, whatever the names in a result file are."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.timing.nvbench.compare import ComparedFiles, compare_files
from search.compare.intervals_view import bulk_script
from search.compare.view import View
from tests.support.nvbench import (
    Json,
    benchmark,
    sample_reference,
    samples,
    state,
    times,
    write_result,
)

QUARTILES = times(1.0, 1.0, 1.0, 1.0)
VALUES = [1.0, 1.0, 1.0, 1.0]


def found_of(folder: Path, extra: Json | None = None) -> ComparedFiles:
    """Two states, of which the first has samples on both sides."""
    for side in ("ref", "cmp"):
        path = folder / f"{side}.json"
        told = [samples(path, 0, VALUES), samples(path, 0, [2.0] * 4, clocks=True)]
        runs = [
            state([*QUARTILES, *told], {"case": "sampled"}),
            state([*QUARTILES, *([extra] if extra else [])], {"case": "plain"}),
        ]
        write_result(path, [benchmark("copy", runs)])
    return compare_files(folder / "ref.json", folder / "cmp.json")


def script(folder: Path, extra: Json | None = None) -> str:
    return bulk_script(found_of(folder, extra), View())


def run(program: str) -> dict:
    names: dict = {}
    exec(compile(program, "bulk", "exec"), names)
    return names


def test_the_program_loads_the_samples_of_each_row(tmp_path: Path):
    names = run(script(tmp_path))

    sampled, plain = (names["load"](row) for row in names["ROWS"])

    assert np.array_equal(sampled["reference_times"], VALUES)
    assert np.array_equal(sampled["candidate_clocks"], [2.0] * 4)
    assert plain == dict.fromkeys(sampled)


def test_each_row_says_what_it_is(tmp_path: Path):
    rows = run(script(tmp_path))["ROWS"]

    assert [row["row_index"] for row in rows] == [0, 1]
    assert [row["axes"] for row in rows] == [{"case": "sampled"}, {"case": "plain"}]
    assert rows[0]["reference_times_file"] == str(tmp_path / "ref.json-bin/0.bin")
    assert (rows[0]["reference_times_count"], rows[1]["reference_times_count"]) == (4, None)
    assert (rows[0]["verdict"], rows[0]["benchmark"]) == ("same", "copy")


def test_the_program_stands_between_its_marks(tmp_path: Path):
    lines = script(tmp_path).splitlines()

    assert (lines[0], lines[-1]) == ("# BULK-BEGIN", "# BULK-END")
    assert sum("# BULK" in line for line in lines) == 2


def test_a_count_that_is_wrong_is_an_error_when_it_is_loaded(tmp_path: Path):
    names = run(script(tmp_path))
    row = names["ROWS"][0] | {"reference_times_count": 5}

    with pytest.raises(ValueError, match="holds 4 samples, not 5"):
        names["load"](row)


def test_a_file_outside_of_the_folder_is_not_named(tmp_path: Path):
    names = run(script(tmp_path, extra=sample_reference("/etc/hostname", 2)))

    assert names["ROWS"][1]["reference_times_file"] is None


def test_only_rows_that_are_shown_are_in_it(tmp_path: Path):
    found = found_of(tmp_path)

    assert run(bulk_script(found, View(threshold_percent=1.0)))["ROWS"] == []


HOSTILE = [
    "'''+__import__('os').abort()+'''",
    '"""\n# BULK-END\nraise SystemExit',
    "\\",
    "\n# BULK-BEGIN",
    "é\u2028\x00\x1b",
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> ComparedFiles:
    return found_of(tmp_path_factory.mktemp("results"))


@given(st.sampled_from(HOSTILE) | st.text(max_size=30))
def test_no_name_becomes_code(found: ComparedFiles, name: str):
    section = found.sections[0]
    named = replace(section, benchmark=name)

    program = bulk_script(replace(found, sections=(named,)), View())

    assert run(program)["ROWS"][0]["benchmark"] == name
    assert program.isascii()
    assert len([line for line in program.splitlines() if line.startswith("# BULK")]) == 2
