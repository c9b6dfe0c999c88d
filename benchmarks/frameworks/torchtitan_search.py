"""TorchTitan for real on two CPU ranks: a search, and every point of its space by hand.

torchtitan_search.py PYTHON FOLDER. PYTHON is that of an environment of its own, which gets a
`sitecustomize` that lets TorchTitan train on CPUs and gloo. Prints the best of the search beside a
sweep in turns of the same configurations, and what each trial cost beyond its job.
"""

import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from datetime import datetime
from itertools import product
from pathlib import Path

from overhead import print_overhead

HERE = Path(__file__).parent / "torchtitan_cpu"
LAYOUTS = (
    {"dp_replicate": 1, "dp_shard": 2, "tp": 1},
    {"dp_replicate": 2, "dp_shard": 1, "tp": 1},
    {"dp_replicate": 1, "dp_shard": 1, "tp": 2},
)
DEGREES = {
    "dp_replicate": "data_parallel_replicate_degree",
    "dp_shard": "data_parallel_shard_degree",
    "tp": "tensor_parallel_degree",
}
CHECKPOINT = "activation-checkpoint"
STEPS = 8
OLD = "--model.name llama3 --model.flavor debugmodel --model.hf-assets-path tokenizer \
--training.dataset c4_test --training.dataset-path documents"
NEW = "--module cpu_configs --config llama3_cpu --hf-assets-path tokenizer \
--dataloader.dataset-path documents"
SCRIPT = """#!/usr/bin/env bash
set -e
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1
torchrun --nproc_per_node=${{NGPU:-2}} -m torchtitan.train {model} --training.seq-len 64 \\
  --training.global-batch-size 16 --training.local-batch-size 8 \\
  --training.mixed-precision-param float32 "$@"
"""
SPACE = """
[space.dp_replicate]
choices = [1, 2]
[space.dp_shard]
choices = [2, 1]
[space.tp]
choices = [1, 2]
[space.micro_batch]
choices = [8, 2]
[space.activation_checkpointing]
choices = ["selective", "none"]
[measure]
self_test_rounds = 1
[budget]
trials = {trials}
max_wall_s = 600
"""


def search(python, folder, trials=7, rounds=2):
    """Search and sweep with the TorchTitan of a Python; return whether nothing failed."""
    (libraries,) = python.parents[1].glob("lib/python*/site-packages")
    shutil.copy(HERE / "sitecustomize.py", libraries)
    shutil.copy(HERE / "cpu_configs.py", folder)
    subprocess.run([str(python), str(HERE / "write_data.py"), str(folder)], check=True)
    is_old = not (libraries / "torchtitan/trainer.py").exists()
    (folder / "train.sh").write_text(SCRIPT.format(model=OLD if is_old else NEW), encoding="utf-8")
    (folder / "small.toml").write_text(SPACE.format(trials=trials), encoding="utf-8")
    line = ["--recipe", "torchtitan", "--baseline", "train.sh", "-c", "small.toml"]
    ours = dict(os.environ)  # noqa: TID251 - a benchmark is started by hand
    environment = {**ours, "PATH": f"{python.parent}:{ours['PATH']}", "CCLSEARCH_STORE": "store"}

    command = [sys.executable, "-m", "search", "run", *line]
    began = time.perf_counter()
    searched = subprocess.run(
        command, cwd=folder, env=environment, check=False, capture_output=True, text=True
    )
    searched_s = time.perf_counter() - began
    print(searched.stderr, searched.stdout, f"search: {searched_s:.0f} s")
    is_clean = searched.returncode == 0 and "FAILED" not in searched.stderr + searched.stdout
    return sweep(folder, environment, rounds, searched_s, is_old=is_old) and is_clean


def sweep(folder, environment, rounds, searched_s, *, is_old):
    """Start every configuration by hand, in turns; print them, the fastest first."""
    times, beside_s = defaultdict(list), []
    for _, layout, batch, kept in product(range(rounds), LAYOUTS, (8, 2), ("selective", "none")):
        words = [f"--parallelism.{DEGREES[name]}={n}" for name, n in layout.items()]
        words += [f"--training.local_batch_size={batch}", f"--training.steps={STEPS}"]
        words += ["--metrics.log_freq=1", "--metrics.disable_color_printing"]
        words.append(f"--activation_checkpoint.mode={kept}" if is_old else f"{CHECKPOINT}:{kept}")
        began = time.perf_counter()
        ended = subprocess.run(
            ["bash", "train.sh", *words],
            cwd=folder,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
        )
        name = " ".join(f"{n}={v}" for n, v in {**layout, "micro_batch": batch}.items())
        name += f" activation_checkpointing={kept}"
        took_s = time.perf_counter() - began
        if steps_s := step_times_s(ended.stdout + ended.stderr):
            beside_s.append(took_s - STEPS * statistics.median(steps_s))
        times[name] += steps_s
    for name, found in sorted(times.items(), key=lambda each: statistics.median(each[1] or [9e9])):
        print(f"{statistics.median(found):.3f} s" if found else "FAILED", name)
    print_overhead(folder / "store", searched_s, beside_s)
    return all(times.values())


def step_times_s(log):
    """Return the times between lines of steps of one rank, without warm-up."""
    found = re.findall(r"\] (\S+ \S+),(\d+) - .*? step: +(\d+) ", log)
    ends = {int(n): datetime.fromisoformat(f"{at}.{ms}") for at, ms, n in found}
    return [
        (ends[n] - ends[n - 1]).total_seconds()
        for n in range(4, STEPS + 1)
        if {n, n - 1} <= ends.keys()
    ]


if __name__ == "__main__":
    sys.exit(0 if search(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute()) else 1)
