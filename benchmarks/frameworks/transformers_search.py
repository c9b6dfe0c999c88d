"""A search over strategies and micro-batches of a Trainer, 2 ranks on CPUs, and the same by hand.

transformers_search.py PYTHON FOLDER. Prints the best of the search beside a sweep in turns of the
same configurations, which a callback in the script times.
"""

import itertools
import json
import sys
from pathlib import Path

from small_search import run_search, sweep

STRATEGIES = ("ddp", "fsdp")
MICRO_BATCHES = (4, 8)
GLOBAL_BATCH = 16
STUDY = f"""
strategy = "offline"
[environment]
world_size = 2
ranks_per_node = 2
[workload]
global_batch = {GLOBAL_BATCH}
sequence_length = 128
[space.strategy]
choices = {[*STRATEGIES]}
[space.micro_batch]
choices = {[*MICRO_BATCHES]}
[measure]
self_test_rounds = 0
race_rounds = 1
confirm_top = 3
confirm_rounds = 2
max_confirm_rounds = 3
[budget]
trials = 4
"""
FILES = ("train_transformers.py", "cpu_fsdp.py")
ARGUMENTS = ("train_transformers.py", "--per_device_train_batch_size=8", "--use_cpu")
TIMED = """
class Steps(TrainerCallback):
    ends = []
    def on_step_end(self, *_, **__):
        self.ends.append(time.perf_counter())
    def on_train_end(self, arguments, *_, **__):
        if arguments.process_index == 0:
            print("STEPS", *(end - begin for begin, end in itertools.pairwise(self.ends[2:])))
"""
STEPS = 14


def main() -> int:
    return 0 if search(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute()) else 1


def search(python: Path, folder: Path) -> bool:
    """Search, then sweep by hand; false where the search measured nothing."""
    searched_s = run_search("transformers", python, folder, STUDY, FILES, ARGUMENTS)
    sweep_by_hand(python, folder, searched_s)
    return searched_s is not None


def sweep_by_hand(python: Path, folder: Path, searched_s: float | None) -> None:
    """Time every configuration with the script alone."""
    script = (folder / "train_transformers.py").read_text(encoding="utf-8")
    script = script.replace('"""\n', '"""\nimport itertools, time\n', 1)
    script = script.replace("    Trainer,\n", "    Trainer,\n    TrainerCallback,\n")
    script = script.replace("tokens = ", f"{TIMED}\ntokens = ", 1)
    script = script.replace("train_dataset=samples", "train_dataset=samples, callbacks=[Steps()]")
    (folder / "by_hand.py").write_text(script, encoding="utf-8")
    lines = {}
    for strategy, size in itertools.product(STRATEGIES, MICRO_BATCHES):
        words = ["by_hand.py", *_words(strategy)]
        words += [f"--per_device_train_batch_size={size}", f"--max_steps={STEPS}"]
        words += [f"--gradient_accumulation_steps={GLOBAL_BATCH // (2 * size)}"]
        words += ["--report_to=none", "--save_strategy=no", "--disable_tqdm=true"]
        lines[f"{strategy}, micro-batch {size}"] = words
    sweep(lines, python, folder, STEPS, searched_s)


def _words(strategy: str) -> list[str]:
    if strategy == "fsdp":
        return ["--use_cpu=true", "--fsdp", "--fsdp_config", json.dumps({"version": 2})]
    return ["--use_cpu=true"]


if __name__ == "__main__":
    sys.exit(main())
