"""The page of `make gpu` on a GPU, in words and units.

No GPU was asked. The trace is a real one of an H100 (a small BERT). What the driver and NCCL print
is written by hand from their fields and formats; times and sizes of trials are made up.
"""

import gzip
import importlib
from pathlib import Path

import pytest

from evaluator.collective_bench.request import BenchContext, BenchPlan, read_plan
from evaluator.machine import local_environment, local_gpus
from evaluator.recipes.builtin import BuiltinRecipe
from evaluator.recipes.collectives import CollectivesRecipe
from records.trial import Config
from search.study.spaces import completed, space_of
from search.study.study_file import builtin_study, read_study_file
from search.traces.open import open_traces
from search.views.markdown import render_markdown

GPU = Path(__file__).parents[1] / "benchmarks" / "gpu"
GOLDEN = Path(__file__).parent / "golden" / "gpu_page.md"

DRIVER = """\
#!/bin/sh
case "$1" in
--query-gpu=name,*) echo "NVIDIA H100 80GB HBM3, 81559, GPU-0a1b2c3d-0000, 570.86.15, 700.00" ;;
--query-gpu=clocks.sm,*event_reasons.active) echo "1980, 41, 0x0000000000000001" ;;
--query-gpu=clocks.max.sm) echo "1980" ;;
--query-gpu=memory.used) echo "530" ;;
--query-compute-apps=*) ;;
*) exit 2 ;;
esac
"""
SAMPLES = """\
345, 38, 0x0000000000000001, 71.20, 0
1980, 55, 0x0000000000000000, 540.10, 97
1755, 61, 0x0000000000000004, 699.31, 100
1740, 62, 0x0000000000000004, 698.85, 100
[N/A], 63, [N/A], [N/A], 100
"""
NCCL_LOG = """\
node:11:11 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>
node:11:11 [0] NCCL INFO NCCL version 2.27.5+cuda12.9
node:11:32 [0] NCCL INFO NCCL_BUFFSIZE set by environment to 1048576.
node:11:32 [0] NCCL INFO NCCL_MIN_NCHANNELS set by environment to 4.
node:11:32 [0] NCCL INFO NCCL_MAX_NCHANNELS set by environment to 4.
node:11:32 [0] NCCL INFO NCCL_ALGO set by environment to Ring
node:11:32 [0] NCCL INFO NCCL_PROTO set by environment to Simple
node:11:32 [0] NCCL INFO Channel 00/04 : 0 1
node:11:32 [0] NCCL INFO 4 coll channels, 4 collnet channels, 0 nvls channels, 8 p2p channels
"""
NEW_CHOICE = "AllReduce: 4194304 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..3}"
OLD_CHOICE = "4194304 Bytes -> Algo 0 proto 2 time 86.01"
GIB = 1 << 30
TRACES = "traces/kineto"
TRIALS = (
    {"config": "micro_batch=1", "step_s": 0.512, "mfu": 0.61, "peak_bytes": 9 * GIB},
    {
        "config": "micro_batch=4 compute_precision=bf16",
        "step_s": 0.098,
        "mfu": 0.33,
        "peak_bytes": 21 * GIB,
    },
    {
        "config": "micro_batch=8 compute_precision=tf32",
        "step_s": 0.11,
        "mfu": 1.2,
        "peak_bytes": 30 * GIB,
        "memory_ratio": 2.1,
        "idle_share": 0.93,
    },
    {
        "config": "micro_batch=8 attention_backend=math",
        "failure": "launch: out_of_memory: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "kind": "out_of_memory",
    },
)
UNKNOWN = dict.fromkeys(
    ("failure", "kind", "step_s", "mfu", "no_mfu", "peak_bytes", "memory_ratio", "idle_share")
)
USUAL = {"memory_ratio": 1.1, "idle_share": 0.04, "is_profiled": True}
STEPS_S = (0.0200, 0.0201, 0.0199, 0.0202, 0.0200, 0.0198)


@pytest.fixture
def module(monkeypatch):
    """Imports a module of the proof, as its own scripts do."""
    monkeypatch.syspath_prepend(GPU.parent)
    monkeypatch.syspath_prepend(GPU)
    return importlib.import_module


@pytest.fixture
def place(module, tmp_path, monkeypatch):
    """A machine whose driver shows one H100."""
    driver = tmp_path / "nvidia-smi"
    driver.write_text(DRIVER, encoding="utf-8")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return module("part").Place(out=tmp_path, machine=local_environment())


