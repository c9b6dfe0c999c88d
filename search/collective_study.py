"""The study of collective setups: what it exchanges and searches if a study file does not say."""

from collections.abc import Mapping
from dataclasses import replace

from evaluator.recipes.collectives.availability import absence
from policies.catalog import FIRST
from records.message import Message
from records.study import Dimension, Launch, Objective, SearchSpace, Study, Value
from records.workload import Workload

RECIPE = "collectives"
KIB, MIB = 1 << 10, 1 << 20

CPU_MIX = ((4 * KIB, 8), (256 * KIB, 4), (4 * MIB, 1))
CUDA_MIX = ((64 * KIB, 16), (4 * MIB, 8), (64 * MIB, 4))
"""Sizes of all-reduces and how many there are in a step: short ones, middling ones, long ones."""

CPU_KNOBS: Mapping[str, tuple[Value, ...]] = {
    "in_flight": (1, 4),
    "fusion_bytes": (0, MIB, 25 * MIB),
    "chunk_count": (1, 4),
}
MPI_KNOBS: Mapping[str, tuple[Value, ...] | None] = {
    "ompi_allreduce_algorithm": None,
    "ompi_allreduce_segment_bytes": (64 * KIB, 256 * KIB),
    "ompi_single_copy": ("default", "none"),
}
CUDA_KNOBS: Mapping[str, tuple[Value, ...] | None] = {
    **CPU_KNOBS,
    "nccl_algo": ("default", "Ring", "Tree", "NVLS"),
    "nccl_proto": None,
    "nccl_min_nchannels": (0, 16),
}


def collective_study(base: Study) -> Study:
    """A study over the base's machine that exchanges a mix of all-reduces; its space is empty."""
    device = base.environment.device
    messages = tuple(
        Message(collective="all_reduce", size_bytes=size_bytes, count=count)
        for size_bytes, count in (CPU_MIX if device == "cpu" else CUDA_MIX)
    )
    return replace(
        base,
        name=f"{RECIPE}-{device}",
        workload=Workload(
            name="all-reduces",
            phase="communication",
            global_batch=1,
            sequence_length=1,
            messages=messages,
        ),
        space=SearchSpace(dimensions=()),
        objective=Objective(expression="step_time"),
        seed_policy=FIRST,
        measure=replace(base.measure, profiled_steps=0),
        launch=Launch(recipe=RECIPE),
    )


def collective_space(device: str) -> SearchSpace:
    """Knobs of what is there to be chosen from on this machine."""
    if device == "cuda":
        return _space(CUDA_KNOBS)
    if absence("mpi") is not None:
        return _space(CPU_KNOBS)
    return _space({"comm_adapter": ("c10d", "mpi"), **CPU_KNOBS, **MPI_KNOBS})


def _space(knobs: Mapping[str, tuple[Value, ...] | None]) -> SearchSpace:
    return SearchSpace(
        dimensions=tuple(Dimension(name=name, choices=choices) for name, choices in knobs.items())
    )
