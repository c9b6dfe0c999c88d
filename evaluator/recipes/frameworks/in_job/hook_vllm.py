"""Runs vLLM's launch line as a trial: a server under vLLM's own load, or its offline benchmark.

A step is one fixed batch of requests. A server is started on a free port of this machine, gets each
traffic point of `traffic.json` from `vllm bench serve`, whose results stay in TRACE_DIR/bench, and
is stopped. Of `vllm bench throughput` the batch is repeated inside one process.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

import hook

FOLDER = Path(os.environ["TRACE_DIR"])
WARMUP, TIMED, PROFILED = (int(os.environ[f"{n}_STEPS"]) for n in ("WARMUP", "TIMED", "PROFILED"))
STOP_TIMEOUT_S = 60.0
MOST_PROFILED_ITERATIONS = 64
"""A whole batch may take thousands of iterations, which no trace needs to show."""


def main() -> None:
    """Run the launch line in our own arguments, measured."""
    if PROFILED and not any(word.startswith("--profiler-config") for word in sys.argv):
        profiler = {
            "profiler": "torch",
            "torch_profiler_dir": str(FOLDER),
            "torch_profiler_with_stack": False,
            "ignore_frontend": True,
            "max_iterations": MOST_PROFILED_ITERATIONS,
        }
        sys.argv.append(f"--profiler-config={json.dumps(profiler)}")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", cores_by_rank())
    if "bench" in sys.argv[:4]:
        repeat_offline_batch()
        hook.run_program()
    else:
        measure_server()


def cores_by_rank() -> str:
    """Give each rank as many cores: on CPUs vLLM's own choice leaves some out, or finds too few."""
    cores, ranks = sorted(os.sched_getaffinity(0)), int(os.environ["RANK_COUNT"])
    size = max(1, len(cores) // ranks)
    shares = ([cores[(rank * size + n) % len(cores)] for n in range(size)] for rank in range(ranks))
    return "|".join(",".join(map(str, share)) for share in shares)


def repeat_offline_batch() -> None:
    """Have `vllm bench throughput` run its batch once for each step."""
    from vllm.benchmarks import throughput

    run_once = throughput._run_vllm_requests

    def run_steps(llm, requests, *arguments, **options):
        def step():
            llm.reset_prefix_cache()  # or no prompt but those of the first step would be computed
            return run_once(llm, requests, *arguments, **options)

        times_s = []
        for number in range(WARMUP + TIMED):
            beat("warmup" if number < WARMUP else "timed", number)
            elapsed_s, outputs = step()
            times_s.append(elapsed_s)
        tokens = sum(len(each.prompt_token_ids or ()) for each in outputs)
        tokens += sum(len(answer.token_ids) for each in outputs for answer in each.outputs)
        report(times_s, tokens)
        if PROFILED:
            beat("profile", WARMUP + TIMED)
            llm.start_profile()
            step()
            llm.stop_profile()
        beat("done")
        return elapsed_s, outputs

    throughput._run_vllm_requests = run_steps


def measure_server() -> None:
    """Start the server, measure it at each traffic point, and stop it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, *sys.argv[1:], "--host=127.0.0.1", f"--port={port}"]
    server = subprocess.Popen(command)
    try:
        beat("setup")
        url = f"http://127.0.0.1:{port}"
        # Imported while the server loads.
        bench = Bench(url, json.loads(Path("traffic.json").read_text(encoding="utf-8")))
        wait_until_ready(server, url)
        bench.measure()
    finally:
        stop(server)
    beat("done")


def wait_until_ready(server, url) -> None:
    """Return once the server answers; end as it ends where it does not."""
    while True:
        if server.poll() is not None:
            sys.exit(f"the server ended with status {server.returncode} before it was ready")
        with suppress(OSError, HTTPException), urllib.request.urlopen(f"{url}/health", timeout=5):
            return
        time.sleep(0.2)


def stop(server) -> None:
    """End the server and what it started."""
    server.send_signal(signal.SIGTERM)
    try:
        server.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        server.kill()


class Bench:
    """vLLM's load generator, at the traffic points of a study."""

    def __init__(self, url, traffic) -> None:
        from vllm.benchmarks import serve
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        self.url, self.traffic, self.run = url, traffic, serve.main
        self.parser = FlexibleArgumentParser()
        serve.add_cli_args(self.parser)
        self.results = FOLDER / "bench"
        self.results.mkdir()

    def measure(self) -> None:
        """Warm up, time the batch at the first point, then run each of the others once."""
        main_point, *others = self.traffic["points"]
        times_s = []
        for number in range(WARMUP + TIMED):
            is_warm = number >= WARMUP
            beat("timed" if is_warm else "warmup", number)
            name = f"0-{number - WARMUP}" if is_warm else None
            result = self.at(main_point, number, name)
            times_s.append(result["duration"])
        report(times_s, result["total_input_tokens"] + result["total_output_tokens"])
        for number, point in enumerate(others, 1):
            self.at(point, WARMUP + TIMED + number, f"{number}-0")
        if PROFILED:
            beat("profile", WARMUP + TIMED)
            self.at(main_point, WARMUP + TIMED, None, "--profile")

    def at(self, point, number, name, *more):
        """Run the load generator at a point; its result is kept under a name, if it has one.

        Each batch has prompts of its own, the same in every trial: repeated ones would be read from
        the prefix cache.
        """
        with urllib.request.urlopen(f"{self.url}/v1/models", timeout=30) as answer:
            model = json.load(answer)["data"][0]
        words = [
            *(f"--base-url={self.url}", "--backend=openai", "--endpoint=/v1/completions"),
            *(f"--served-model-name={model['id']}", f"--model={model['root']}"),
            *("--dataset-name=random", f"--random-input-len={self.traffic['input_length']}"),
            *(f"--random-output-len={self.traffic['output_length']}", "--random-range-ratio=0"),
            *(f"--seed={self.traffic['seed'] + number}", "--ignore-eos", "--temperature=0"),
            *(f"--num-prompts={point['requests']}", "--percentile-metrics=ttft,tpot,itl,e2el"),
            *("--disable-tqdm", "--num-warmups=0", *self.traffic["words"], *more),
        ]
        if point.get("concurrency"):
            words.append(f"--max-concurrency={point['concurrency']}")
        if point.get("request_rate"):
            words.append(f"--request-rate={point['request_rate']}")
        if name is not None:
            words += ["--save-result", "--save-detailed", f"--result-dir={self.results}"]
            words.append(f"--result-filename={name}.json")
        return self.run(self.parser.parse_args(words))


def beat(phase, step=None) -> None:
    """Record which step begins, for `cclsearch run` and its service to show."""
    line = json.dumps({"phase": phase, "step": step, "at_ns": time.perf_counter_ns()})
    with (FOLDER.parent / "rank0.progress.jsonl").open("a", encoding="utf-8") as beats:
        beats.write(line + "\n")


def report(times_s, tokens) -> None:
    """Write the steps, as those of each rank: one process sees the whole job."""
    from importlib.metadata import PackageNotFoundError, version

    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("vllm", "sglang", "torch", "transformers"):
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    document = {
        "tokens_per_step": tokens,
        "warmup_times_s": [times_s[:WARMUP]],
        "step_times_s": [times_s[WARMUP:]],
        "versions": versions,
        "device_count": int(os.environ["RANK_COUNT"]),
    }
    (FOLDER / "steps.json").write_text(json.dumps(document), encoding="utf-8")


if __name__ == "__main__":
    main()
