"""vLLM as a recipe: its flags and rules, the load of a server, and what its clients saw."""

import argparse
import json
import math
import os
import runpy
import shlex
import shutil
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from evaluator.evaluate import TrialEvaluator
from evaluator.launchers.local import LocalLauncher
from evaluator.recipes.frameworks.flags import Flags, folder_of
from evaluator.recipes.frameworks.launch_line import LaunchLine
from evaluator.recipes.frameworks.parser import Answer, Parsed
from evaluator.recipes.frameworks.traffic import read_traffic
from evaluator.recipes.frameworks.vllm import TRAFFIC_FILE, Vllm
from evaluator.recipes.script_output import TraceFolder
from records.errors import StudyError, TraceError
from records.study import Measure, Study
from records.trial import Config, Failed, FailureKind, Measured
from records.workload import TrafficPoint
from search.study.spaces import completed, space_of
from search.study.study_file import builtin_study
from tests.support import records

RECIPE = Vllm()
PARSER = str(folder_of("vllm") / "in_job/parse_vllm.py")
SIZES = {
    "layer_count": 4,
    "hidden_size": 128,
    "head_count": 4,
    "kv_head_count": 2,
    "ffn_size": 352,
    "vocab_size": 512,
    "global_batch": 8,
    "sequence_length": 64,
    "output_length": 16,
}
RESOLVED = {
    "--max-model-len": 256,
    "--max-num-seqs": 256,
    "--max-num-batched-tokens": 2048,
    "--enforce-eager": True,
}
SERVE = "vllm serve org/model --port 80 --max-model-len 256 --tokenizer tok --enforce-eager"
OFFLINE = "vllm bench throughput --model org/model --input-len 64 --num-prompts 3 -tp 2"


def study_of(line: str, *, device: str = "cuda", ranks: int = 4, **sizes: int) -> Study:
    answer = Answer(
        versions={"vllm": "0.32.0"},
        parsed=(Parsed(values=RESOLVED),),
        workload={**SIZES, **sizes},
    )
    base = builtin_study(replace(records.ENVIRONMENT, device=device, world_size=ranks))
    return completed(RECIPE.study(LaunchLine.of(shlex.split(line), Path()), base, answer))


# Arguments.


def test_a_server_keeps_the_users_arguments_but_those_that_a_trial_sets():
    study = study_of(SERVE)

    assert study.command.run == ("vllm", "serve", "org/model", "--tokenizer", "tok", "{args}")
    assert study.workload.phase == "inference"
    assert RECIPE.flags(study, Config({"tp": 2, "max_num_seqs": 64})) == (
        *("--tensor-parallel-size=2", "--pipeline-parallel-size=1", "--data-parallel-size=1"),
        *("--max-model-len=256", "--max-num-seqs=64", "--max-num-batched-tokens=2048"),
        *("--enforce-eager", "--no-async-scheduling"),
    )


def test_a_program_on_the_path_reaches_the_hook_as_a_file(tmp_path):
    program = tmp_path / "vllm"
    program.write_text(f"#!{sys.executable}\n", encoding="utf-8")
    program.chmod(0o755)
    line = LaunchLine.of(shlex.split(SERVE), Path(), search_path=str(tmp_path))

    assert RECIPE.hooked(line)[:4] == (sys.executable, "hook_vllm.py", str(program), "serve")


def test_an_offline_batch_has_the_work_of_the_study():
    study = study_of(OFFLINE)

    assert study.command.run == ("vllm", "bench", "throughput", "--model", "org/model", "{args}")
    assert RECIPE.flags(study, Config({"tp": 2}))[-8:] == (
        *("--dataset-name=random", "--random-input-len=64", "--random-output-len=16"),
        *("--random-range-ratio=0", "--random-prefix-len=0", "--num-prompts=8"),
        *("--num-warmups=0", "--seed=42"),
    )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("line", [SERVE, OFFLINE])
