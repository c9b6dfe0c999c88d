"""MaxText for real on four CPU devices: a search, and every point of its space by hand.

maxtext_search.py PYTHON FOLDER. Prints the best of the search beside a sweep in turns of the same
configurations. One process drives all devices; XLA_FLAGS says how many there are. With more devices
than cores XLA's collectives may wait for each other until it gives up: such launches hang by hand
as well.
"""

import os
import re
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from datetime import datetime
from itertools import pairwise, product
from pathlib import Path

from overhead import print_overhead

BASELINE = Path(__file__).parent / "maxtext.sh"
DEVICES = 4
STEPS = 14
LAYOUTS = ((1, 4, 1), (2, 2, 1), (4, 1, 1), (1, 2, 2), (2, 1, 2))
"""Degrees of data parallelism, of sharding, and of tensor parallelism."""
SPACE = """
[space.dp]
choices = [1, 2, 4]
[space.dp_shard]
choices = [4, 2, 1]
[space.tp]
choices = [1, 2]
[space.activation_checkpointing]
choices = ["full", "minimal"]
[measure]
self_test_rounds = 1
[budget]
trials = {trials}
max_wall_s = 900
"""


def search(python, folder, trials=6, rounds=2):
    """Search and sweep with the MaxText of a Python; return whether nothing but hangs failed."""
    script = BASELINE.read_text(encoding="utf-8").replace("\npython ", f"\n{python} ")
    count = f"export XLA_FLAGS=--xla_force_host_platform_device_count={DEVICES}\n"
    (folder / "train.sh").write_text(count + script, encoding="utf-8")
    (folder / "small.toml").write_text(SPACE.format(trials=trials), encoding="utf-8")
    line = ["--recipe", "maxtext", "--baseline", "train.sh", "-c", "small.toml"]
    ours = dict(os.environ)  # noqa: TID251 - a benchmark is started by hand
    environment = {**ours, "CCLSEARCH_STORE": "store"}
    began = time.perf_counter()
    searched = subprocess.run(
        [sys.executable, "-m", "search", "run", *line],
        cwd=folder,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    searched_s = time.perf_counter() - began
    print(searched.stderr, searched.stdout, f"search: {searched_s:.0f} s")
    sweep(folder, {**environment, "JAX_PLATFORMS": "cpu"}, rounds, searched_s)
    failed = re.findall(r"FAILED (\w+)", searched.stderr + searched.stdout)
    return searched.returncode == 0 and {*failed} <= {"hang"}


def sweep(folder, environment, rounds, searched_s):
    """Start every configuration by hand, in turns; print them, the fastest first."""
    times, failed, beside_s = defaultdict(list), Counter(), []
    for _, (dp, shard, tp), kept in product(range(rounds), LAYOUTS, ("full", "minimal")):
        words = [f"ici_data_parallelism={dp}", f"ici_fsdp_parallelism={shard}"]
        words += [f"ici_tensor_parallelism={tp}", f"remat_policy={kept}", f"steps={STEPS}"]
        words += [f"gradient_accumulation_steps={tp}", "learning_rate_schedule_steps=10000"]
        words += [f"per_device_batch_size={4 // tp}"]
        began = time.perf_counter()
        ended = subprocess.run(
            ["bash", "train.sh", *words],
            cwd=folder,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
        )
        name = f"dp={dp} dp_shard={shard} tp={tp} {kept}"
        took_s = time.perf_counter() - began
        steps_s = step_times_s(ended.stdout + ended.stderr)
        if ended.returncode == 0:
            beside_s.append(took_s - STEPS * statistics.median(steps_s))
        times[name] += steps_s
        failed[name] += ended.returncode != 0
    for name, found in sorted(times.items(), key=lambda each: statistics.median(each[1] or [9e9])):
        value = f"{statistics.median(found):.3f} s" if found else "no step"
        print(value, name, f"({failed[name]} of {rounds} launches failed)" if failed[name] else "")
    print_overhead(folder / "store", searched_s, beside_s)


def step_times_s(log):
    """Return the times between lines of steps: what they say is when a step was handed over."""
    found = re.findall(r"(\d\d:\d\d:\d\d\.\d+) .*?completed step: \d+", log)
    ends = [datetime.strptime(each, "%H:%M:%S.%f") for each in found]
    return [(end - start).total_seconds() for start, end in pairwise(ends)][3:]


if __name__ == "__main__":
    sys.exit(0 if search(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute()) else 1)
