"""Asks vLLM's own parser and engine configuration what they make of lists of arguments.

Run by the job's Python; a request comes on standard input, the answer is the last line printed.
"""

import argparse
import contextlib
import io
import json
import math
import re
import sys
from importlib.metadata import PackageNotFoundError, version

REQUESTS, PROMPT, OFFLINE_PROMPT, ANSWER = 64, 512, 1024, 128
"""Requests of a server's batch, and their tokens where the context of the model is long enough."""


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    is_server = "bench" not in request["program"]
    answers = [parsed(line, is_server) for line in request["lines"]]
    first = answers[0] if answers else ({}, {})
    answer = {
        "versions": versions("vllm", "torch", "transformers"),
        "parsed": [parsed for parsed, _ in answers],
        "workload": first[1],
        "flags": flags(False) | flags(True) if request["with_flags"] else None,
    }
    sys.stdout.write(f"\n{json.dumps(answer)}\n")


def make_parser(is_server):
    """Return the parser of the server, or of the offline benchmark."""
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    if is_server:
        try:
            from vllm.entrypoints.launchers.cli_args import make_arg_parser
        except ImportError:
            from vllm.entrypoints.openai.cli_args import make_arg_parser
        return make_arg_parser(parser)
    from vllm.benchmarks.throughput import add_cli_args

    add_cli_args(parser)
    return parser


def parsed(line, is_server):
    """Return what the parser makes of a line, and the sizes of its model and work."""
    said = io.StringIO()
    try:
        if not is_server and line[:1] != ["throughput"]:
            return {
                "error": f"`vllm bench {' '.join(line[:1])}` is not searched; use throughput"
            }, {}
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            arguments = make_parser(is_server).parse_args(line if is_server else line[1:])
            if getattr(arguments, "model_tag", None):
                arguments.model = arguments.model_tag
            if not is_server:
                from vllm.benchmarks.throughput import validate_args

                validate_args(arguments)
            config = engine_config(arguments, is_server)
    except SystemExit:
        return {"error": last_words(said.getvalue())}, {}
    except Exception as error:  # noqa: BLE001 - what a validator raises has many types
        return {"error": last_words(f"{type(error).__name__}: {error}")}, {}
    work = workload(config, arguments, line, is_server)
    return {"error": None, "values": values(config)}, work


