"""The public Python API: the steps of your own script, studies and trials, services, traces.

A trial gives your script's Python this one file, whether cclsearch is installed there or not. So
what a script needs is defined here, with nothing but the standard library and only for `import
cclsearch` to cost nothing; everything else is imported on first use.
"""

import importlib
import itertools
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from evaluator.timing.timer import Timer
    from evaluator.timing.timing import Timing
    from search.client.client import Client
    from search.compare.timer_view import print_timings
    from search.report.notebook import study
    from search.traces.frames import Trace, trace
    from search.views.frames import studies, trials

__all__ = [
    "Client",
    "Timer",
    "Timing",
    "Trace",
    "in_trial",
    "lightning_callback",
    "log",
    "print_timings",
    "steps",
    "studies",
    "study",
    "trace",
    "trainer_callback",
    "trials",
]

_HOMES = {
    "Client": "search.client.client",
    "Timer": "evaluator.timing.timer",
    "Timing": "evaluator.timing.timing",
    "Trace": "search.traces.frames",
    "print_timings": "search.compare.timer_view",
    "studies": "search.views.frames",
    "study": "search.report.notebook",
    "trace": "search.traces.frames",
    "trials": "search.views.frames",
}

T = TypeVar("T")


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'cclsearch' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


@overload
def steps(*, accumulate: int = 1) -> Iterator[int]: ...
@overload
def steps(items: Iterable[T], *, accumulate: int = 1) -> Iterator[T]: ...
def steps(items: Iterable[Any] | None = None, *, accumulate: int = 1) -> Iterator[Any]:
    """Yield from `items`; in a trial, time and profile the loop's body as one step each.

    Outside a trial this is the loop over `items`, or over 0, 1, 2, ... without any. In a trial the
    loop runs as many steps as the study asks for (warm-up, timed, profiled) and ends; `items` start
    over where they are too few, and fetching one is part of its step. Where the loop accumulates
    the gradients of several items before each optimizer step, `accumulate` is how many.
    """
    trial = _trial()
    if trial is None:
        yield from itertools.count() if items is None else items
        return
    if trial.finished:
        return
    try:
        trial.mark()
        repeated = itertools.count() if items is None else _repeated(items)
        for count, item in enumerate(repeated, 1):
            yield item
            if count % accumulate == 0 and trial.mark():
                return
    finally:
        if not trial.finished:
            trial.write(f"the loop over cclsearch.steps() ended after {trial.progress}")


def log(*, loss: object = None, tokens: int | None = None, grad_norm: object = None) -> None:
    """Report the loss of this step, the tokens that this rank fed, and the norm of all gradients.

    Loss and norm may be tensors; they are read when all steps are done. A token counts on one rank
    only, so ranks that share a batch (tensor or pipeline parallelism) let one of them report it. Of
    several calls in a step, the tokens are added, and losses and norms averaged. Outside a trial
    this does nothing.
    """
    trial = _trial()
    if trial is not None:
        trial.log(loss, tokens, grad_norm)


def in_trial() -> bool:
    """Whether cclsearch started this process, so that evaluation and checkpoints can be skipped."""
    return "TRACE_DIR" in _ENVIRONMENT and "TIMED_STEPS" in _ENVIRONMENT


