"""A search of 7 trials over ZeRO stages and micro-batches of DeepSpeed, 2 ranks on CPUs."""

import subprocess
from pathlib import Path

from small_search import run_search

STUDY = """
strategy = "offline"
[environment]
world_size = 2
ranks_per_node = 2
[workload]
sequence_length = 128
[space.zero_stage]
choices = [1, 0, 2, 3]
[space.micro_batch]
choices = [4, 2, 8]
[measure]
self_test_rounds = 0
race_rounds = 1
confirm_top = 2
confirm_rounds = 1
max_confirm_rounds = 1
[budget]
trials = 7
"""
FILES = ("train_deepspeed.py", "train_deepspeed.json")
ARGUMENTS = (
    *("train_deepspeed.py", "--deepspeed"),
    *("--deepspeed_config", "train_deepspeed.json"),
)


def search(python: Path, folder: Path) -> bool:
    """Run the search; false where it measured nothing."""
    # Compiled at its first start, for minutes; the recipe refuses to launch before.
    build = "from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder as B; B().load()"
    subprocess.run([str(python), "-c", build], stdout=subprocess.DEVNULL, check=True)
    return run_search("deepspeed", python, folder, STUDY, FILES, ARGUMENTS)
