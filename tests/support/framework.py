"""A small framework with a recipe of its own: real processes, of some milliseconds a step.

`toy` has a parser, a training loop and a launcher; the recipe knows it as recipes know frameworks.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from evaluator.recipes import catalog, frameworks

LAUNCHER = f"""#!{sys.executable} -S
import os, subprocess, sys
count = next(int(w.partition("=")[2]) for w in sys.argv if w.startswith("--nproc"))
words = [w for w in sys.argv[1:] if not w.startswith(("--nproc", "--standalone"))]
ranks = [
    subprocess.Popen(
        [{sys.executable!r}, *words],
        env={{**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}},
    )
    for rank in range(count)
]
sys.exit(max(rank.wait() for rank in ranks))
"""

CONFIG = """
import argparse

def parser():
    parser = argparse.ArgumentParser(prog="toy")
    for name in ("data-parallel", "tensor-parallel", "steps", "seed", "shift"):
        parser.add_argument(f"--{name}", type=int, default=1)
    parser.add_argument("--micro-batch", "-b", type=int, default=4)
    parser.add_argument("--mode", choices=["plain", "fast", "ghost"], default="plain")
    parser.add_argument("--fused", action="store_true")
    parser.add_argument("--note", default="")
    parser.add_argument("--hub-token")
    parser.add_argument("--log-dir")
    return parser

def parsed(words, world_size):
    options = parser().parse_args(words)
    if options.data_parallel * options.tensor_parallel != world_size:
        raise ValueError(f"degrees do not multiply to {world_size} ranks")
    if options.mode == "ghost" and options.micro_batch == 1:
        raise ValueError("ghost takes pairs")
    return options
"""

TRAINER = """
import time

class Trainer:
    def __init__(self, options):
        self.options = options

    def train_step(self):
        faster = (0.5 if self.options.mode == "fast" else 1) * (0.5 if self.options.fused else 1)
        time.sleep(0.02 * faster * (1 + 1 / self.options.micro_batch))
"""

TRAIN = """
import os, sys
from toy.config import parsed
from toy.trainer import Trainer

options = parsed(sys.argv[1:], int(os.environ["WORLD_SIZE"]))
print("mode", "plain" if options.mode == "ghost" else options.mode)
print("arguments", *sys.argv[1:])
print("variables", *sorted(os.environ), flush=True)
trainer = Trainer(options)
for _ in range(options.steps):
    trainer.train_step()
"""

HOOK = """
import os
import hook
import cclsearch
from toy import trainer

plain = trainer.Trainer.train_step

def timed(self):
    cclsearch._first_mark()
    plain(self)
    cclsearch.log(tokens=128 // int(os.environ["WORLD_SIZE"]), loss=1.0)
    cclsearch._next_mark()

trainer.Trainer.train_step = timed
hook.run_program()
"""

PARSER = """
import contextlib, io, json, os, sys

asked = json.load(sys.stdin)
if os.environ.get("TOY_MISSING"):
    import toy_that_is_missing
from toy import __version__
from toy.config import parsed

def answer(words):
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            options = parsed(words, asked["world_size"])
    except SystemExit:
        return {"error": said.getvalue().strip().splitlines()[-1]}
    except ValueError as error:
        return {"error": str(error)}
    values = {f"--{name.replace('_', '-')}": value for name, value in vars(options).items()}
    return {"error": None, "values": values}

print("noise of the framework")
print(json.dumps({
    "versions": {"toy": __version__, "python": sys.version.split()[0]},
    "parsed": [answer(words) for words in asked["lines"]],
    "workload": {"global_batch": 8, "sequence_length": 16},
}))
"""

RECIPE = """
from evaluator.recipes.frameworks.framework import FrameworkRecipe


class Toy(FrameworkRecipe):
    name = "toy"
"""

TABLE = """
title = "Toy"
packages = ["toy"]
programs = ["toy[./]train"]
rank_count = "dp * tp"
work = ["--steps={steps}", "--seed={seed}"]
dropped = ["--log-dir"]

[knobs.dp]
description = "data-parallel ranks"
flag = "--data-parallel"
default = 1
degree = true

[knobs.tp]
description = "tensor-parallel ranks"
flag = "--tensor-parallel"
default = 1
degree = true

[knobs.micro_batch]
description = "sequences at a time"
flag = "--micro-batch"
default = 4
choices = [1, 2, 4, 8]

[knobs.mode]
description = "how a step is computed"
flag = "--mode"
default = "eager"
choices = ["eager", "fast", "ghost"]
values = { eager = "plain" }

[knobs.fused]
description = "one kernel for a step"
flag = "--fused"
spelling = "switch"
default = false
when = "tp == 1"

[knobs.shift]
description = "where the data begins"
flag = "--shift"
default = 1
choices = [-1, 1]
searched = false

[rules]
whole_batch = [
    "global_batch % (dp * micro_batch) == 0",
    "the batch is cut evenly (toy/config.py:9)",
]

[[evidence]]
when = "mode == 'ghost'"
log = "mode ghost"
reason = "toy names the mode that it trains in"

[[evidence]]
when = "tp > 1"
collectives = ["all_reduce"]
reason = "ranks of a tensor-parallel group add up their results"
"""

SCHEMA = """{"framework": "toy", "version": "1.0", "style": "dashes", "flags": {
  "--data-parallel": {"takes": "int", "default": 1},
  "--fused": {"takes": "switch"},
  "--hub-token": {},
  "--log-dir": {},
  "--micro-batch": {"takes": "int", "default": 4, "also": ["-b"]},
  "--mode": {"choices": ["plain", "fast", "ghost"], "default": "plain"},
  "--note": {},
  "--seed": {"takes": "int"},
  "--shift": {"takes": "int"},
  "--steps": {"takes": "int"},
  "--tensor-parallel": {"takes": "int", "default": 1}
}}
"""


@contextmanager
def toy_framework(folder: Path) -> Iterator[Path]:
    """Install the framework and its recipe; gives the folder where `bin/torchrun` is."""
    written = {
        "bin/torchrun": LAUNCHER,
        "toy/__init__.py": '__version__ = "1.0"\n',
        "toy/config.py": CONFIG,
        "toy/trainer.py": TRAINER,
        "toy/train.py": TRAIN,
        "recipe/toy.py": RECIPE,
        "recipe/toy.toml": TABLE,
        "recipe/schemas/toy-1.0.json": SCHEMA,
        "recipe/in_job/parse_toy.py": PARSER,
        "recipe/in_job/hook_toy.py": HOOK,
    }
    for name, text in written.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (folder / "bin" / "torchrun").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frameworks, "__path__", [*frameworks.__path__, str(folder / "recipe")])
        patch.setitem(catalog.FRAMEWORKS, "toy", "Toy")
        yield folder
        for name in [each for each in sys.modules if each == f"{frameworks.__name__}.toy"]:
            del sys.modules[name]
