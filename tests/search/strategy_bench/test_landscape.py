"""Landscapes that are read and recorded: what comes back, and what is wrong."""

import importlib
import json
from pathlib import Path

import pytest

from records.codec import to_json
from records.errors import StudyError
from records.trial import Config, Failed, FailureKind
from search.strategy_bench.landscape import Ground, read_landscape
from search.strategy_bench.run import MEASURED, landscapes_of

SHARED = Path(__file__).parents[4] / "shared" / "data"
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
TP2 = Config({"tp": 2, "overlap": True})
TP4 = Config({"tp": 4, "overlap": True})


def test_a_landscape_survives_being_written_and_read(document, landscape_file, tmp_path):
    landscape = read_landscape(landscape_file(document))
    (tmp_path / "again.json").write_text(to_json(landscape))
    assert read_landscape(tmp_path / "again.json") == landscape
    assert landscape.entries[0].estimate == {"compute": 1.5}


def test_a_landscape_whose_first_entry_failed_survives_being_written_by_the_benchmark(
    document, landscape_file, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(BENCHMARKS)
    document["entries"] = document["entries"][2:] + document["entries"][:2]
    landscape = read_landscape(landscape_file(document))
    importlib.import_module("measured_landscapes").write_landscape(landscape, tmp_path / "again")
    assert read_landscape(tmp_path / "again") == landscape


def test_unseen_landscapes_are_complete_and_the_same_for_everybody(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    unseen = importlib.import_module("unseen_landscapes")
    for kind in ("kernel", "infeasible", "plateau", "needle"):
        ground = Ground(unseen.unseen_landscape(kind))
        assert ground.landscape == unseen.unseen_landscape(kind)
        assert len(ground.space.feasible) > len(ground.targets(0.05)) > 0
        assert ground.seed in ground.truths
    few = Ground(unseen.unseen_landscape("infeasible"))
    assert len(few.truths) / len(few.space.feasible) == pytest.approx(0.17, abs=0.01)
    assert unseen.unseen_landscape("needle", 1) != unseen.unseen_landscape("needle", 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(version=2), "version is 2; this cclsearch reads 1"),
        (lambda d: d.pop("version"), "version is None; this cclsearch reads 1"),
        (lambda d: d.update(extra=1), "extra: Unexpected keyword argument"),
        (lambda d: d.pop("seed"), "seed: "),
        (lambda d: d["objective"].pop("direction"), "needs a direction"),
        (lambda d: d.update(noise_sigma=1.5), "noise_sigma is 1.5"),
        (lambda d: d["entries"][0].update(samples=[]), "needs either samples or a failure"),
        (lambda d: d["entries"][2].update(samples=[1.0]), "needs either samples or a failure"),
        (lambda d: d["entries"][0].update(samples=[0.0]), "has a sample of 0.0, not above 0"),
        (lambda d: d["entries"][0].update(samples=["1"]), "entries.0.samples.0"),
        (lambda d: d["entries"][0].update(estimate={"compute": -1.0}), "an estimate below 0"),
        (lambda d: d["entries"][2]["failure"].update(kind="tired"), "entries.2.failure.kind"),
        (lambda d: d.update(entries=d["entries"][2:3]), "no entry has samples"),
        (lambda d: d["entries"][0].update(samples=[float("nan")]), "NaN is not a number"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_in_one_line(document, landscape_file, change, words):
    change(document)
    path = landscape_file(document)
    with pytest.raises(StudyError) as told:
        read_landscape(path)
    assert words in str(told.value)
    assert str(told.value).startswith(str(path))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "3", "\x00", '{"version": 1}', "[" * 100_000])
def test_a_file_that_is_no_landscape_is_refused(tmp_path, text):
    path = tmp_path / "bad.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(StudyError, match=r"bad\.json"):
        read_landscape(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["entries"].append(d["entries"][0]), "an entry is there twice"),
        (lambda d: d["entries"][0]["config"].update(tp=3), "knob tp is 3"),
        (lambda d: d["entries"][0]["config"].update(tp=8, overlap=True), "ranks"),
        (lambda d: d["entries"][0]["config"].update(overlap=True), "should be written tp=1"),
        (lambda d: d.update(seed={"tp": 4, "overlap": False}), "cannot be launched here"),
        (lambda d: d["space"]["constraints"][0].update(expression="rank <= 4"), "rank"),
    ],
)
def test_a_landscape_that_contradicts_itself_is_refused(document, landscape_file, change, words):
    change(document)
    landscape = read_landscape(landscape_file(document))
    with pytest.raises(StudyError, match=words):
        Ground(landscape)


