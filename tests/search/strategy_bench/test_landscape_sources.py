"""Landscapes that are drawn, renamed, or read out of recorded searches."""

import json
import math
from pathlib import Path

import pytest

from records.errors import StudyError
from records.trial import FailureKind
from search.strategy_bench.landscape import Ground, generate_landscape, read_landscape
from search.strategy_bench.run import landscapes_of

SHARED = Path(__file__).parents[4] / "shared" / "data"
MEASURED = Path(__file__).parents[3] / "benchmarks" / "landscapes"
LLAMA = {"model": "llama-3.1-8b", "seq_len": 1024}


def trial(tp, dp, mb, **changes):
    """A recorded launch in Megatron, of a kilotoken a second times `tp`."""
    return {
        "framework": "megatron-lm",
        "workload": LLAMA,
        "config": {
            "tp": tp,
            "dp": dp,
            "pp": 1,
            "micro_batch_size": mb,
            "activation_checkpointing": False,
        },
        "status": "success",
        "error_class": None,
        "inferred_cause": None,
        "inferred_why": None,
        "served_from_cache": False,
        "step_seconds": 1.0,
        "tokens_per_second": 1000.0 * tp,
        "activation_checkpointing_effective": False,
        "gpus_used": 16,
        "search_id": "a search",
        **changes,
    }


def failed(tp, dp, mb, error, cause):
    return trial(tp, dp, mb, status="error", error_class=error, inferred_cause=cause)


def test_a_generated_landscape_is_the_same_again_and_another_seed_is_not():
    assert generate_landscape("generated:small-3") == generate_landscape("generated:small-3")
    assert generate_landscape("generated:small-3") != generate_landscape("generated:small-4")


@pytest.mark.parametrize(("name", "least", "most"), [("small-5", 120, 200), ("5", 450, 700)])
def test_a_generated_landscape_has_a_memory_cliff_and_all_ranks_at_work(name, least, most):
    landscape = generate_landscape(f"generated:{name}")
    ground = Ground(landscape)
    faults = [entry.failure for entry in landscape.entries if entry.failure]
    assert least <= len(landscape.entries) <= most
    assert 0.1 < len(faults) / len(landscape.entries) < 0.5
    assert {fault.kind for fault in faults} == {FailureKind.OUT_OF_MEMORY}
    assert 0 < len(ground.targets(0.05)) < 0.1 * len(landscape.entries)
    degrees = ("tp", "pp", "dp_shard", "dp_replicate")
    ranks = {math.prod(entry.config.get(d, 1) for d in degrees) for entry in landscape.entries}
    assert ranks == {landscape.environment.world_size}


def test_without_names_the_landscape_is_the_same_but_says_nothing():
    named, bare = (
        generate_landscape("generated:medium-5"),
        generate_landscape("generated:5-anonymous"),
    )
    assert [entry.samples for entry in bare.entries] == [entry.samples for entry in named.entries]
    words = str([bare.space, bare.seed, bare.entries])
    assert not any(word in words for word in ("tp", "micro", "selective", "1f1b", "GiB", "compute"))
    assert len(Ground(bare).space.feasible) == len(named.entries)


@pytest.mark.parametrize("name", ["generated:", "generated:huge-1", "generated:-1", "generated:x"])
def test_a_name_that_generates_nothing_is_refused(name):
    with pytest.raises(StudyError, match="is not a generated landscape; write generated:SEED"):
        landscapes_of([name])


@pytest.fixture
def folder(tmp_path):
    """Writes recorded trials and simulations as the importer reads them."""

    def write(*trials):
        rows = [
            *trials,
            trial(4, 1, 4, search_id="20260429_093910_titan_best", framework="torchtitan"),
            trial(4, 1, 1, workload={"model": "deepseek-v2-lite", "seq_len": 1024}),
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "ccl_search_histories.jsonl").write_text(text, encoding="utf-8")
        (tmp_path / "ccl_search_card_trials.jsonl").write_text("", encoding="utf-8")
        (tmp_path / "astra_sim_llama8b_landscape.jsonl").write_text("", encoding="utf-8")
        return tmp_path

    return write


def test_a_folder_without_recorded_searches_is_refused(tmp_path):
    with pytest.raises(StudyError, match=r"ccl_search_histories\.jsonl: cannot be read"):
        landscapes_of([f"ccl:{tmp_path}"])


def test_a_recorded_line_that_is_no_trial_is_refused_with_its_number(folder):
    with pytest.raises(StudyError, match=r"ccl_search_histories\.jsonl:2: "):
        landscapes_of([f"ccl:{folder(trial(4, 4, 2), {'framework': 1})}"])


@pytest.mark.skipif(not SHARED.exists(), reason="the recorded searches are not here")
def test_the_recorded_searches_give_landscapes_of_what_was_really_launched():
    found = {each.name: Ground(each) for each in landscapes_of([f"ccl:{SHARED}"])}
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


@pytest.mark.parametrize("name", ["builtin_cpu", "mpi_all_reduce"])
def test_the_measured_landscapes_are_complete(name):
    ground = Ground(read_landscape(MEASURED / f"{name}.json"))
    assert len(ground.space.feasible) == len(ground.landscape.entries) >= 40
