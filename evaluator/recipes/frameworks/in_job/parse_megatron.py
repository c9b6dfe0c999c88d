"""Asks the parser of Megatron-LM whether it takes lists of arguments; runs in the job's Python.

Beyond parsing, arguments are validated and the configuration of the model is built from them, as
`pretrain_gpt.py` does before it touches a GPU.
"""

import argparse
import contextlib
import io
import json
import os
import sys
from importlib.metadata import version

import torch
from argparse_flags import plain, recorded_flags

if not torch.cuda.is_available():  # the checks ask for the compute capability
    properties = argparse.Namespace(
        major=9, minor=0, multi_processor_count=132, total_memory=80 << 30
    )
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_properties = lambda *_: properties

from megatron.training import arguments

CHECKPOINT = "the model is that of a checkpoint"


def main() -> None:
    """Answer one request of standard input, on the last line of standard output."""
    request = json.load(sys.stdin)
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE=str(request["world_size"]))
    parser = arguments.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    parser = _more_arguments(parser)
    arguments.add_megatron_arguments = lambda _: parser  # making it takes longer than parsing
    listed = [(action, action.default) for action in parser._actions]
    listed = [(action, default) for action, default in listed if isinstance(default, list)]
    parsed, workload = [], {}
    for line in request["lines"]:
        for action, default in listed:  # the checks append to some
            action.default = list(default)
        args, error = _parse(line)
        values = {}
        if args is not None and not parsed:
            values = _values(parser, args)
            workload = _workload(args)
        parsed.append({"error": error, "values": values})
    answer = {
        "versions": {name: version(name) for name in ("megatron-core", "torch")},
        "parsed": parsed,
        "workload": workload,
        "flags": recorded_flags(parser) if request["with_flags"] else None,
    }
    sys.stdout.write(json.dumps(answer) + "\n")


def _parse(line):
    """Return what the parser and its checks make of a line, or what they refuse."""
    sys.argv = ["pretrain_gpt.py", *line]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            args = arguments.parse_args()
            if args.use_checkpoint_args:
                return args, None
            arguments.validate_args(args)
            arguments.core_transformer_config_from_args(args)
    except SystemExit:
        last = (said.getvalue().strip().splitlines() or ["it ended without a word"])[-1]
        return None, last.split("error: ", 1)[-1]
    except Exception as error:  # noqa: BLE001 - checks raise anything
        return None, f"{type(error).__name__}: {error}" if str(error) else _source(error)
    return args, None


def _more_arguments(parser):
    """Add the arguments that `pretrain_gpt.py` has besides."""
    try:
        from megatron.training.argument_utils import add_modelopt_args
    except ImportError:
        return parser
    return add_modelopt_args(parser)


def _source(error):
    """Return the line that a bare assertion stands on."""
    import traceback

    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {last.name}: {last.line}"


def _values(parser, args):
    """Return the value of each flag, as the checks left it."""
    found = {}
    for action in parser._actions:
        names = [name for name in action.option_strings if name.startswith("--")]
        value = plain(getattr(args, action.dest, None))
        if names and isinstance(value, (bool, int, float, str)):
            found[names[0]] = value
    sharding = {"optim_grads": 2, "optim_grads_params": 3}
    stage = sharding.get(args.data_parallel_sharding_strategy, 1)
    is_sharded = args.use_distributed_optimizer
    found["--use-distributed-optimizer"] = stage if args.use_megatron_fsdp else int(is_sharded)
    found["--recompute-granularity"] = args.recompute_granularity or "none"
    found["--cp-comm-type"] = args.cp_comm_type[0]
    found["--num-virtual-stages-per-pipeline-rank"] = args.virtual_pipeline_model_parallel_size or 1
    return found


def _workload(args):
    """Return the sizes of the model and of a step."""
    experts = args.num_experts or 0
    is_latent = getattr(args, "multi_latent_attention", False)
    dense = _dense_layers(args) if experts else None
    return {
        "global_batch": args.global_batch_size,
        "sequence_length": args.seq_length,
        "precision": "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
        "layer_count": args.num_layers,
        "hidden_size": args.hidden_size,
        "head_count": args.num_attention_heads,
        "kv_head_count": (
            args.num_query_groups
            if args.group_query_attention and not is_latent
            else args.num_attention_heads
        ),
        "head_size": args.kv_channels,
        "ffn_size": args.ffn_hidden_size,
        "vocab_size": args.padded_vocab_size or args.vocab_size,
        "expert_count": experts or None,
        "experts_per_token": args.moe_router_topk if experts else None,
        "expert_ffn_size": args.moe_ffn_hidden_size if experts else None,
        "dense_layer_count": dense,
        "seed": args.seed,
    }


def _dense_layers(args):
    frequency = args.moe_layer_freq
    if isinstance(frequency, int):
        return args.num_layers - len(range(0, args.num_layers, frequency))
    return sum(not each for each in frequency)


main()
