"""Times the steps of TorchTitan's trainer, and lets all layouts begin with the same work.

In the steps before the timed ones, weights are set by their place in the whole model and tokens by
their place in the global batch, so that losses and gradient norms of two layouts can be compared:
TorchTitan draws both anew for each layout. Timed steps take the tokens of the user's own data.
"""

import functools
import importlib
import importlib.util
import math
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hook  # type: ignore[import-not-found]  # beside it in the folder of the job

import cclsearch

SPREAD = 0.02
"""Standard deviation of the weights that are set."""
MOST_AT_ONCE = 1 << 24


def main() -> None:
    """Run the program of our arguments, its trainer observed."""
    # Configurations and defaults name files as seen from the folder of the launch line.
    os.chdir(os.environ["CCLSEARCH_PYTHONPATH"].partition(":")[0])
    package = importlib.util.find_spec("torchtitan")
    folders = (package and package.submodule_search_locations) or ()
    is_old = not any(Path(folder, "trainer.py").exists() for folder in folders)
    module = "torchtitan.train" if is_old else "torchtitan.trainer"
    program = sys.argv[1:3] if sys.argv[1] == "-m" else sys.argv[1:2]
    outputs = f"--{'job.' if is_old else ''}dump_folder={Path(os.environ['TRACE_DIR']).parent}"
    # The parser of 0.2 takes the arguments that are there when it is imported.
    sys.argv[:] = [program[-1], outputs, *sys.argv[1 + len(program) :]]
    trainer = importlib.import_module(module).Trainer
    observe(trainer)
    # Run as a program, the module of 0.2 would define its trainer anew.
    if program[-1].endswith(("torchtitan.train", "torchtitan/train.py")):
        train = importlib.import_module("torchtitan.train")
        train.main(*([trainer] if is_old else []))
    else:
        sys.argv[:] = [__file__, *program, *sys.argv[1:]]
        hook.run_program()


def observe(trainer: Any) -> None:
    """Have the steps of a trainer timed, and its training end after the last one asked for."""
    begin, step = trainer.__init__, trainer.train_step

    @functools.wraps(begin)
    def without_outputs(self: Any, config: Any) -> None:
        for part, switch in (
            *(("checkpoint", "enable"), ("validation", "enable"), ("validator", "enable")),
            *(("profiling", "enable_profiling"), ("profiler", "enable_profiling")),
            *(("profiling", "enable_memory_snapshot"), ("profiler", "enable_memory_snapshot")),
            *(("metrics", "enable_tensorboard"), ("metrics", "enable_wandb")),
        ):
            if hasattr(config, part):
                setattr(getattr(config, part), switch, False)
        begin(self, config)
        self.cclsearch = _Work(self)

    @functools.wraps(step)
    def timed_step(self: Any, batches: Any) -> None:
        step(self, self.cclsearch.counted(batches))
        self.cclsearch.end_step()

    trainer.__init__, trainer.train_step = without_outputs, timed_step
    trainer.should_continue_training = lambda self: not self.cclsearch.is_done


