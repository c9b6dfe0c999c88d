"""The built-in study: a small Llama-style decoder trained on whatever this machine has."""

from collections.abc import Mapping
from dataclasses import replace

from records.study import (
    Budget,
    Dimension,
    Environment,
    Launch,
    Measure,
    Objective,
    SearchSpace,
    Study,
    Value,
)
from records.workload import Workload

CPU_WORKLOAD = Workload(
    name="decoder-4L-128d",
    family="dense",
    precision="fp32",
    layer_count=4,
    hidden_size=128,
    head_count=4,
    kv_head_count=4,
    ffn_size=352,
    vocab_size=512,
    sequence_length=128,
    global_batch=16,
)
CPU_MEMORY_BUDGET_BYTES = 44 << 20
"""Per rank, beyond the started runtime: plain data parallelism with whole batches does not fit."""

CUDA_WORKLOAD = Workload(
    name="decoder-16L-2048d",
    family="dense",
    precision="bf16",
    layer_count=16,
    hidden_size=2048,
    head_count=16,
    kv_head_count=8,
    ffn_size=5632,
    vocab_size=32000,
    sequence_length=2048,
    global_batch=32,
)

CPU_MEASURE = Measure(max_timed_steps=10)
"""Launches of a small model differ by more than its steps: rather more of them than longer ones."""

CUDA_TIMEOUT_S = 600.0
"""The first launch that compiles may take minutes."""

DEGREES = ("dp_replicate", "dp_shard", "tp", "pp")
CPU_KNOBS = ("micro_batch", "activation_checkpointing")
CUDA_KNOBS = (*CPU_KNOBS, "compile", "attention_backend", "optimizer_loop")
CHOICES: Mapping[str, tuple[Value, ...]] = {
    "attention_backend": ("auto", "flash", "cudnn"),
    "optimizer_loop": ("foreach", "fused"),
    "pipeline_schedule": ("1f1b", "interleaved_1f1b", "zbv_zero_bubble"),
}
"""Fewer than the recipe knows, where some differ too little to be worth a launch."""
CPU_CHOICES: Mapping[str, tuple[Value, ...]] = {
    **CHOICES,
    # Without "selective" every configuration can be launched a few times within an hour.
    "activation_checkpointing": ("none", "full"),
}


def builtin_space(environment: Environment) -> SearchSpace:
    """Knobs of the built-in recipe, which adds the other choices and all rules."""
    on_cpu = environment.device == "cpu"
    knobs, choices = (CPU_KNOBS, CPU_CHOICES) if on_cpu else (CUDA_KNOBS, CHOICES)
    if environment.world_size > 1:
        knobs = (*DEGREES, "pipeline_schedule", *knobs)
    return SearchSpace(
        dimensions=tuple(Dimension(name=name, choices=choices.get(name)) for name in knobs)
    )


def fitted(workload: Workload, environment: Environment) -> Workload:
    """The workload with a batch that all ranks can share, none of them left idle."""
    ranks = environment.world_size
    return replace(workload, global_batch=-(-workload.global_batch // ranks) * ranks)


def builtin_study(environment: Environment) -> Study:
    """The study that `cclsearch run` searches when it is given none."""
    on_cpu = environment.device == "cpu"
    workload = fitted(CPU_WORKLOAD if on_cpu else CUDA_WORKLOAD, environment)
    return Study(
        name=f"builtin-{environment.device}",
        workload=workload,
        environment=environment,
        space=builtin_space(environment),
        objective=Objective(expression="step_time"),
        seed_policy="sharded",
        budget=Budget(trials=10, patience=6),
        measure=CPU_MEASURE if on_cpu else Measure(timeout_s=CUDA_TIMEOUT_S),
        launch=Launch(memory_budget_bytes=CPU_MEMORY_BUDGET_BYTES if on_cpu else None),
    )