def last_words(text):
    """Return what a parser or validator says is wrong, on one line."""
    text = re.sub(r"\x1b\[[\d;]*m", "", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    wrong = [line for line in lines if re.match(r".*\berror:|Value error,", line)]
    found = wrong[0] if wrong else " ".join(lines[:3]) or "the parser ended without a word"
    return re.sub(r"^.*\berror: |^Value error, | \[type=.*", "", found)


def engine_config(arguments, is_server):
    """Return the configuration that the engine would run with."""
    from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs

    kind = AsyncEngineArgs if is_server else EngineArgs
    return kind.from_cli_args(arguments).create_engine_config()


def values(config):
    """Return the resolved value of every flag that can be a knob."""
    parallel, scheduler, cache = (
        config.parallel_config,
        config.scheduler_config,
        config.cache_config,
    )
    backend = config.attention_config.backend
    found = {
        "--tensor-parallel-size": parallel.tensor_parallel_size,
        "--pipeline-parallel-size": parallel.pipeline_parallel_size,
        "--data-parallel-size": parallel.data_parallel_size,
        "--decode-context-parallel-size": parallel.decode_context_parallel_size,
        "--enable-expert-parallel": parallel.enable_expert_parallel,
        "--max-model-len": config.model_config.max_model_len,
        "--max-num-seqs": scheduler.max_num_seqs,
        "--max-num-batched-tokens": scheduler.max_num_batched_tokens,
        "--enable-chunked-prefill": scheduler.enable_chunked_prefill,
        "--scheduling-policy": scheduler.policy,
        "--async-scheduling": bool(scheduler.async_scheduling),
        "--stream-interval": scheduler.stream_interval,
        "--block-size": cache.block_size,
        "--gpu-memory-utilization": cache.gpu_memory_utilization,
        "--enable-prefix-caching": bool(cache.enable_prefix_caching),
        "--kv-cache-dtype": str(cache.cache_dtype),
        "--enforce-eager": config.model_config.enforce_eager,
        "--attention-backend": "auto" if backend is None else backend.name,
        "--dtype": str(config.model_config.dtype).removeprefix("torch."),
    }
    return {flag: value for flag, value in found.items() if value is not None}


def workload(config, arguments, line, is_server):
    """Return the sizes of the model, and of an offline benchmark those of its batch."""
    model = config.model_config
    text, longest = model.hf_text_config, model.max_model_len
    found = {
        "name": str(model.served_model_name or model.model).rstrip("/").rpartition("/")[2],
        "precision": {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(
            str(model.dtype).removeprefix("torch."), "bf16"
        ),
        "layer_count": text.num_hidden_layers,
        "hidden_size": text.hidden_size,
        "head_count": getattr(text, "num_attention_heads", None),
        "kv_head_count": model.get_total_num_kv_heads(),
        "head_size": model.get_head_size(),
        "ffn_size": getattr(text, "intermediate_size", None),
        "vocab_size": model.get_vocab_size(),
        "expert_count": model.get_num_experts() or None,
        "experts_per_token": getattr(text, "num_experts_per_tok", None),
        "expert_ffn_size": getattr(text, "moe_intermediate_size", None),
    }
    batch = REQUESTS if is_server else arguments.num_prompts
    prompt, output = lengths(arguments, line, longest, PROMPT if is_server else OFFLINE_PROMPT)
    return {**found, "global_batch": batch, "sequence_length": prompt, "output_length": output}


def lengths(arguments, line, longest, usual):
    """Return the tokens of a prompt and of its answer: those of the line, else some that fit."""
    named = {word.partition("=")[0].replace("_", "-") for word in line}

    def stated(kind):
        """Return a length that the line has; vLLM prefers the one of random prompts."""
        own = getattr(arguments, f"random_{kind}_len", None)
        of_random = own if f"--random-{kind}-len" in named else None
        return of_random or getattr(arguments, f"{kind}_len", None)

    output = stated("output") or max(1, min(ANSWER, longest // 4))
    prompt = stated("input") or max(1, min(usual, longest // 2, longest - output))
    return prompt, output


def versions(*names):
    """Return the versions that are installed, with that of Python."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in names:
        for distribution in (f"{name}-cpu", name):
            with contextlib.suppress(PackageNotFoundError):
                found.setdefault(name, version(distribution).partition("+")[0])
    return {name: found[name] for name in (*names, "python") if name in found}


def flags(is_server):
    """Return every flag of the parser: what it takes, its default and choices."""
    found = {}
    for action in make_parser(is_server)._actions:
        names = [name for name in action.option_strings if name.startswith("--")]
        if not names or isinstance(action, argparse._HelpAction):
            continue
        is_pair = isinstance(action, argparse.BooleanOptionalAction)
        negative = [name for name in names if is_pair and name.startswith("--no-")]
        first = next(name for name in names if name not in negative)
        flag = {"takes": kind_of(action)}
        also = [n for n in action.option_strings if n != first and n not in negative]
        default = action.default
        if isinstance(default, bool | int | float | str) and default is not argparse.SUPPRESS:
            # JSON has no infinity.
            flag["default"] = None if default in {math.inf, -math.inf} else default
        if action.choices:
            flag["choices"] = [c for c in action.choices if isinstance(c, str | int)]
        if also:
            flag["also"] = also
        if negative:
            flag["negative"] = negative[0]
        found[first] = flag
    return found


def kind_of(action):
    """Return what an action of argparse takes, as the recordings call it."""
    if action.nargs == 0:
        return "switch"
    if action.nargs in ("+", "*"):
        return "many"
    if action.type in (int, float):
        return action.type.__name__
    return "text"


if __name__ == "__main__":
    main()