def test_only_what_has_an_entry_is_feasible(ground):
    assert [str(config) for config in ground.space.feasible] == [
        "tp=1",
        "overlap=True tp=2",
        "overlap=False tp=2",
        "overlap=True tp=4",
    ]
    assert ground.truths == {Config({"tp": 1}): 2.0, TP2: 1.04, TP4: 1.0}
    assert ground.best == 1.0
    assert set(ground.targets(0.05)) == {TP2, TP4}
    assert ground.targets(0.0) == (TP4,)


def test_where_more_is_better_the_largest_is_the_best(document, landscape_file):
    document["objective"] = {"expression": "tokens_per_s", "direction": "maximize"}
    ground = Ground(read_landscape(landscape_file(document)))
    assert ground.best == 2.0
    assert ground.excess(TP4) == pytest.approx(1.0)
    assert ground.cost(3.0) < ground.cost(2.0)


def test_a_launch_draws_a_recorded_sample_and_the_same_one_for_everybody(ground):
    drawn = [ground.launch(ground.seed, number, seed=3) for number in range(20)]
    assert set(drawn) == {2.0, 2.2, 1.9}
    again = Ground(ground.landscape)
    assert [again.launch(again.seed, number, seed=3) for number in range(20)] == drawn
    failed = ground.launch(Config({"tp": 2, "overlap": False}), 0, seed=3)
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.message) == (FailureKind.OUT_OF_MEMORY, "9 GiB needed")


def test_stated_noise_spreads_around_the_median(document, landscape_file):
    document["noise_sigma"] = 0.1
    ground = Ground(read_landscape(landscape_file(document)))
    drawn = sorted(ground.launch(ground.seed, number, seed=1) for number in range(400))
    assert drawn[200] == pytest.approx(2.0, rel=0.02)
    assert drawn[336] / drawn[64] == pytest.approx(1.22, rel=0.05)  # two deviations apart


def test_a_landscape_asked_for_twice_is_refused(document, landscape_file):
    path = str(landscape_file(document))
    with pytest.raises(StudyError, match="'tiny' is asked for twice"):
        landscapes_of([path, path])


def test_the_documented_example_is_a_landscape(landscape_file, request):
    page = request.config.rootpath / "docs" / "landscapes.md"
    example = page.read_text(encoding="utf-8").split("```json\n")[1].split("```")[0]
    ground = Ground(read_landscape(landscape_file(json.loads(example))))
    assert len(ground.space.feasible) == 3


@pytest.mark.skipif(not SHARED.exists(), reason="the recorded searches are not here")
def test_the_recorded_searches_give_landscapes_of_what_was_really_launched(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    recorded = importlib.import_module("recorded_landscapes").recorded_landscapes(SHARED)
    found = {each.name: Ground(each) for each in recorded}
    sizes = {name: (len(g.space.feasible), len(g.truths)) for name, g in found.items()}
    assert sizes == {
        "ccl-megatron-llama-8b": (22, 17),
        "ccl-megatron-deepseek-v2-lite": (40, 14),
        "ccl-torchtitan-llama-8b": (13, 13),
        "astra-sim-llama-8b-32x1024": (19, 16),
        "astra-sim-llama-8b-16x512": (18, 17),
    }
    llama = found["ccl-megatron-llama-8b"]
    assert llama.best == 7979.75  # tokens per second: the shortest step did a quarter of the work
    assert all("activation_checkpointing" not in config for config in llama.space.feasible)
    assert found["ccl-torchtitan-llama-8b"].best == 1.499781809


def test_the_landscapes_that_come_along_are_complete():
    for ground in map(Ground, landscapes_of(MEASURED)):
        assert len(ground.space.feasible) == len(ground.landscape.entries) >= 40
        assert 0 < len(ground.targets(0.05)) < 0.1 * len(ground.landscape.entries)
