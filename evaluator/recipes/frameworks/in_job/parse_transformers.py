"""Asks the parsers of transformers and accelerate about lists of arguments, in the job's Python.

A script that has `TrainingArguments` as options takes them all, others those that its source adds.
"""

import contextlib
import io
import json
import re
import sys
from argparse import ArgumentParser
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from argparse_flags import recorded_flags
from transformers import HfArgumentParser, TrainingArguments

CONFIGS = ("deepspeed", "fsdp_config")


def main() -> None:
    """Answer one request of standard input, on the last line of standard output."""
    request = json.load(sys.stdin)
    launcher, program = request.get("launcher", []), request["program"]
    parsed, workload = [], {}
    for arguments in request["lines"]:
        said = io.StringIO()
        values, error = {}, None
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                values, work = parse(launcher, program, arguments, request["world_size"])
                workload = workload or work
        except SystemExit:
            last = (said.getvalue().strip().splitlines() or ["it ended without a word"])[-1]
            error = last.split("error: ", 1)[-1]
        except Exception as refusal:  # noqa: BLE001 - whatever it refuses with
            error = " ".join(str(refusal).split()) or type(refusal).__name__
        parsed.append({"error": error, "values": values})
    flags = None
    if request["with_flags"]:
        flags = {**recorded_flags(launch_command_parser()), **recorded_flags(training_options())}
    answer = {
        "versions": dict(versions()),
        "parsed": parsed,
        "workload": workload,
        "flags": flags,
    }
    sys.stdout.write(json.dumps(answer) + "\n")


def parse(launcher, program, arguments, world_size):
    """Return the value of each flag of a line, and the work of its step."""
    options = training_options()
    given, _ = options.parse_known_args(arguments)
    own = script_options(program)
    if own is None:
        check(given)
    names = [a.dest for a in options._actions if own is None or a.dest in own]
    values = {f"--{name}": plain(getattr(given, name)) for name in names if hasattr(given, name)}
    # 5.23 has both names, 5.22 only the old one.
    recompute = getattr(given, "activation_checkpointing", None) or given.gradient_checkpointing
    values["--gradient_checkpointing"] = bool(recompute)
    for name in CONFIGS:
        if own is None and getattr(given, name) is not None:
            document = config(getattr(given, name))
            values[f"--{name}"] = json.dumps(document)
            values |= {path: plain(value) for path, value in paths(name, document)}
    values["strategy"] = strategy(given)
    if "launch" in launcher:
        values |= launched(launcher, program, arguments, world_size)
    batch = {"per_device_train_batch_size", "gradient_accumulation_steps"}
    if own is not None and not batch & own:
        return values, {}
    micro_batches = given.gradient_accumulation_steps * world_size
    return values, {"global_batch": given.per_device_train_batch_size * micro_batches}


def training_options() -> ArgumentParser:
    """Return the parser of TrainingArguments."""
    parser = HfArgumentParser(TrainingArguments)
    parser.allow_abbrev = False  # the script has options besides, which may begin alike
    return parser


def script_options(program):
    """Return the options that a script adds itself; None where it has TrainingArguments."""
    path = Path(program[-1]) if program else None
    if path is None or not path.is_file():
        return None
    text = path.read_text("utf-8", "replace")
    if re.search(r"HfArgumentParser|TrlParser|TrainingArguments", text):
        return None
    return set(re.findall(r"""add_argument\(\s*["']--([\w-]+)""", text.replace("-", "_")))


def check(given) -> None:
    """Raise what TrainingArguments refuse; sharding, which needs its ranks, is left out."""
    settings = {name: value for name, value in vars(given).items() if value is not None}
    for name in ("fsdp", "fsdp_config", "deepspeed"):
        settings.pop(name, None)
    TrainingArguments(**settings)


def config(text):
    """Return a configuration that is given as a file or as JSON."""
    if text.startswith("{"):
        return json.loads(text)
    return json.loads(Path(text).read_text("utf-8"))


def paths(name, document):
    """Yield what a configuration sets, by the paths that are knobs."""
    if name == "fsdp_config":
        yield from ((f"{name}.{key.removeprefix('fsdp_')}", v) for key, v in document.items())
        return
    zero = document.get("zero_optimization", {})
    yield from ((f"zero_optimization.{key}", value) for key, value in zero.items())


def strategy(given) -> str:
    """Return how ranks share the model, as the arguments ask for it."""
    if given.deepspeed is not None:
        stage = config(given.deepspeed).get("zero_optimization", {}).get("stage", 0)
        return f"zero{stage}"
    return "fsdp" if given.fsdp else "ddp"


def launched(launcher, program, arguments, world_size):
    """Return what accelerate's launcher is asked for; raises for what it refuses."""
    words = launcher[launcher.index("launch") + 1 :]
    args = launch_command_parser().parse_args([*words, *program[-1:], *arguments])
    if args.cpu and world_size > 1:
        raise ValueError(
            "accelerate launch --cpu starts one process, whatever --num_processes says "
            "(accelerate/commands/launch.py, launch_command); start the script with torchrun"
        )
    args, *_ = _validate_launch_command(args)
    if args.use_deepspeed:
        return {"strategy": f"zero{args.zero_stage if args.zero_stage is not None else 2}"}
    return {"strategy": "fsdp"} if args.use_fsdp else {}


def plain(value):
    """Return a value as JSON has it."""
    value = getattr(value, "value", value)
    return value if isinstance(value, (bool, int, float, str)) else None


def versions():
    """Yield what is installed, by name."""
    for name in ("transformers", "accelerate", "torch", "deepspeed"):
        with contextlib.suppress(PackageNotFoundError):
            yield name, version(name)


if __name__ == "__main__":
    main()
