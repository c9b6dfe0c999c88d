"""The built-in study: a small Llama-style decoder trained on whatever this machine has."""

from records.study import (
    Budget,
    Constraint,
    Dimension,
    Environment,
    Launch,
    Measure,
    Objective,
    Range,
    SearchSpace,
    Study,
    Workload,
)

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
CPU_MEMORY_BUDGET_BYTES = 60 << 20
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

CONSTRAINTS = (
    Constraint(
        name="ranks",
        expression="dp_replicate * dp_shard * tp * pp <= world_size",
        reason="every rank needs an accelerator of its own",
    ),
    Constraint(
        name="batch",
        expression="global_batch % (dp_replicate * dp_shard * micro_batch) == 0",
        reason="each data-parallel rank takes whole micro-batches of the fixed global batch",
    ),
    Constraint(
        name="pipeline_fill",
        expression="pp == 1 or global_batch >= dp_replicate * dp_shard * micro_batch * pp",
        reason="a pipeline needs at least as many micro-batches as stages",
    ),
    Constraint(
        name="layers", expression="layer_count % pp == 0", reason="stages hold equally many layers"
    ),
    Constraint(
        name="heads",
        expression="head_count % tp == 0 and kv_head_count % tp == 0",
        reason="tensor parallelism splits attention by heads",
    ),
    Constraint(
        name="tp_in_node",
        expression="tp <= ranks_per_node",
        reason="tensor parallelism stays on the links inside a node",
    ),
)


def builtin_space(environment: Environment, workload: Workload) -> SearchSpace:
    """Knobs of the built-in recipe for a machine of this size."""
    degrees = Range(low=1, high=environment.world_size, scale="doubling")
    micro = Range(low=1, high=workload.global_batch, scale="doubling")
    return SearchSpace(
        dimensions=(
            Dimension(name="dp_replicate", range=degrees, description="data-parallel replicas"),
            Dimension(
                name="dp_shard",
                range=degrees,
                description="ranks that parameters, gradients and optimizer state are sharded over",
            ),
            Dimension(name="tp", range=degrees, description="tensor- and sequence-parallel ranks"),
            Dimension(name="pp", range=degrees, description="pipeline stages, 1F1B schedule"),
            Dimension(
                name="micro_batch", range=micro, description="sequences per forward pass and rank"
            ),
            Dimension(
                name="activation_checkpointing",
                choices=("none", "selective", "full"),
                description="what the backward pass recomputes instead of having kept it",
            ),
        ),
        constraints=CONSTRAINTS,
    )


def builtin_study(environment: Environment) -> Study:
    """The study that `cclsearch run` searches when it is given none."""
    on_cpu = environment.device == "cpu"
    workload = CPU_WORKLOAD if on_cpu else CUDA_WORKLOAD
    return Study(
        name=f"builtin-{environment.device}",
        workload=workload,
        environment=environment,
        space=builtin_space(environment, workload),
        objective=Objective(expression="step_time"),
        seed_policy="sharded",
        budget=Budget(trials=10, patience=6),
        measure=Measure(),
        launch=Launch(memory_budget_bytes=CPU_MEMORY_BUDGET_BYTES if on_cpu else None),
    )
