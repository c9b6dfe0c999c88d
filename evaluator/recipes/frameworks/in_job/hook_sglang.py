"""Runs SGLang's launch line as a trial: a server under `sglang.bench_serving`.

The server, its traffic points and the report are those of the hook of vLLM.
"""

import json
import subprocess
import sys

import hook_vllm as serving


class Bench(serving.Bench):
    """SGLang's load generator, at the traffic points of a study."""

    def __init__(self, url, traffic) -> None:
        self.url, self.traffic = url, traffic
        self.results = serving.FOLDER / "bench"
        self.results.mkdir()

    def at(self, point, number, name, *more):
        """Run the load generator at a point; its result is kept under a name, if it has one.

        Each batch has prompts of its own, the same in every trial: repeated ones would be read from
        the prefix cache. A ratio of 1 makes all lengths equal.
        """
        path = self.results / f"{name or 'unnamed'}.json"
        path.unlink(missing_ok=True)
        words = [
            *(f"--base-url={self.url}", "--backend=sglang", "--dataset-name=random-ids"),
            f"--random-input-len={self.traffic['input_length']}",
            f"--random-output-len={self.traffic['output_length']}",
            *("--random-range-ratio=1", f"--seed={self.traffic['seed'] + number}"),
            *(f"--num-prompts={point['requests']}", "--warmup-requests=0", "--disable-tqdm"),
            *(f"--output-file={path}", "--output-details", *more),
        ]
        if point.get("concurrency"):
            words.append(f"--max-concurrency={point['concurrency']}")
        if point.get("request_rate"):
            words.append(f"--request-rate={point['request_rate']}")
        subprocess.run([sys.executable, "-m", "sglang.bench_serving", *words], check=True)
        return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    serving.Bench = Bench
    serving.measure_server()
