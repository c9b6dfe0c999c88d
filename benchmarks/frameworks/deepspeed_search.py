"""A search over ZeRO stages and micro-batches of DeepSpeed, 2 ranks on CPUs, and the same by hand.

deepspeed_search.py PYTHON FOLDER. Prints the best of the search beside a sweep in turns of the same
configurations, which the script times.
"""

import itertools
import json
import subprocess
import sys
from pathlib import Path

from small_search import run_search, sweep

STAGES = (1, 0, 2, 3)
MICRO_BATCHES = (4, 2, 8)
STUDY = f"""
strategy = "offline"
[environment]
world_size = 2
ranks_per_node = 2
[workload]
sequence_length = 128
[space.zero_stage]
choices = {[*STAGES]}
[space.micro_batch]
choices = {[*MICRO_BATCHES]}
[measure]
self_test_rounds = 0
confirm_top = 2
[budget]
trials = 7
"""
FILES = ("train_deepspeed.py", "train_deepspeed.json")
ARGUMENTS = (
    *("train_deepspeed.py", "--deepspeed"),
    *("--deepspeed_config", "train_deepspeed.json"),
)
TIMES = """
if engine.global_rank == 0:
    times_s = [end - start for start, end in itertools.pairwise(ends.values())]
    print("STEPS", *times_s[2:])
"""
STEPS = 14


def search(python: Path, folder: Path) -> bool:
    """Search, then sweep by hand; false where the search measured nothing."""
    # Compiled at its first start, for minutes; the recipe refuses to launch before.
    build = "from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder as B; B().load()"
    subprocess.run([str(python), "-c", build], stdout=subprocess.DEVNULL, check=True)
    searched_s = run_search("deepspeed", python, folder, STUDY, FILES, ARGUMENTS)
    sweep_by_hand(python, folder, searched_s)
    return searched_s is not None


def sweep_by_hand(python: Path, folder: Path, searched_s: float | None) -> None:
    """Time every configuration with the script alone."""
    script = (folder / FILES[0]).read_text(encoding="utf-8")
    script = script.replace("import argparse\n", "import argparse\nimport itertools\nimport time\n")
    script = script.replace("while engine", "ends = {}\nwhile engine")
    script = script.replace(
        "        engine.step()\n",
        "        engine.step()\n        ends[engine.global_steps] = time.perf_counter()\n",
    )
    (folder / "by_hand.py").write_text(script + TIMES, encoding="utf-8")
    usual = json.loads((folder / FILES[1]).read_text(encoding="utf-8"))
    lines = {}
    for stage, size in itertools.product(STAGES, MICRO_BATCHES):
        batch = usual["train_batch_size"]
        config = {
            **usual,
            "train_micro_batch_size_per_gpu": size,
            "gradient_accumulation_steps": batch // (2 * size),
            "zero_optimization": {"stage": stage},
        }
        name = f"by_hand_{stage}_{size}.json"
        (folder / name).write_text(json.dumps(config), encoding="utf-8")
        words = ["by_hand.py", "--deepspeed", f"--deepspeed_config={name}", f"--steps={STEPS}"]
        lines[f"ZeRO {stage}, micro-batch {size}"] = words
    sweep(lines, python, folder, STEPS, searched_s)


if __name__ == "__main__":
    sys.exit(0 if search(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute()) else 1)
