"""The profiled pass: a trace of a few steps that are never timing samples."""

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
    # Not compressed: what is kept of it the store packs better, in a fifth of gzip's time.
    partial = path.with_name(f".{path.name}.partial")
    profiler.export_chrome_trace(str(partial))
    partial.replace(path)