def test_every_argument_that_a_study_can_set_is_one_of_vllm(line, device):
    study, flags = study_of(line, device=device), Flags.of("vllm", "0.32.0")[0]
    knobs = RECIPE.knobs(study)

    for name, knob in knobs.items():
        for choice in knob.choices:
            given = RECIPE.knob_words(study, name, {name: choice})
            assert [*flags.faults(given)] == []
    assert [*flags.faults(RECIPE.flags(study, Config({})))] == []


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"tp": 3}, "heads"),
        ({"max_num_seqs": 512, "max_num_batched_tokens": 256}, "batched_tokens"),
        ({"pp": 8}, "layers"),
        ({"max_model_len": 79}, "lengths"),
        ({"dp": 2}, "offline_replicas"),
        ({"async_scheduling": True}, "cpu_scheduling"),
        ({"attention_backend": "FLASHINFER"}, "cpu_attention"),
        ({"block_size": 16}, "cpu_blocks"),
        ({"chunked_prefill": False, "max_num_batched_tokens": 64, "max_num_seqs": 8}, "whole"),
        ({"expert_parallel": True}, "experts"),
        ({"dcp": 2, "tp": 2}, "dcp"),
    ],
)
def test_what_vllm_refuses_or_ignores_breaks_a_rule_with_its_source(values, rule):
    study = study_of(OFFLINE, device="cpu", ranks=8, expert_count=0)
    names = {**{n: k.default for n, k in RECIPE.knobs(study).items()}, **values}
    names |= {**SIZES, "device": "cpu", "world_size": 8, "expert_count": 0}

    broken = [each for each in RECIPE.rules(study) if each.broken(names)]

    assert any(each.constraint.name.startswith(rule) for each in broken)
    assert all(".py" in each.constraint.reason for each in broken if rule in each.constraint.name)


@pytest.mark.parametrize("line", [SERVE, OFFLINE])
def test_requests_that_the_model_does_not_take_are_refused_before_any_launch(line):
    with pytest.raises(StudyError, match=r"set \[workload\] sequence_length and output_length"):
        study_of(line, sequence_length=250)


@pytest.mark.parametrize(
    ("line", "longest", "found"),
    [
        ([], 4096, (1024, 128)),
        ([], 256, (128, 64)),
        ([], 8, (4, 2)),
        (["--output_len=200"], 256, (56, 200)),
        (["--random-input-len", "1024"], 256, (1024, 64)),
        (["--input-len=100"], 256, (100, 64)),
    ],
)
def test_lengths_that_a_line_leaves_open_fit_into_the_context_of_the_model(line, longest, found):
    parser = argparse.ArgumentParser()
    for kind, default in (("input", 1024), ("output", 128)):
        parser.add_argument(f"--{kind}-len", f"--{kind}_len", type=int)
        parser.add_argument(f"--random-{kind}-len", type=int, default=default)

    lengths = runpy.run_path(PARSER)["lengths"](parser.parse_args(line), line, longest, 1024)

    assert lengths == found


def test_only_what_keeps_the_numbers_and_has_an_effect_is_searched():
    on_cpu, on_gpus = (
        [d.name for d in study_of(SERVE, device=device).space.dimensions]
        for device in ("cpu", "cuda")
    )

    assert {"kv_cache_dtype", "prefix_caching", "attention_backend"}.isdisjoint(on_gpus)
    assert {*on_gpus} - {*on_cpu} == {"async_scheduling"}


def test_on_cpus_one_rank_may_use_all_cores_and_on_gpus_none_is_idle():
    on_cpu, on_gpus = (space_of(study_of(SERVE, device=d, ranks=2)) for d in ("cpu", "cuda"))

    assert {config.values["tp"] for config in on_cpu.feasible} == {1, 2}
    degrees = ([config.values[name] for name in ("tp", "pp", "dp")] for config in on_gpus.feasible)
    assert {math.prod(each) for each in degrees} == {2}


