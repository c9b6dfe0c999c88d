"""What TorchTitan's own parser makes of lists of arguments: run in the job's Python.

Reads a JSON request from standard input and prints a JSON answer as its last line; it needs
TorchTitan and the standard library only.
"""

import contextlib
import dataclasses
import importlib
import inspect
import io
import json
import re
import sys
import traceback
import typing
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

sys.path.insert(0, ".")  # where `-m torchtitan.train` looks for configurations too
del sys.argv[1:]  # the parser of 0.2 takes what stands there when it is imported

import torch  # noqa: E402
from torch.distributed.pipelining import schedules  # noqa: E402
from torchtitan.config import ConfigManager  # type: ignore[import-not-found] # noqa: E402
from torchtitan.distributed import ParallelDims  # type: ignore[import-not-found] # noqa: E402

CHECKPOINTING = "--activation-checkpoint"
"""Since 0.3 this is a subcommand, activation-checkpoint:full; here it is written as a flag."""
BOX = re.compile(r"[╭╮╰╯│─━]+")
RULE = re.compile(r"-{9,}")


def main() -> None:
    """Answer the request of standard input."""
    request = json.load(sys.stdin)
    configs = [_parsed(line) for line in request["lines"]]
    first = configs[0] if configs else None
    ranks = request["world_size"]
    answer = {
        "versions": {name: version(name) for name in ("torchtitan", "torch")},
        "parsed": [
            {"error": each}
            if isinstance(each, str)
            else {"error": _layout_fault(each, ranks), "values": _values(each, ranks)}
            for each in configs
        ],
        "workload": {} if first is None or isinstance(first, str) else _workload(first, ranks),
        "fixed": _fixed(),
        "flags": _flags() if request.get("with_flags") else None,
    }
    sys.stdout.write(json.dumps(answer) + "\n")


