"""Asks the parser of SGLang whether it takes lists of arguments; runs in the job's Python.

Beyond parsing, arguments are resolved and checked where there is a GPU. The configuration of the
model gives the sizes.
"""

import argparse
import contextlib
import io
import json
import logging
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from argparse_flags import plain, recorded_flags
from sglang.srt.server_args import ServerArgs

REQUESTS, PROMPT, ANSWER = 64, 512, 128
"""Requests of a batch, and their tokens where the context of the model is long enough."""


def main() -> None:
    """Answer one request of standard input, on the last line of standard output."""
    request = json.load(sys.stdin)
    parser = argparse.ArgumentParser(prog="sglang")
    ServerArgs.add_cli_args(parser)
    logging.disable(logging.ERROR)
    parsed, workload = [], {}
    for line in request["lines"]:
        args, error = _parse(parser, line)
        values = {}
        if args is not None and not parsed:
            values = _values(parser, args)
            workload = _workload(args)
        parsed.append({"error": error, "values": values})
    answer = {
        "versions": {name: version(name) for name in ("sglang", "torch")},
        "parsed": parsed,
        "workload": workload,
        "flags": recorded_flags(parser) if request["with_flags"] else None,
    }
    sys.stdout.write(json.dumps(answer) + "\n")


def _parse(parser, line):
    """Return what the parser and its checks make of a line, or what they refuse."""
    words = line[1:] if line[:1] == ["serve"] else line
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            args = parser.parse_args(words)
            server = ServerArgs.from_cli_args(args)
            if torch.cuda.is_available():  # the checks look for it, and for kernels
                server.resolve_once()
                server.check_server_args()
    except SystemExit:
        last = (said.getvalue().strip().splitlines() or ["it ended without a word"])[-1]
        return None, last.split("error: ", 1)[-1]
    except Exception as error:  # noqa: BLE001 - checks raise anything
        return None, f"{type(error).__name__}: {error}"
    return args, None


def _values(parser, args):
    """Return the value of each flag that the line sets or that has a default."""
    found = {}
    for action in parser._actions:
        names = sorted(action.option_strings, key=lambda name: not name.startswith("--"))
        value = plain(getattr(args, action.dest, None))
        if names and isinstance(value, (bool, int, float, str)):
            found[names[0]] = value
    return found


def _workload(args):
    """Return a batch of requests, and the sizes of the model where it lies in a folder."""
    path = Path(args.model_path) / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    config = config.get("text_config", config)
    longest = args.context_length or config.get("max_position_embeddings") or PROMPT + ANSWER
    batch = {
        "global_batch": REQUESTS,
        "sequence_length": max(1, min(PROMPT, longest // 2)),
        "output_length": max(1, min(ANSWER, longest // 4)),
    }
    return {**batch, **_sizes(config)} if config else batch


def _sizes(config):
    """Return the sizes of a model by its configuration."""
    experts = next(
        (
            config[name]
            for name in ("num_experts", "n_routed_experts", "num_local_experts")
            if config.get(name)
        ),
        None,
    )
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    return {
        "precision": {"float32": "fp32", "float16": "fp16"}.get(dtype, "bf16"),
        "layer_count": config.get("num_hidden_layers"),
        "hidden_size": config.get("hidden_size"),
        "head_count": config.get("num_attention_heads"),
        "kv_head_count": config.get("num_key_value_heads", config.get("num_attention_heads")),
        "head_size": config.get("head_dim"),
        "ffn_size": config.get("intermediate_size"),
        "vocab_size": config.get("vocab_size"),
        "expert_count": experts,
        "experts_per_token": config.get("num_experts_per_tok"),
        "expert_ffn_size": config.get("moe_intermediate_size"),
    }


main()