def test_the_memory_of_a_rank_is_at_least_its_weights_and_one_requests_cache():
    estimate = RECIPE.derived(study_of(SERVE))["estimated_memory_bytes"]

    layer = 2 * 128 * 128 + 2 * 128 * 64 + 3 * 128 * 352 + 2 * 128
    weights = 4 * layer + 2 * 512 * 128 + 128
    cache = 2 * 4 * 64 * 80
    assert estimate({"tp": 1, "max_num_seqs": 4}) == 4 * (weights + cache + 4 * 512)
    assert estimate({"tp": 2}) < estimate({"tp": 1}) < 2 * estimate({"tp": 2})


# The load of a server.


def test_a_server_is_loaded_at_each_traffic_point_the_main_one_first():
    study = study_of(SERVE)
    work = replace(study.workload, concurrency=(4, 1), request_rates=(2.5,), global_batch=32)
    files = RECIPE.files(replace(study, workload=work), Config({}))
    traffic = json.loads(files[TRAFFIC_FILE])

    assert traffic["points"] == [
        {"concurrency": 4, "request_rate": None, "requests": 32},
        {"concurrency": 1, "request_rate": None, "requests": 8},
        {"concurrency": None, "request_rate": 2.5, "requests": 32},
    ]
    assert (traffic["input_length"], traffic["output_length"], traffic["seed"]) == (64, 16, 42)
    assert traffic["words"] == ["--tokenizer", "tok"]


BATCH = json.loads((Path(__file__).parent / "vllm_bench_serve_0.32.0.json").read_text("utf-8"))


@pytest.fixture
def bench(tmp_path):
    """Writes results of the load generator, changed, for two traffic points; returns a reader."""

    def read(changes: dict[str, object] | None = None, *, count: int = 5, **work: object):
        study = study_of(SERVE)
        given = replace(study.workload, concurrency=(8, 1), **work)
        folder = tmp_path / "bench"
        folder.mkdir()
        for name in (*(f"0-{batch}" for batch in range(count)), "1-0"):
            text = json.dumps({**BATCH, **(changes or {})})
            (folder / f"{name}.json").write_text(text, encoding="utf-8")
        asked = replace(study, workload=given, measure=Measure(timed_steps=5))
        return read_traffic(TraceFolder(path=tmp_path, launched_ns=0), asked)

    return read


def test_percentiles_are_those_of_the_load_generator(bench):
    main, other = bench(slo_ttft_s=0.06, slo_tpot_s=0.02).results

    assert (main.point, other.point) == (TrafficPoint(concurrency=8), TrafficPoint(concurrency=1))
    assert other.request_count == 16
    assert other.ttft.p50_s == pytest.approx(BATCH["median_ttft_ms"] / 1e3)
    assert other.ttft.p99_s == pytest.approx(BATCH["p99_ttft_ms"] / 1e3)
    assert other.tpot.p50_s == pytest.approx(BATCH["median_tpot_ms"] / 1e3, rel=1e-3)
    assert other.tpot.p99_s == pytest.approx(BATCH["p99_tpot_ms"] / 1e3, rel=1e-2)
    assert other.itl.p50_s == pytest.approx(BATCH["median_itl_ms"] / 1e3)
    assert other.requests_per_s == pytest.approx(BATCH["request_throughput"])
    assert main.output_tokens_per_s == pytest.approx(BATCH["output_throughput"])
    assert main.request_count == 5 * 16
    well = sum(time_s <= 0.06 for time_s in BATCH["ttfts"])
    assert main.goodput == pytest.approx(well / BATCH["duration"])


def test_each_batch_at_the_main_point_is_a_step_of_all_ranks(bench):
    serving = bench().serving(2)

    assert serving.output_tokens_per_step == 16 * 16
    assert [len(rank) for rank in serving.first_token_times_s] == [5, 5]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"errors": ["", "Bad Request"], "completed": 15},
            "failed 1 of 16 requests: 'Bad Request'",
        ),
        ({"output_lens": [16] * 15 + [3]}, "1 answers have 3 tokens, not 16"),
        ({"ttfts": []}, "reports no request"),
        ({"duration": 0}, "a time that is not above 0"),
    ],
)
def test_a_batch_that_did_other_work_is_no_measurement(bench, changes, words):
    found = bench(changes)

    assert isinstance(found, Failed)
    assert words in found.message


