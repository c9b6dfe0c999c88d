"""`cclsearch metrics`: what it lists, explains and computes, and what it refuses."""

import gzip
import json
import re
from pathlib import Path

import pytest

from evaluator.metrics.registry import metric, metric_names

DATA = Path(__file__).parents[2] / "data"
PUBLISHED = Path(__file__).parents[3] / "benchmarks" / "ccl_bench_metrics.py"
GLOO = DATA / "traces" / "gloo_ddp_2rank"
CARDS, SYNTHETIC = DATA / "cards", DATA / "traces" / "synth_fsdp_4rank_straggler2"
OWN_METRIC = """
from evaluator.metrics.base import Formula

lane_count = Formula(
    name="lane_count",
    label="Streams",
    unit="streams",
    better="lower",
    sources=frozenset({"kineto"}),
    description="Streams and threads of the first rank.",
    formula=lambda evidence: float(len(evidence.traces.ranks[0].spans.lanes)),
)
"""


@pytest.fixture
def computed(cclsearch):
    """Computes metrics; gives what is printed for programs, by name."""

    def compute(*arguments):
        ended = cclsearch("metrics", "compute", *arguments, "--no-cache", "--json")
        assert (ended.code, ended.err) == (0, "")
        return {each["name"]: each for each in json.loads(ended.out)["metrics"]}

    return compute


def test_every_metric_is_listed_on_a_line_that_fits_a_page(cclsearch):
    ended = cclsearch("metrics", "list")

    lines = ended.out.splitlines()
    assert (ended.code, ended.err) == (0, "")
    assert [line.split()[0] for line in lines[1:-2]] == list(metric_names())
    assert max(map(len, lines)) <= 82


def test_a_metric_is_explained_with_what_the_published_toolkit_does_otherwise(cclsearch):
    ended = cclsearch("metrics", "show", "bw_allgather", "step_time")

    told = " ".join(ended.out.split())
    assert ended.code == 0
    assert "bw_allgather: All-gather bandwidth; GB/s, higher is better" in told
    assert f"CCL-Bench: {metric('bw_allgather').differs}" in told
    assert "Needs: a trace." in told
    assert "Needs: the timed steps of a trial." in told


def test_values_and_reasons_cover_every_metric(computed):
    metrics = computed(SYNTHETIC)

    assert list(metrics) == list(metric_names())
    assert all((each["value"] is None) == (each["absent"] is not None) for each in metrics.values())
    assert metrics["mfu"]["absent"] == "the model that ran is unknown; give its card"


def test_values_are_those_that_the_generator_of_the_traces_knew(computed):
    truth = json.loads((SYNTHETIC / "truth.json").read_text())
    steps = [step for rank in truth["ranks"].values() for step in rank["steps"]]
    metrics = computed(SYNTHETIC)

    exposed_ns = sum(step["gpu_exposed_comm"] for step in steps) / len(steps)
    overlap = sum(step["gpu_overlap"] for step in steps) / sum(
        step["gpu_comm_busy"] for step in steps
    )
    assert metrics["total_communication_time"]["value"] == pytest.approx(exposed_ns / 1e9, rel=1e-3)
    assert metrics["compute_comm_overlap"]["value"] == pytest.approx(overlap, rel=1e-3)


def test_people_get_numbers_with_units_and_reasons_and_caveats(cclsearch):
    ended = cclsearch("metrics", "compute", SYNTHETIC, "--no-cache")

    assert (ended.code, ended.err) == (0, "")
    assert "4 ranks; NVIDIA H100 80GB HBM3; kineto; 5 steps (5 to 9)" in ended.out
    assert "no bw_allreduce: no all-reduce ran\n" in ended.out
    assert "caveat: left out: truth.json" in ended.out


def test_where_nothing_asked_for_has_a_value_the_exit_code_is_3(cclsearch):
    ended = cclsearch("metrics", "compute", SYNTHETIC, "mfu", "--no-cache")

    assert ended.code == 3
    assert "no mfu: the model that ran is unknown; give its card\n" in ended.out


def test_a_card_tells_what_ran_and_where_it_does_not_fit_that_is_said(cclsearch):
    card = ("--card", CARDS / "training.yaml", "--card-bandwidths", "scale_out,scale_up")

    told = cclsearch("metrics", "compute", SYNTHETIC, "tokens_per_s", *card, "--no-cache")

    assert told.code == 0
    assert "tokens_per_s  18" in told.out
    assert "the traces are of 4 ranks, the card is of 8; is it the right card?" in told.out


def test_a_card_without_hardware_says_nothing_of_the_traces_machine(cclsearch, tmp_path):
    card = tmp_path / "card.yaml"
    card.write_text(
        "workload:\n  model: {model_family: qwen3-4b}\n  data: {batch_size: [4, 8], seq_len: 64}\n",
        encoding="utf-8",
    )
    ended = cclsearch("metrics", "compute", SYNTHETIC, "mfu", "--card", card, "--no-cache")
    assert "give the traces' one with --batch-size" in ended.err
    asked = ("metrics", "compute", SYNTHETIC, "mfu", "tokens_per_s", "--card", card)
    told = cclsearch(*asked, "--batch-size", 4, "--no-cache", "--json")
    facts = json.loads(told.out)
    assert facts["mismatches"] == []
    assert any("of qwen3-4b" in sentence for sentence in facts["inferences"])
    assert (
        "card: phase training, as the card states none"
        in cclsearch(*asked, "--batch-size", 4, "--no-cache").out
    )


def test_a_metric_of_ones_own_is_computed_beside_the_others(cclsearch, computed, tmp_path):
    (tmp_path / "own.py").write_text(OWN_METRIC, encoding="utf-8")
    own = ("--metrics-file", tmp_path / "own.py")

    metrics = computed(SYNTHETIC, *own)

    assert metrics["lane_count"]["value"] > 0
    assert "lane_count" in cclsearch("metrics", "list", *own).out
    assert "Streams and threads" in cclsearch("metrics", "show", "lane_count", *own).out


def test_values_of_the_published_toolkit_are_given_in_its_units(computed):
    ours = computed(SYNTHETIC, "bw_allgather")
    name = "published_bw_allgather"
    theirs = computed(SYNTHETIC, name, "--metrics-file", PUBLISHED)

    assert (list(ours), list(theirs)) == (["bw_allgather"], [name])
    assert (ours["bw_allgather"]["unit"], theirs[name]["unit"]) == ("GB/s", "GiB/s")
    assert ours["bw_allgather"]["value"] == pytest.approx(168.8, rel=0.01)
    assert theirs[name]["value"] == pytest.approx(39.2, rel=0.01)


def test_a_damaged_trace_ends_with_2_and_names_the_file(cclsearch, tmp_path):
    whole = (SYNTHETIC / "rank0_trace.json.gz").read_bytes()
    text = gzip.decompress(whole)
    (tmp_path / "cut.json").write_bytes(text[: len(text) // 2])

    ended = cclsearch("metrics", "compute", tmp_path / "cut.json", "--no-cache")

    assert (ended.code, ended.out) == (2, "")
    assert f"error: {tmp_path / 'cut.json'}: " in ended.err


DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_the_metric_of_the_document_can_be_computed(cclsearch, tmp_path):
    document = DOCUMENT.read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(from evaluator.*?)```", document, re.DOTALL)
    (tmp_path / "mine.py").write_text(example, encoding="utf-8")

    ended = cclsearch(
        *("metrics", "compute", GLOO, "copied_share", "--no-cache"),
        *("--metrics-file", tmp_path / "mine.py"),
    )

    assert ended.code == 0
    assert "copied_share      0  fraction" in ended.out
