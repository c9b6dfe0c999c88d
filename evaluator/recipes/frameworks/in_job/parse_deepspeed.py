"""Asks DeepSpeed whether it takes configurations, in the job's Python.

An argument is one of the script's, or `path.in.the.configuration=value`, which changes the file
that `--deepspeed_config` or `--deepspeed` names.
"""

import importlib.util
import json
import re
import sys
from difflib import get_close_matches
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import deepspeed
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime import config as runtime_config
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from torch.utils.cpp_extension import _get_build_directory

SIZES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
ON_CPU = "deepspeed_shm_comm"
OFFLOAD = ("offload_param", "offload_optimizer")


def main() -> None:
    """Answer one request of standard input, on the last line of standard output."""
    request = json.load(sys.stdin)
    parsed, workload = [], {}
    for arguments in request["lines"]:
        values, error = {}, None
        try:
            values, work = parse(arguments, request["world_size"])
            workload = workload or work
        except Exception as refusal:  # noqa: BLE001 - whatever it refuses with
            words = " ".join(str(refusal).split()) or type(refusal).__name__
            error = words.split(" For further information", 1)[0]
        parsed.append({"error": error, "values": values})
    answer = {
        "versions": {name: version(name) for name in ("deepspeed", "torch")},
        "parsed": parsed,
        "workload": workload,
        "flags": recorded_flags() if request["with_flags"] else None,
    }
    sys.stdout.write(json.dumps(answer) + "\n")


def parse(arguments, world_size):
    """Return the value of each path of a line's configuration, and the work of its step."""
    document = changed(arguments)
    for key in document:
        if key not in known_keys():
            close = get_close_matches(key, known_keys(), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"DeepSpeed ignores the key {key!r} of its configuration{hint}")
    autos = [size for size in SIZES if document.get(size) == "auto"]
    if autos:
        raise ValueError(
            f"the configuration leaves {autos[0]} to the Trainer of transformers; use --recipe "
            "transformers"
        )
    ready()
    runtime_config.dist = SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda: world_size)
    config = runtime_config.DeepSpeedConfig(dict(document))
    zero = config.zero_config.model_dump(mode="json", by_alias=True)
    values = {f"zero_optimization.{name}": value for name, value in zero.items() if plain(value)}
    for name in OFFLOAD:
        device = (zero.get(name) or {}).get("device") or "none"
        values[f"zero_optimization.{name}.device"] = str(device)
    values["train_micro_batch_size_per_gpu"] = config.train_micro_batch_size_per_gpu
    values["--deepspeed_config"] = json.dumps(document)
    return values, {"global_batch": config.train_batch_size}


def changed(arguments):
    """Return the configuration that a line names, with the paths that it sets."""
    words = " ".join(arguments)
    found = re.search(r"--deepspeed(?:_config)?[ =]([^-\s]\S*\.json|\{.*\})", words)
    if found is None:
        raise ValueError(
            "the launch line names no configuration; start the script with --deepspeed_config "
            "FILE.json, which it reads with deepspeed.add_config_arguments()"
        )
    text = found[1] if found[1].startswith("{") else Path(found[1]).read_text("utf-8")
    document = json.loads(text)
    for word in arguments:
        path, equals, value = word.partition("=")
        if equals and not path.startswith("-") and (path in SIZES or "." in path):
            *tables, key = path.split(".")
            table = document
            for name in tables:
                table = table.setdefault(name, {})
            table[key] = json.loads(value) if re.fullmatch(r"-?[\d.]+|true|false", value) else value
    return document


def ready() -> None:
    """Raise where the first start on a CPU would compile for minutes, or wait forever.

    Each rank loads an extension that is compiled at first use. A launch that is stopped while it
    compiles leaves a lock, and every later one waits for it without a word.
    """
    if get_accelerator().device_name() != "cpu":
        return
    folder = Path(_get_build_directory(ON_CPU, verbose=False))
    if (folder / "lock").exists():
        raise RuntimeError(
            f"an earlier build of {ON_CPU} was stopped, and every launch would wait for its lock "
            f"without end; remove {folder}/lock"
        )
    if not any(folder.glob("*.so")) and importlib.util.find_spec(f"deepspeed.ops.{ON_CPU}") is None:
        raise RuntimeError(
            f"on CPUs DeepSpeed compiles {ON_CPU} at its first start, for minutes, and a launch "
            f"that is stopped meanwhile leaves a lock; build it once: {sys.executable} -c "
            '"from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder as B; B().load()"'
        )


@cache
def known_keys() -> "set[str]":
    """Return the words that DeepSpeed's source has in quotes: it reads no key that is none."""
    sources = Path(deepspeed.__path__[0]).rglob("*.py")
    texts = (path.read_text("utf-8", "replace") for path in sources)
    return {word for text in texts for word in re.findall(r"""["']([a-z]\w{3,})["']""", text)}


def recorded_flags():
    """Return each path of the configuration that could be a knob, and how a line names it."""
    found = {size: {"takes": "int"} for size in SIZES}
    for name, field in DeepSpeedZeroConfig.model_fields.items():
        kind = str(field.annotation)
        takes = "bool" if "bool" in kind else "int" if "int" in kind else "text"
        flag = {"takes": takes}
        if plain(field.default):
            flag["default"] = field.default
        found[f"zero_optimization.{field.alias or name}"] = flag
    found["zero_optimization.stage"] = {"takes": "int", "default": 0, "choices": [0, 1, 2, 3]}
    for name in OFFLOAD:
        del found[f"zero_optimization.{name}"]
        choices = ["none", "cpu", "nvme"]
        found[f"zero_optimization.{name}.device"] = {"choices": choices, "default": "none"}
    found["--deepspeed_config"] = {}
    return found


def plain(value) -> bool:
    """Whether a value is one that a knob can have."""
    return isinstance(value, (bool, int, float, str))


if __name__ == "__main__":
    main()