def test_a_missing_result_is_named(bench):
    assert bench(count=4).message == "the load generator left no bench/0-4.json"


def test_a_result_that_is_none_is_refused(bench):
    with pytest.raises(TraceError, match="duration"):
        bench({"duration": "long"})


# A whole trial, against a stand-in for vLLM that serves and loads itself over HTTP.

PACKAGE = {
    "vllm/__init__.py": "",
    "vllm/benchmarks/__init__.py": "",
    "vllm/utils/__init__.py": "",
    "vllm/utils/argparse_utils.py": "from argparse import ArgumentParser as FlexibleArgumentParser",
    "vllm/benchmarks/serve.py": f"""
        import json, urllib.request
        from pathlib import Path
        BATCH = json.loads({json.dumps(BATCH)!r})
        def add_cli_args(parser):
            for name in ("base-url", "backend", "endpoint", "served-model-name", "model", "seed",
                         "dataset-name", "random-input-len", "random-output-len", "temperature",
                         "random-range-ratio", "num-prompts", "percentile-metrics", "tokenizer",
                         "num-warmups", "max-concurrency", "result-dir", "result-filename"):
                parser.add_argument(f"--{{name}}")
            for name in ("ignore-eos", "disable-tqdm", "save-result", "save-detailed"):
                parser.add_argument(f"--{{name}}", action="store_true")
        def main(args):
            urllib.request.urlopen(f"{{args.base_url}}/v1/completions", data=b"").read()
            if args.save_result:
                Path(args.result_dir, args.result_filename).write_text(json.dumps(BATCH))
            return {{**BATCH, "total_input_tokens": 512, "total_output_tokens": 128}}
    """,
    "serve.py": """
        import json, sys
        from http.server import BaseHTTPRequestHandler, HTTPServer
        if "--max-num-seqs=1" in sys.argv:
            sys.exit("ValueError: No available memory for the cache blocks.")
        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps({"data": [{"id": "m", "root": "r"}]}).encode())
            do_GET = do_POST = answer
        port = next(word for word in sys.argv if word.startswith("--port=")).partition("=")[2]
        HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
    """,
}


@pytest.fixture
def served(tmp_path):
    """Launches a configuration of the stand-in's server."""
    for name, text in PACKAGE.items():
        path = tmp_path / "package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    study = study_of(SERVE, device="cpu", ranks=2)
    program = (sys.executable, str(tmp_path / "package/serve.py"), "{args}")
    command = replace(
        study.command,
        run=program,
        environment={"CCLSEARCH_PYTHONPATH": "", "PYTHONPATH": str(tmp_path / "package")},
    )
    study = replace(
        study,
        command=command,
        workload=replace(study.workload, concurrency=(2, 1)),
        measure=Measure(warmup_steps=1, timed_steps=5, profiled_steps=0, timeout_s=60),
    )

    def launch(**values: object):
        folder = tmp_path / "trial"
        folder.mkdir()
        launcher = LocalLauncher({"PATH": os.defpath}, threads_per_rank=1)
        try:
            evaluator = TrialEvaluator(RECIPE, launcher, lambda _: None)
            return evaluator.evaluate(study, Config(values), folder)
        finally:
            launcher.close()
            shutil.rmtree(folder)

    return launch


def test_a_server_is_started_loaded_and_stopped(served):
    outcome = served(tp=2)

    assert isinstance(outcome, Measured), outcome
    assert outcome.measurement.step_times_s == ((BATCH["duration"],) * 5,) * 2
    assert [str(each.point) for each in outcome.measurement.traffic] == [
        "2 in flight",
        "1 in flight",
    ]
    assert outcome.metric("ttft_p50") == pytest.approx(BATCH["median_ttft_ms"] / 1e3)
    assert outcome.metric("output_tokens_per_s") == pytest.approx(BATCH["output_throughput"])
    assert outcome.absent["goodput"] == "the workload has no slo_ttft_s or slo_tpot_s"


def test_a_server_that_does_not_start_fails_as_its_log_says(served):
    outcome = served(max_num_seqs=1)

    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.OUT_OF_MEMORY
