"""`bench search` as it is typed: table, JSON, picture, refusals."""

import json

import pytest


@pytest.fixture
def bench(cclsearch, document, landscape_file):
    path = landscape_file(document)
    few = ("--strategies", "grid,tpe", "--seeds", "2", "--trials", "4")
    return lambda *more: cclsearch("bench", "search", str(path), *few, *more)


def test_a_table_tells_each_strategy_and_what_to_do_next(bench):
    ended = bench()
    assert ended.code == 0
    assert "tiny: 4 configurations, 3 measurable, 2 within reach of 1 s" in ended.out
    assert "random draws need 1.7 on average" in ended.out
    grid = next(line for line in ended.out.splitlines() if line.startswith(" grid"))
    assert grid.split()[:5] == ["grid", "2", "2-2", "2/2", "100/100/100/100"]
    assert "grid against tpe:" in ended.out
    assert "next: add -o FOLDER for the JSON and the picture" in ended.out


def test_one_json_and_one_picture_are_written(bench, tmp_path):
    ended = bench("-o", str(tmp_path / "results"))
    assert ended.code == 0
    written = sorted(path.name for path in (tmp_path / "results").iterdir())
    assert written == ["search_benchmark.json", "search_benchmark.svg"]
    told = json.loads((tmp_path / "results" / "search_benchmark.json").read_text())
    assert told["strategies"] == ["grid", "tpe"]
    assert told["reports"][0]["summaries"][0]["trials"] == {"low": 2.0, "median": 2.0, "high": 2.0}
    picture = (tmp_path / "results" / "search_benchmark.svg").read_text()
    assert all(text in picture for text in ("<svg xmlns", "grid: 100 % in 5", "trials</text>"))


def test_json_on_stdout_is_one_document(bench):
    told = json.loads(bench("--json", "--start", "random").out)
    assert (told["seed_count"], told["trial_count"], told["start"]) == (2, 4, "random")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--strategies", "grd"), "strategy 'grd' cannot be benchmarked; did you mean 'grid'?"),
        (("--target", "5 percent"), "--target '5 percent' is not a share"),
        (("--target", "nan"), "--target 'nan' is not a share"),
        (("--start", "middle"), "--start 'middle' is unknown; use seed or random"),
        (("generated:0x",), "'generated:0x' is not a generated landscape"),
        (("nowhere.json",), "nowhere.json: cannot be read"),
    ],
)
def test_what_is_asked_wrongly_is_told_in_one_line(bench, more, words):
    ended = bench(*more)
    assert (ended.code, ended.out) == (2, "")
    assert words in ended.err
    assert "Traceback" not in ended.err
