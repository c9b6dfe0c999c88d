"""The profiled pass: a trace of a few steps that are never timing samples."""

from pathlib import Path

import torch
from torch.profiler import ProfilerActivity

from evaluator.rank.progress import Phase
from evaluator.rank.steps import StepClock


def profile_steps(clock: StepClock, step_count: int, *, device: torch.device, path: Path) -> None:
    """Run steps under the profiler and write their Kineto trace, whole or not at all."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
        clock.run(Phase.PROFILE, step_count)
    # The suffix tells the profiler to compress, so the partial file keeps it.
    partial = path.with_name(f".partial.{path.name}")
    profiler.export_chrome_trace(str(partial))
    partial.replace(path)
