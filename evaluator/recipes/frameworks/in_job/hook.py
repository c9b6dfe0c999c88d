"""Runs the program of a launch line in this process, once a hook has changed its framework.

Importing it makes the folder of the launch line importable, for hooks of frameworks in a checkout.
"""

import os
import runpy
import sys
from pathlib import Path

import cclsearch

_folders = [name for name in os.environ.get("CCLSEARCH_PYTHONPATH", "").split(":") if name]
sys.path[1:1] = _folders
os.environ["PYTHONPATH"] = ":".join(filter(None, [os.environ.get("PYTHONPATH"), *_folders]))


def run_program() -> None:
    """Run `-m MODULE ARGUMENTS` or `SCRIPT ARGUMENTS` of our own arguments as the main program."""
    del sys.argv[0]
    if sys.argv[0].startswith("--local"):  # DeepSpeed's launcher names the rank first
        sys.argv.insert(1 + 2 * (sys.argv[1] == "-m"), sys.argv.pop(0))
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
        runpy.run_path(sys.argv[0], run_name="__main__")


def end_step() -> None:
    """End a step that is timed, and the program after the last one that is asked for."""
    if cclsearch._next_mark():
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_initialized():
            distributed.destroy_process_group()
        sys.exit(0)


def say(text: str) -> None:
    """Print a line that the recipe looks for in the log."""
    sys.stdout.write(f"cclsearch: {text}\n")
    sys.stdout.flush()