class _Work:
    """The work of a trainer in a trial: equal in all layouts in steps that are compared."""

    def __init__(self, trainer: Any) -> None:
        self.step, self.is_done = 0, False
        self.compared_steps = int(os.environ["WARMUP_STEPS"])
        dims = trainer.parallel_dims
        places = {name: _place(dims, name) for name in ("tp", "cp", "pp", "batch")}
        self.counts_tokens = not any(places[name] for name in ("tp", "cp", "pp"))
        self.has_loss = not dims.pp_enabled or trainer.pp_has_last_stage
        self.place = places["batch"]
        self.sequences = int(os.environ["GLOBAL_BATCH"]) // (dims.dp_replicate * dims.dp_shard)
        self.vocabulary = _vocabulary(trainer)
        self.is_comparable = self.vocabulary > 0 and _set_weights(trainer.model_parts)
        metrics = trainer.metrics_processor
        log, metrics.should_log = metrics.log, lambda _: self.step < self.compared_steps

        def logged(step: int, loss: Any, most: Any, grad_norm: Any, **more: Any) -> None:
            is_equal = self.is_comparable and self.has_loss
            cclsearch.log(loss=loss if is_equal else None, grad_norm=grad_norm)
            log(step, loss, most, grad_norm, **more)

        metrics.log = logged
        cclsearch._first_mark()

    def counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches of a step; those that are compared get tokens by their place."""
        first = self.place * self.sequences
        for inputs, labels in batches:
            if self.step < self.compared_steps:
                self._set_tokens(inputs, labels, first)
            first += len(labels)
            if self.counts_tokens:
                cclsearch.log(tokens=labels.numel())
            yield inputs, labels

    def end_step(self) -> None:
        """End a step, and learn whether it was the last."""
        self.step += 1
        self.is_done = cclsearch._next_mark()

    def _set_tokens(self, inputs: dict[str, Any], labels: Any, first: int) -> None:
        import torch

        tokens = inputs.get("input")
        if not self.is_comparable or tokens is None or tokens.shape != labels.shape:
            self.is_comparable = False
            return
        for row in range(len(labels)):
            draws = torch.Generator().manual_seed(self.step * 1_000_003 + first + row)
            drawn = torch.randint(self.vocabulary, (labels.shape[1] + 1,), generator=draws)
            tokens[row], labels[row] = drawn[:-1], drawn[1:]
        if "positions" in inputs:
            inputs["positions"][:] = torch.arange(labels.shape[1])


def _place(dims: Any, name: str) -> int:
    mesh = dims.get_optional_mesh(name)
    return 0 if mesh is None else int(mesh.get_local_rank())


def _vocabulary(trainer: Any) -> int:
    model = getattr(trainer, "model_args", None) or getattr(trainer, "model_config", None)
    size = getattr(model, "vocab_size", None)
    return size if isinstance(size, int) else 0


def _set_weights(parts: list[Any]) -> bool:
    """Set every matrix by the place of its elements; return whether all of them could be set."""
    import torch

    try:
        with torch.no_grad():
            for part in parts:
                for name, parameter in part.named_parameters():
                    if parameter.ndim > 1:
                        _set_weight(name, parameter)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError) as error:
        why = f"cclsearch: losses are not compared, as weights cannot be set: {error}"
        sys.stdout.write(f"{why}\n")
        return False
    return True


def _set_weight(name: str, parameter: Any) -> None:
    """Fill what a rank has of a parameter with a hash of each element's index in the whole."""
    import torch
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    local, offset = parameter.detach(), (0,) * parameter.ndim
    if isinstance(local, DTensor):
        mesh, placements = local.device_mesh, local.placements
        _, offset = compute_local_shape_and_global_offset(local.shape, mesh, placements)
        local = local.to_local()
    for wrapper in ("_checkpoint_wrapped_module.", "_orig_mod.", "module."):
        name = name.replace(wrapper, "")
    strides = [math.prod(parameter.shape[axis + 1 :]) for axis in range(parameter.ndim)]
    within = torch.zeros(local.shape[1:], dtype=torch.int64, device=local.device)
    for axis in range(1, parameter.ndim):
        own = torch.arange(local.shape[axis], device=local.device) + offset[axis]
        within += (own * strides[axis]).view([-1] + [1] * (parameter.ndim - 1 - axis))
    rows = max(1, MOST_AT_ONCE // max(1, within.numel()))
    for start in range(0, len(local), rows):
        row = torch.arange(start, min(start + rows, len(local)), device=local.device) + offset[0]
        mixed = (row * strides[0]).view([-1] + [1] * within.ndim) + within
        for shift, factor in ((0, 0x9E3779B1), (15, 0x85EBCA6B), (13, 0xC2B2AE35)):
            mixed = ((mixed ^ (mixed >> shift if shift else 0)) * factor) & 0xFFFFFFFF
            mixed = (mixed + zlib.crc32(name.encode())) & 0xFFFFFFFF
        local[start : start + rows] = (mixed.double() / 2**32 - 0.5) * (SPREAD * math.sqrt(12))


if __name__ == "__main__":
    main()