def trainer_callback() -> Any:
    """Return a callback for Hugging Face's `Trainer`; it ends the training when all is measured."""
    from transformers import TrainerCallback  # type: ignore[import-not-found]

    class Steps(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(
            self, args: Any, *_: object, train_dataloader: Any, **__: object
        ) -> None:
            if in_trial():
                ranks = int(_ENVIRONMENT.get("WORLD_SIZE", "1"))
                if ranks > 1 and args.parallel_mode.value == "not_parallel":
                    raise RuntimeError(
                        f"the Trainer trains {ranks} separate models, one on each rank; without "
                        "an accelerator it trains one model only with --use_cpu"
                    )
                _count_batches(train_dataloader)
            _first_mark()

        def on_step_end(self, _: object, __: object, control: Any, **___: object) -> None:
            control.should_training_stop |= _next_mark()

    return Steps()


def lightning_callback() -> Any:
    """Return a callback for Lightning's `Trainer`; it ends the training when all is measured."""
    is_old = "pytorch_lightning" in sys.modules and "lightning" not in sys.modules
    library = importlib.import_module("pytorch_lightning" if is_old else "lightning.pytorch")

    class Steps(library.Callback):  # type: ignore[misc, name-defined]
        steps_done = 0

        def on_train_start(self, *_: object) -> None:
            _first_mark()

        def on_train_batch_end(
            self, trainer: Any, _: object, __: object, batch: Any, ___: int
        ) -> None:
            log(tokens=_token_count(batch))
            if trainer.global_step > self.steps_done:  # else gradients are accumulated
                self.steps_done = trainer.global_step
                trainer.should_stop |= _next_mark()

    return Steps()


_ENVIRONMENT = os.environ  # noqa: TID251 - a script's settings are its variables
_RANK_VARIABLES = (
    *("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"),
    "LOCAL_RANK",  # the only one that Lightning sets
)
_current: "_Trial | None" = None


def _trial() -> "_Trial | None":
    global _current
    if _current is None and in_trial():
        _current = _Trial()
    return _current


def _first_mark() -> None:
    trial = _trial()
    if trial is not None and not trial.marks_s:
        trial.mark()


def _next_mark() -> bool:
    trial = _trial()
    return trial is not None and (trial.finished or trial.mark())


def _count_batches(loader: Any) -> None:
    """Have a data loader report the tokens of each batch that it yields."""
    kind = type(loader)  # of the class, as accelerate's loaders do not let theirs be changed
    iterate = kind.__iter__

    def counted(self: Any) -> Iterator[Any]:
        for batch in iterate(self):
            if self is loader:
                log(tokens=_token_count(batch))
            yield batch

    kind.__iter__ = counted


def _token_count(batch: Any) -> int | None:
    """Return the tokens of a batch of token ids, the samples of another; None without tensors."""
    parts = batch
    if isinstance(batch, Mapping):
        parts = [batch["input_ids"]] if "input_ids" in batch else list(batch.values())
    elif not isinstance(batch, list | tuple):
        parts = [batch]
    for part in parts:
        if hasattr(part, "is_floating_point") and part.ndim:
            are_ids = part.ndim == 2 and not part.is_floating_point()
            return int(part.numel()) if are_ids else len(part)
    return None


def _repeated(items: Iterable[T]) -> Iterator[T]:
    """Yield items, from the start again after the last; ends where a second pass has none."""
    while True:
        empty = True
        for item in items:
            empty = False
            yield item
        if empty:
            return


class _Trial:
    """The measurement of one rank: a mark at the start and after each step.

    Steps are warm-up, then timed, then profiled; between the last two the profiler starts.
    """

    def __init__(self) -> None:
        self.marks_s: list[float] = []
        self.finished = False
        self._folder = Path(_ENVIRONMENT["TRACE_DIR"])
        rank = next((_ENVIRONMENT[name] for name in _RANK_VARIABLES if name in _ENVIRONMENT), "0")
        self._rank = int(rank)
        self._warmup, self._timed, self._profiled = (
            int(_ENVIRONMENT.get(f"{name}_STEPS", "0")) for name in ("WARMUP", "TIMED", "PROFILED")
        )
        self._losses: dict[int, list[Any]] = {}
        self._grad_norms: dict[int, list[Any]] = {}
        self._tokens: dict[int, int] = {}
        self._profiler: Any = None
        self._step = ExitStack()
        beats = self._folder.parent / f"rank{self._rank}.progress.jsonl"
        self._beats = os.open(beats, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    @property
    def progress(self) -> str:
        """How far the loop came, as text."""
        return f"{self._done} of {self._warmup + self._timed + self._profiled} steps"

    @property
    def _done(self) -> int:
        return max(0, len(self.marks_s) - 1)

    def log(self, loss: object, tokens: int | None, grad_norm: object) -> None:
        for value, steps in ((loss, self._losses), (grad_norm, self._grad_norms)):
            if value is not None:
                values = steps.setdefault(self._done, [])
                values.append(value.detach() if hasattr(value, "detach") else value)
        if tokens is not None:
            self._tokens[self._done] = self._tokens.get(self._done, 0) + int(tokens)

    def mark(self) -> bool:
        """End a step, if one runs, and begin the next; return whether that was the last."""
        _wait_for_devices()
        self.marks_s.append(time.perf_counter())
        self._step.close()
        unprofiled = self._warmup + self._timed
        self._beat(unprofiled)
        if self._done == unprofiled + self._profiled:
            self._stop_profiler()
            self.write(None)
            return True
        if self._done >= unprofiled:
            self._enter_profiled_step()
        return False

    def _beat(self, unprofiled: int) -> None:
        """Record which step begins, for `cclsearch run` and its service to show."""
        done, step = self._done, self._done if self._done < unprofiled + self._profiled else None
        phase = "warmup" if done < self._warmup else "timed" if done < unprofiled else "profile"
        phase = phase if step is not None else "done"
        beat = {"phase": phase, "step": step, "at_ns": time.perf_counter_ns()}
        os.write(self._beats, json.dumps(beat).encode() + b"\n")

    def write(self, fault: str | None) -> None:
        """Write what was measured, whole or not at all."""
        self.finished = True
        times_s = [end - start for start, end in itertools.pairwise(self.marks_s)]
        document = {
            "rank": self._rank,
            "warmup_times_s": times_s[: self._warmup],
            "step_times_s": times_s[self._warmup : self._warmup + self._timed],
            "losses": _means(self._losses),
            "grad_norms": _means(self._grad_norms),
            "tokens": list(self._tokens.values()),
            "peak_memory_bytes": _peak_memory_bytes(),
            "versions": _versions(),
            "fault": fault,
            "device_count": _device_count(),
        }
        folder = self._folder / "steps"
        folder.mkdir(exist_ok=True)
        partial = folder / f".rank{self._rank}.partial"
        partial.write_text(json.dumps(document), encoding="utf-8")
        partial.replace(folder / f"rank{self._rank}.json")

    def _enter_profiled_step(self) -> None:
        jax, torch = _jax_in_use(), sys.modules.get("torch")
        if jax is not None:
            if self._profiler is None:
                self._profiler = jax.profiler
                jax.profiler.start_trace(str(self._folder))
            annotation = jax.profiler.StepTraceAnnotation("cclsearch.step", step_num=self._done)
            self._step.enter_context(annotation)
        elif torch is not None:
            self._enter_torch_step(torch)
        else:
            raise RuntimeError(
                "only scripts that use torch or jax are profiled; set [measure] profiled_steps = 0"
            )

    def _enter_torch_step(self, torch: Any) -> None:
        if self._profiler is None:
            activities = [torch.profiler.ProfilerActivity.CPU]
            if torch.cuda.is_initialized():
                activities.append(torch.profiler.ProfilerActivity.CUDA)
            self._profiler = torch.profiler.profile(activities=activities, record_shapes=True)
            self._profiler.start()
        self._step.enter_context(torch.profiler.record_function(f"ProfilerStep#{self._done}"))

    def _stop_profiler(self) -> None:
        if self._profiler is None:
            return
        if isinstance(self._profiler, ModuleType):
            self._profiler.stop_trace()
            for profile in self._folder.glob("plugins/profile/*/*.xplane.pb"):
                profile.replace(self._folder / f"rank{self._rank}.xplane.pb")
        else:
            self._profiler.stop()
            self._profiler.export_chrome_trace(str(self._folder / f"rank{self._rank}.json"))


def _means(steps: Mapping[int, list[Any]]) -> list[float]:
    """Return the mean of what was reported in each step."""
    return [sum(map(float, values)) / len(values) for values in steps.values()]


def _wait_for_devices() -> None:
    """Return once the devices have done all that they were given."""
    torch, jax = sys.modules.get("torch"), _jax_in_use()
    for name in ("cuda", "xpu") if torch is not None else ():
        device = getattr(torch, name, None)
        if device is not None and device.is_initialized():
            device.synchronize()
    if jax is not None:
        jax.block_until_ready(jax.live_arrays())


def _jax_in_use() -> Any:
    """Return JAX where the script has arrays on its devices; None elsewhere."""
    jax = sys.modules.get("jax")
    return jax if jax is not None and jax.live_arrays() else None


def _peak_memory_bytes() -> int:
    """Return the most bytes of tensors on the GPU, or of this process where it uses none."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _device_count() -> int | None:
    """Return the devices that this process drives, where it is the whole job; None elsewhere."""
    jax = sys.modules.get("jax")
    return int(jax.device_count()) if jax is not None and jax.process_count() == 1 else None


def _versions() -> dict[str, str]:
    """Return the versions of the frameworks that the script has imported, and of its Python."""
    names = (
        *("torch", "transformers", "accelerate", "lightning", "deepspeed", "megatron.core"),
        *("torchtitan", "jax", "jaxlib", "flax", "MaxText", "vllm", "sglang", "triton"),
    )
    found = {
        name: getattr(sys.modules[name], "__version__", "") for name in names if name in sys.modules
    }
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized() and torch.distributed.is_nccl_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return {"python": ".".join(map(str, sys.version_info[:3]))} | {
        name: str(version) for name, version in found.items() if version
    }
