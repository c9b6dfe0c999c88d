"""SGLang's server and load generator, as small stand-ins in real processes."""

import subprocess
import sys

import pytest

from evaluator.ports import JobResult
from evaluator.recipes.catalog import framework_recipe
from evaluator.recipes.frameworks.launch_line import LaunchLine
from evaluator.recipes.frameworks.parser import Answer, Parsed
from records.trial import Config
from search import settings
from tests.support.records import study as any_study

SERVER = """
import http.server, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_):
        pass

port = next(int(w.partition("=")[2]) for w in sys.argv if w.startswith("--port="))
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
BENCH = """
import json, sys, urllib.request

given = dict(w[2:].partition("=")[::2] for w in sys.argv[1:])
count, length = int(given["num-prompts"]), int(given["random-output-len"])
for _ in range(count):
    urllib.request.urlopen(given["base-url"] + "/generate").read()
tokens = count * int(given["random-input-len"])
result = {
    "duration": 0.5, "completed": count, "total_input_tokens": tokens,
    "total_output_tokens": count * length, "output_lens": [length] * count,
    "ttfts": [0.1] * count, "itls": [[0.01] * (length - 1)] * count, "errors": [""] * count,
    "given": given,
}
with open(given["output-file"], "a") as file:
    file.write(json.dumps(result) + "\\n")
"""


@pytest.fixture
def server_folder(tmp_path):
    package = tmp_path / "sglang"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text(SERVER)
    (package / "bench_serving.py").write_text(BENCH)
    return tmp_path


def test_a_server_is_loaded_at_each_traffic_point(server_folder):
    recipe = framework_recipe("sglang")
    words = [sys.executable, "-m", "sglang.launch_server", "--model-path", "model"]
    line = LaunchLine.of(words, server_folder)
    sizes = {"global_batch": 8, "sequence_length": 16, "output_length": 4}
    sizes |= {"layer_count": 2, "head_count": 4, "kv_head_count": 4, "ffn_size": 64}
    answer = Answer(versions={"sglang": "0.5.23"}, parsed=(Parsed(),), workload=sizes)
    study = recipe.complete(recipe.study(line, any_study(), answer))
    job = recipe.job(study, Config({"tp": 2}))
    for name, text in job.files.items():
        (server_folder / name).write_text(text)
    (server_folder / "trace").mkdir()
    with (server_folder / "job.log").open("w") as log:
        variables = {"TRACE_DIR": str(server_folder / "trace"), "PYTHONPATH": str(server_folder)}
        subprocess.run(
            job.argv,
            cwd=server_folder,
            env={**settings.trial_environment(), **job.environment, **variables},
            stdout=log,
            stderr=log,
            check=True,
            timeout=240,
        )
    result = JobResult(reason="finished", wall_s=5.0, workdir=server_folder)

    measurement = recipe.read(study, job, result, 0).measurement

    assert measurement.step_times_s == ((0.5,) * study.measure.timed_steps,) * 2
    assert measurement.tokens_per_step == 8 * (16 + 4)
    assert [point.point.concurrency for point in measurement.traffic] == [16, 1, 64]
    assert measurement.traffic[0].ttft.p50_s == pytest.approx(0.1)
