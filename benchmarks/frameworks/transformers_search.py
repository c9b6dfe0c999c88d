"""A search of 6 trials over strategies and micro-batches of a Trainer, 2 ranks on CPUs."""

from pathlib import Path

from small_search import run_search

STUDY = """
strategy = "offline"
[environment]
world_size = 2
ranks_per_node = 2
[workload]
sequence_length = 128
[space.strategy]
choices = ["ddp", "fsdp", "zero1", "zero3"]
[space.micro_batch]
choices = [4, 8]
[measure]
self_test_rounds = 0
race_rounds = 1
confirm_top = 2
confirm_rounds = 1
max_confirm_rounds = 1
[budget]
trials = 6
"""
FILES = ("train_transformers.py", "cpu_fsdp.py")
ARGUMENTS = ("train_transformers.py", "--per_device_train_batch_size=8", "--use_cpu")


def search(python: Path, folder: Path) -> bool:
    """Run the search; false where it measured nothing."""
    return run_search("transformers", python, folder, STUDY, FILES, ARGUMENTS)