def test_the_page_of_a_gpu_has_the_words_and_units_that_a_person_reads(
    module, place, recorded_data
):
    part, prove = module("part"), module("prove")

    def ended(name, heading, took_s, add):
        found = part.Findings(lead=f"What the part {name} found.")
        add(found)
        return part.Ended(
            name=name,
            heading=heading,
            status="done",
            message="",
            took_s=took_s,
            cpu_s=took_s / 2,
            findings=found,
        )

    def search(found):
        trials = [
            {"trial": number, **UNKNOWN, **(USUAL if "step_s" in each else {}), **each}
            for number, each in enumerate(TRIALS)
        ]
        module("study_part").add_trials(found, trials, on_gpu=True)
        module("clocks").add_clocks(found, SAMPLES)

    def traces(found):
        path = place.out / "rank0_trace.json"
        path.write_bytes(
            gzip.decompress((recorded_data / TRACES / "h100_bert_small.json.gz").read_bytes())
        )
        traces_part = module("trace_part")
        traces_part.add_trace(found, "trial 1", open_traces(str(path)), place)
        traces_part.add_device_work(found, "trial 1", path, asks_hta=False)

    def kill(found):
        before = (530 << 20,)
        module("failures_part").check_gpus(found, before, ("4242, 910 MiB",), ("4242", "4711"))

    def collectives(found):
        knobs = {"nccl_buffsize": 1 << 20, "nccl_min_nchannels": 4, "nccl_algo": "Ring"}
        module("collectives_part").add_nccl(found, knobs, NCCL_LOG + NEW_CHOICE)

    def decisions(found):
        taken = module("decision_rounds").Taken
        rounds = [
            {
                name: taken(
                    position=None,
                    steps_s=tuple(step * (1 + slow / 100 + shift) for step in STEPS_S),
                    wall_s=4.0,
                    disturbed=False,
                    step_by_step=True,
                )
                for name, slow in module("decisions_part").JOBS["cuda"].items()
                for shift in [(number * 7 + len(name)) % 5 * 1e-4]
            }
            for number in range(20)
        ]
        module("decisions_part").add_decisions(found, rounds, place)

    parts = [
        ended(
            "machine",
            "The machine",
            31.4,
            lambda f: module("machine_part").add_gpus(f, local_gpus()),
        ),
        ended("study", "A search", 164.2, search),
        ended("traces", "Traces", 12.9, traces),
        ended("kill", "A killed search", 19.5, kill),
        ended("collectives", "Collectives", 33.3, collectives),
        ended("decisions", "Noise and decisions", 92.0, decisions),
    ]
    page = render_markdown(prove.document(place, parts))

    seen = place.out / GOLDEN.name
    seen.write_text(page, encoding="utf-8")
    assert page == GOLDEN.read_text(encoding="utf-8"), f"to accept it: cp {seen} {GOLDEN}"


@pytest.mark.parametrize(
    ("knob", "value", "more", "row"),
    [
        ("nccl_buffsize", 1 << 20, "", ("1048576", "1048576", "not shown", "taken")),
        ("nccl_nthreads", 256, "", ("256", "nothing", "not shown", "no")),
        ("nccl_max_nchannels", 4, "", ("4", "4", "4", "yes")),
        ("nccl_algo", "Ring", NEW_CHOICE, ("Ring", "Ring", "RING", "yes")),
        ("nccl_algo", "Ring", OLD_CHOICE, ("Ring", "Ring", "Tree", "no")),
        ("nccl_proto", "Simple", OLD_CHOICE, ("Simple", "Simple", "Simple", "yes")),
    ],
)
def test_a_knob_of_nccl_is_in_effect_where_nccl_takes_it_and_does_what_it_says(
    knob, value, more, row, module
):
    found = module("part").Findings()

    told = module("collectives_part").add_nccl(found, {knob: value}, NCCL_LOG + more)

    assert told["version"] == "2.27.5+cuda12.9"
    assert found.tables[0].rows == [(knob, *row)]
    assert bool(found.doubts) is (row[-1] == "no")


@pytest.mark.parametrize(
    ("reasons", "doubts"),
    [
        ("0x0000000000000004", []),
        (
            "0x0000000000000040",
            ["GPUs at work are slowed by heat (hardware) in 100.0 % of samples"],
        ),
    ],
)
def test_a_power_cap_at_work_is_usual_and_heat_is_not(reasons, doubts, module):
    found = module("part").Findings()

    module("clocks").add_clocks(found, f"1755, 61, {reasons}, 699.31, 100\n")

    assert found.doubts == doubts


def test_sums_over_a_cuda_trace_are_those_of_a_sweep_and_every_launch_is_found(
    module, place, recorded_data
):
    path = place.out / "rank0_trace.json"
    path.write_bytes(
        gzip.decompress((recorded_data / TRACES / "h100_qwen0.5b.json.gz").read_bytes())
    )
    found, trace_part = module("part").Findings(), module("trace_part")

    facts = trace_part.add_trace(found, "trial 0", open_traces(str(path)), place)
    trace_part.add_device_work(found, "trial 0", path, asks_hta=False)

    assert found.doubts == []
    assert facts["launches"][-1]["launch_count"] > 1000
    assert facts["parts_off_s"] < 1e-9


def test_all_that_is_launched_on_a_gpu_is_valid_where_the_driver_shows_one(module, place):
    study_part, collectives = module("study_part"), module("collectives_part")
    decisions, options = module("decisions_part"), collectives.SWEEP["cuda"]
    given = dict(zip(options[1::2], options[2::2], strict=True))
    searched = read_study_file(study_part.study_file(place), builtin_study(place.machine))
    talking = collectives.collective_study(place, "in_flight")
    asked = {
        "collective": options[0],
        "adapters": ("c10d",),
        "output_dir": "here",
        "csv": True,
        **{name.removeprefix("--").replace("-", "_"): value for name, value in given.items()},
    }

    plan = read_plan(asked, BenchContext(gpu_count=1))
    told = CollectivesRecipe().job(talking, Config(dict(collectives.KNOBS)))
    small = BuiltinRecipe().job(decisions.small_study(place), Config({"micro_batch": 4}))

    assert isinstance(plan, BenchPlan)
    assert len(space_of(completed(searched)).feasible) > study_part.LEAST_TRIALS["cuda"]
    assert told.environment.items() >= {"NCCL_BUFFSIZE": "1048576", "NCCL_NTHREADS": "256"}.items()
    assert small.world_size == 1
