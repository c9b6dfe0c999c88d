"""The profiled pass: a trace of a few steps that are never timing samples."""

import gzip
import shutil
from pathlib import Path

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity

from evaluator.rank.progress import Phase
from evaluator.rank.steps import StepClock


def profile_steps(
    clock: StepClock, step_count: int, *, device: torch.device, shapes: bool, path: Path
) -> None:
    """Run steps under the profiler and write their Kineto trace, whole or not at all.

    Readers take the size of gloo's messages from the shapes of operands, where they are recorded.
    """
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    # Nobody asks the profiler itself for its events: not building them halves the time that it
    # takes to stop.
    only_traced = _ExperimentalConfig(trace_only=True)
    with torch.profiler.profile(
        activities=activities, record_shapes=shapes, experimental_config=only_traced
    ) as profiler:
        clock.run(Phase.PROFILE, step_count)
    plain, partial = (path.with_name(f".{path.name}.{state}") for state in ("plain", "partial"))
    profiler.export_chrome_trace(str(plain))
    # The profiler would compress by itself, for a file two thirds as large in nine times the time.
    with plain.open("rb") as text, gzip.open(partial, "wb", compresslevel=1) as packed:
        shutil.copyfileobj(text, packed)
    plain.unlink()
    partial.replace(path)
