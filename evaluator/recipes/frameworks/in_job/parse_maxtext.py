"""Asks the configuration of MaxText whether it takes lists of arguments; runs in the job's Python.

Beyond what it checks itself, the mesh is filled in as it is when training starts, and the policy of
rematerialization must be one that the decoder knows. No device is touched: JAX sees as many CPU
devices as the job would have.
"""

import contextlib
import io
import json
import os
import re
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

AXES = {
    "data": "data",
    "fsdp": "fsdp",
    "fsdp_transpose": "fsdp_transpose",
    "tensor": "tensor",
    "tensor_sequence": "tensor_sequence",
    "context": "context",
    "expert": "expert",
    "stage": "pipeline",
}
"""Axes of the mesh that knobs set, as `ici_NAME_parallelism` calls them."""
PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def main():
    """Answer one request of standard input, on the last line of standard output."""
    request = json.load(sys.stdin)
    count = request["world_size"]
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={count}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        from maxtext.configs import pyconfig
        from maxtext.utils import max_utils

        # Both end or block the process: one exits at an error, the other waits for other hosts.
        pyconfig._handle_config_exception = lambda _: None
        max_utils.maybe_initialize_jax_distributed_system = lambda _: None
        missing = _missing(request["program"])
        read = [(None, missing) if missing else _read(line, count) for line in request["lines"]]
        flags = _flags() if request["with_flags"] else None
    first = read[0][0] if read else None
    answer = {
        "versions": {name: version(name) for name in ("maxtext", "jax", "jaxlib", "flax")},
        "parsed": [
            {"error": error, "values": _values(config, count) if config else {}}
            for config, error in read
        ],
        "workload": _workload(first) if first else {},
        "flags": flags,
    }
    sys.stdout.write(json.dumps(answer) + "\n")


def _missing(program):
    """Return why the module of a program cannot be started; its name has changed over time."""
    module = program[-1] if program[-2:-1] == ["-m"] else None
    if module is None or find_spec(module.partition(".")[0]):
        return None
    return f"there is no module {module}; this version has maxtext.trainers.pre_train.train"


def _read(line, device_count):
    """Return the configuration of a line, and what is wrong with it."""
    from maxtext.configs import pyconfig

    try:
        config = pyconfig.initialize(["train", *line])
        _mesh(config, device_count)
    except SystemExit as error:
        return None, f"it ended with status {error.code}"
    except Exception as error:  # noqa: BLE001 - whatever a setting of the user's raises
        return None, _plain(error)
    known = _remat_policies()
    if known and config.remat_policy not in {*known, None}:
        return None, f"remat_policy is one of {', '.join(known)}, not {config.remat_policy}"
    return config, None


def _plain(error):
    """Return what an error says, without the list of all keys and pydantic's frame."""
    text = re.sub(r" not in '.*", " is no setting of MaxText", str(error), flags=re.DOTALL)
    lines = [each.strip() for each in text.splitlines() if "errors.pydantic.dev" not in each]
    return f"{type(error).__name__}: {' '.join(lines)}"[:500]


def _mesh(config, device_count):
    """Return the size of each axis of the mesh, as training fills it in."""
    from maxtext.utils.max_utils import fill_unspecified_mesh_axes

    slices = max(1, config.num_slices)
    sizes = fill_unspecified_mesh_axes([*config.ici_parallelism], device_count // slices, "ICI")
    return dict(zip(config.mesh_axes, sizes, strict=True))


def _values(config, device_count):
    """Return the value of each setting that is a number or a text, with the mesh filled in."""
    found = {
        name: value
        for name, value in config.get_keys().items()
        if isinstance(value, (bool, int, float, str))
    }
    mesh = _mesh(config, device_count)
    found.update({f"ici_{AXES[axis]}_parallelism": int(mesh.get(axis, 1)) for axis in AXES})
    return found


def _workload(config):
    """Return the sizes of the model and of a step."""
    experts = config.num_experts if config.num_experts > 1 else None
    return {
        "global_batch": config.global_batch_size_to_train_on,
        "sequence_length": config.max_target_length,
        "precision": PRECISIONS.get(str(config.dtype), "bf16"),
        "layer_count": config.num_decoder_layers,
        "hidden_size": config.emb_dim,
        "head_count": config.num_query_heads,
        "kv_head_count": config.num_kv_heads,
        "head_size": config.head_dim,
        "ffn_size": config.mlp_dim,
        "vocab_size": config.vocab_size,
        "expert_count": experts,
        "experts_per_token": config.num_experts_per_tok if experts else None,
        "expert_ffn_size": config.moe_mlp_dim if experts else None,
        "dense_layer_count": (config.first_num_dense_layers or None) if experts else None,
        "seed": config.init_weights_seed or None,
    }


def _remat_policies():
    """Return the policies that the decoder compares with; any other fails when it is built."""
    (folder,) = find_spec("maxtext.layers").submodule_search_locations[:1]
    source = Path(folder) / "nnx_decoders.py"
    if not source.is_file():
        return []
    compared = re.findall(r"\bremat_policy (?:==|!=|in) ([{\"][^:\n]*)", source.read_text("utf-8"))
    return sorted({name for each in compared for name in re.findall(r'"(\w+)"', each)})


def _flags():
    """Return every setting with what it takes, as the schema of a version records it."""
    from maxtext.configs import types

    found = {}
    for name, field in types.MaxTextConfig.model_fields.items():
        kind = str(field.annotation)
        default = field.default
        flag = {"takes": "text"}
        if field.annotation is bool:
            flag["takes"] = "bool"
        elif "float" in kind:
            flag["takes"] = "float"
        elif "int" in kind and "list" not in kind:
            flag["takes"] = "int"
        choices = [each.value for each in getattr(field.annotation, "__members__", {}).values()]
        if name == "remat_policy":
            choices = _remat_policies()
        if choices:
            flag["choices"] = choices
        default = getattr(default, "value", default)
        if isinstance(default, (bool, int, float, str)):
            flag["default"] = default
        found[name] = flag
    return found


main()