def _parsed(line: list[str]) -> Any:
    """Return the configuration of a list of arguments, or what the parser says against it."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            return ConfigManager().parse_args(line)
    except SystemExit:
        parts = RULE.split(" ".join(BOX.sub(" ", said.getvalue()).split()))
        return parts[min(1, len(parts) - 1)].strip()[:400]  # the first part is a title
    except Exception as error:  # noqa: BLE001 - whatever a configuration of the user's raises
        return f"{type(error).__name__}: {error}"


def _layout_fault(config: Any, ranks: int) -> str | None:
    """Say what the parser lets pass and the trainer refuses; None where nothing is known."""
    try:
        dims = _dims(config, ranks)
    except AssertionError as error:
        line = traceback.extract_tb(error.__traceback__)[-1].line
        return str(error) or f"the degrees do not fit {ranks} ranks: {line}"
    if dims.pp > 1:
        try:
            schedules.get_schedule_class(config.parallelism.pipeline_parallel_schedule)
        except ValueError as error:
            return str(error)
    together = config.training.local_batch_size * dims.dp_replicate * dims.dp_shard
    if config.training.global_batch_size > 0 and config.training.global_batch_size % together:
        return (
            f"global batch size {config.training.global_batch_size} is no multiple of local batch "
            f"size {config.training.local_batch_size} times data-parallel degree "
            f"{dims.dp_replicate * dims.dp_shard}"
        )
    return None


def _dims(config: Any, ranks: int) -> Any:
    own = config.parallelism
    if hasattr(ParallelDims, "from_config"):
        return ParallelDims.from_config(own, ranks)
    return ParallelDims(
        dp_replicate=own.data_parallel_replicate_degree,
        dp_shard=own.data_parallel_shard_degree,
        cp=own.context_parallel_degree,
        tp=own.tensor_parallel_degree,
        pp=own.pipeline_parallel_degree,
        ep=own.expert_parallel_degree,
        etp=own.expert_tensor_parallel_degree,
        world_size=ranks,
    )


def _values(config: Any, ranks: int) -> dict[str, Any]:
    """Return the value of every flag, also of those from a configuration file."""
    values = {flag: value for flag, _, value in _leaves(config) if _is_plain(value)}
    kind = type(config.activation_checkpoint).__qualname__.partition(".")[0]
    if kind.endswith("AC"):
        plain = kind.removesuffix("AC")
        values[CHECKPOINTING] = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", plain).lower()
    elif config.activation_checkpoint is None:
        values[CHECKPOINTING] = "none"
    with contextlib.suppress(AssertionError):
        values["--parallelism.data_parallel_shard_degree"] = _dims(config, ranks).dp_shard
    return values


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _leaves(config: Any, prefix: str = "--") -> Iterator[tuple[str, Any, Any]]:
    """Yield flag, type and value of each field that the command line can set."""
    try:
        hints = typing.get_type_hints(type(config), include_extras=True)
    except NameError:  # of a type that is only imported for checkers
        hints = {}
    for field in dataclasses.fields(config):
        value, hint = getattr(config, field.name), hints.get(field.name)
        if "Suppress" in str(getattr(hint, "__metadata__", "")):
            continue
        if dataclasses.is_dataclass(value):
            if prefix != "--" or not type(value).__qualname__.endswith("AC.Config"):
                yield from _leaves(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", hint, value


def _flags() -> dict[str, Any]:
    """Return the flags of the parser, as a recording has them."""
    if _is_old():
        config = ConfigManager().config
        flags: dict[str, Any] = {}
    else:
        config = ConfigManager().parse_args(["--module", "llama3", "--config", "llama3_debugmodel"])
        flags = {"--module": {}, "--config": {}}
        choices = ["selective", "full", "memory-budget", "none"]
        flags[CHECKPOINTING] = {"choices": choices, "default": "selective"}
    for flag, hint, value in _leaves(config):
        flags[flag] = _flag(flag, hint, value)
    return flags


def _flag(flag: str, hint: Any, value: Any) -> dict[str, Any]:
    own = {"default": value} if value is not None and _is_plain(value) else {}
    text = str(hint)
    if isinstance(value, bool):
        before, _, name = flag.rpartition(".")
        negative = f"{before}.no_{name}" if before else f"--no-{name.lstrip('-')}"
        return {"takes": "switch", "negative": negative, **own}
    choices = [c for each in _literals(hint) for c in typing.get_args(each)]
    if choices:
        return {"choices": choices, **own}
    if isinstance(value, (list, tuple, dict)) or "list" in text:
        return {"takes": "many"}
    if isinstance(value, int) or text in ("int | None", "typing.Optional[int]"):
        is_whole = "float" not in text
        return {"takes": "int" if is_whole else "float", **own}
    if isinstance(value, float) or "float" in text:
        return {"takes": "float", **own}
    return own


def _literals(hint: Any) -> list[Any]:
    parts = (hint, *typing.get_args(hint))
    return [each for each in parts if typing.get_origin(each) is typing.Literal]


def _workload(config: Any, ranks: int) -> dict[str, Any]:
    """Return the work of a step, and the sizes of the model of its flavor."""
    training = config.training
    try:
        dims = _dims(config, ranks)
    except AssertionError:
        return {}
    own_batch = training.local_batch_size * dims.dp_replicate * dims.dp_shard
    work = {
        "global_batch": training.global_batch_size if training.global_batch_size > 0 else own_batch,
        "sequence_length": training.seq_len,
        "precision": "fp32"
        if training.mixed_precision_param == training.dtype == "float32"
        else "bf16",
    }
    with contextlib.suppress(Exception):  # a model that has other parts is searched without sizes
        work |= _old_sizes(config) if _is_old() else _sizes(config)
    return work


def _old_sizes(config: Any) -> dict[str, Any]:
    train_spec = importlib.import_module("torchtitan.protocols.train_spec")
    spec = train_spec.get_train_spec(config.model.name)
    model = spec.model_args[config.model.flavor]
    model.update_from_config(config)
    with torch.device("meta"):
        built = spec.model_cls(model)
    moe: Any = getattr(model, "moe_args", None)
    has_experts = any(hasattr(layer, "moe") for layer in built.layers.values())
    dense = [
        layer.feed_forward for layer in built.layers.values() if hasattr(layer, "feed_forward")
    ]
    ffn = dense[0].w1.weight.shape[0] if dense and dense[0] is not None else None
    return {
        "name": f"{config.model.name}-{config.model.flavor}",
        "layer_count": model.n_layers,
        "hidden_size": model.dim,
        "head_count": model.n_heads,
        "kv_head_count": getattr(model, "n_kv_heads", None) or model.n_heads,
        "ffn_size": ffn,
        "vocab_size": model.vocab_size,
        "parameter_count": sum(each.numel() for each in built.parameters()),
        **(
            {"expert_count": moe.num_experts, "experts_per_token": moe.top_k} if has_experts else {}
        ),
    }


def _sizes(config: Any) -> dict[str, Any]:
    model = config.model_spec.model
    attention = model.layers[0].attention
    dense = [layer.feed_forward for layer in model.layers if layer.feed_forward is not None]
    moe = next((layer.moe for layer in model.layers if layer.moe is not None), None)
    shared = getattr(attention, "qkv_linear", attention)
    kv_heads = getattr(shared, "n_kv_heads", None) or getattr(attention, "n_kv_heads", None)
    experts = moe and {"expert_count": moe.num_experts, "experts_per_token": moe.router.top_k}
    return {
        "name": f"{config.model_spec.name}-{config.model_spec.flavor}",
        "layer_count": len(model.layers),
        "hidden_size": model.dim,
        "head_count": attention.n_heads,
        "kv_head_count": kv_heads or attention.n_heads,
        "ffn_size": dense[0].w1.out_features if dense else None,
        "vocab_size": model.vocab_size,
        **(experts or {}),
    }


def _fixed() -> dict[str, str]:
    """Return knobs that cannot be changed with what is installed, each with the reason."""
    takes = inspect.signature(schedules.PipelineScheduleSingle.step).parameters
    if _is_old() or "arg_mbs" in takes:
        return {}
    return {
        "pp": f"TorchTitan {version('torchtitan')} hands its schedules split micro-batches "
        f"(trainer.py), which torch {torch.__version__} cannot take; use a nightly build"
    }


def _is_old() -> bool:
    """Whether this is a version before 0.3, with --job.config_file and --model.flavor."""
    return tuple(map(int, version("torchtitan").split(".")[:2])) < (0, 3)


if __name__ == "__main__":
    main()
