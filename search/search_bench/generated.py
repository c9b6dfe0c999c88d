"""Landscapes out of an analytic model of 3D-parallel training, drawn from a seed.

A step is compute, its pipeline bubble, tensor, data and pipeline communication over two link
speeds, and recomputation. How well each does is drawn; so is how pairs of settings act together,
which no cost model knows. A configuration that needs more than the memory fails.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from random import Random
from typing import Final

from policies.space import Space
from records.errors import StudyError
from records.study import (
    Constraint,
    Dimension,
    Environment,
    Launch,
    Link,
    Objective,
    SearchSpace,
    Value,
)
from records.trial import Config, FailureKind
from records.workload import Workload
from search.search_bench.anonymous import anonymised
from search.search_bench.ground import estimated
from search.search_bench.landscape import Entry, Fault, Landscape
from search.search_bench.parallel_model import Machine, Model, memory_bytes, plan_of, step_s

PREFIX: Final = "generated:"
GIB: Final = 2**30
NAME: Final = re.compile(r"(?:(small|medium|large)-)?(\d{1,9})(-anonymous)?")
HELP: Final = "generated:SEED, generated:small-SEED, generated:large-SEED-anonymous, ..."
NOISE_SIGMA: Final = 0.03
INTERACTION_SIGMA: Final = 0.06
"""Of the logarithm of what each pair of choices multiplies a step time by."""
PAIRS: Final = (
    ("tp", "micro_batch"),
    ("pp", "activation_checkpointing"),
    ("dp_shard", "micro_batch"),
    ("dp_replicate", "dp_shard"),
    ("pipeline_schedule", "micro_batch"),
    ("fsdp_reshard", "dp_shard"),
)
CORE: Final = ("tp", "pp", "dp_shard", "micro_batch", "activation_checkpointing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large a generated space is: its ranks, and the knobs that are searched."""

    world_size: int
    knobs: tuple[str, ...]


SIZES: Final[Mapping[str, Size]] = {
    "small": Size(world_size=16, knobs=CORE),
    "medium": Size(world_size=16, knobs=(*CORE, "dp_replicate", "pipeline_schedule")),
    "large": Size(
        world_size=32, knobs=(*CORE, "dp_replicate", "pipeline_schedule", "fsdp_reshard")
    ),
}
SEQUENCES_PER_RANK: Final = 4
ACCELERATORS: Final[Mapping[str, float]] = {
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA A40": 149.7e12,
}
"""Peak of each, in bf16."""


def generated(name: str) -> Landscape:
    """The landscape of a name such as `generated:7`; raises `StudyError` for any other."""
    found = NAME.fullmatch(name.removeprefix(PREFIX))
    if not found:
        raise StudyError(f"{name!r} is no generated landscape; write {HELP}")
    size, seed, anonymous = found.groups()
    landscape = _landscape(name, SIZES[size or "medium"], int(seed))
    return anonymised(landscape) if anonymous else landscape


def _landscape(name: str, size: Size, seed: int) -> Landscape:
    draw = Random(f"landscape/{seed}")
    model = _model(draw, size)
    accelerator = draw.choice(list(ACCELERATORS))
    machine = _machine(draw, ACCELERATORS[accelerator])
    workload, space = _workload(model), _space(size)
    environment = _environment(machine, size, accelerator)
    configs = Space(space, workload, environment).feasible
    memory = _memory(configs, model, draw)
    effects = _Effects(space, draw)
    entries = [_entry(config, model, machine, memory, effects) for config in configs]
    return estimated(
        Landscape(
            version=1,
            name=name,
            about="An analytic model of 3D-parallel training: "
            f"{model.layer_count} layers of {model.hidden_size} on {size.world_size} ranks.",
            objective=Objective(expression="step_time", direction="minimize"),
            unit="s",
            workload=workload,
            environment=replace(environment, memory_bytes=memory),
            launch=Launch(recipe="builtin"),
            space=space,
            seed=_seed(entries).config,
            noise_sigma=NOISE_SIGMA,
            entries=tuple(entries),
        )
    )


def _entry(
    config: Config, model: Model, machine: Machine, memory: int, effects: "_Effects"
) -> Entry:
    plan = plan_of(config.values)
    needed = memory_bytes(plan, model)
    if needed > memory:
        words = f"out of memory: {needed / GIB:.1f} GiB needed, {memory / GIB:.1f} GiB there"
        fault = Fault(kind=FailureKind.OUT_OF_MEMORY, message=words)
        return Entry(config=config.values, failure=fault)
    seconds = step_s(plan, model, machine) * effects.factor(config)
    return Entry(config=config.values, samples=(float(f"{seconds:.6g}"),))


class _Effects:
    """How pairs of settings act together, drawn for each pair of choices of two knobs."""

    def __init__(self, space: SearchSpace, draw: Random) -> None:
        choices = {dimension.name: dimension.choices or () for dimension in space.dimensions}
        self._logs = {
            (knobs, pair): draw.gauss(0, INTERACTION_SIGMA)
            for knobs in PAIRS
            if choices.keys() >= {*knobs}
            for pair in product(choices[knobs[0]], choices[knobs[1]])
        }

    def factor(self, config: Config) -> float:
        """What the step time is multiplied by, for all pairs that the configuration has."""
        met = (
            (knobs, (config[knobs[0]], config[knobs[1]]))
            for knobs in PAIRS
            if config.values.keys() >= {*knobs}
        )
        return math.exp(math.fsum(self._logs[each] for each in met))


def _model(draw: Random, size: Size) -> Model:
    hidden, layers = draw.choice([(2048, 16), (4096, 32), (6144, 48)])
    return Model(
        layer_count=layers,
        hidden_size=hidden,
        sequence_length=draw.choice([1024, 2048, 4096]),
        global_batch=size.world_size * SEQUENCES_PER_RANK,
    )


def _machine(draw: Random, peak_flops: float) -> Machine:
    return Machine(
        flops=peak_flops * draw.uniform(0.35, 0.6),
        ranks_per_node=draw.choice([4, 8]),
        scale_up_bytes_per_s=draw.choice([60e9, 200e9, 400e9]),
        scale_out_bytes_per_s=draw.choice([6e9, 12e9, 25e9]),
        latency_s=draw.uniform(5e-6, 30e-6),
        saturation_tokens=draw.uniform(500, 4000),
        overlap=draw.uniform(0.2, 0.85),
        slicing_loss=draw.uniform(0.0, 0.08),
    )


def _space(size: Size) -> SearchSpace:
    powers = tuple(2**n for n in range(size.world_size.bit_length()))
    choices: Mapping[str, tuple[Value, ...]] = {
        **dict.fromkeys(("tp", "pp", "dp_shard", "dp_replicate"), powers),
        "micro_batch": (1, 2, 4, 8),
        "activation_checkpointing": ("none", "selective", "full"),
        "pipeline_schedule": ("1f1b", "interleaved_1f1b"),
        "fsdp_reshard": ("always", "never"),
    }
    when = {"pipeline_schedule": "pp > 1", "fsdp_reshard": "dp_shard > 1"}
    return SearchSpace(
        dimensions=tuple(
            Dimension(name=name, choices=choices[name], when=when.get(name)) for name in size.knobs
        ),
        constraints=tuple(_rules(size)),
        defaults={} if "dp_replicate" in size.knobs else {"dp_replicate": 1},
    )


def _rules(size: Size) -> Iterator[Constraint]:
    ranks = "tp * pp * dp_shard * dp_replicate"
    yield Constraint(name="ranks", expression=f"{ranks} == world_size", reason="all ranks work")
    yield Constraint(
        name="batch",
        expression="global_batch % (dp_shard * dp_replicate * micro_batch) == 0",
        reason="each rank takes whole micro-batches",
    )
    yield Constraint(
        name="heads", expression="head_count % tp == 0", reason="ranks hold whole heads"
    )
    yield Constraint(
        name="layers", expression="layer_count % pp == 0", reason="stages of equally many layers"
    )
    if "pipeline_schedule" in size.knobs:
        yield Constraint(
            name="interleaved_layers",
            expression="pipeline_schedule == '1f1b' or layer_count % (2 * pp) == 0",
            reason="each rank holds two stages",
        )


def _workload(model: Model) -> Workload:
    heads = model.hidden_size // 128
    return Workload(
        name="generated-decoder",
        global_batch=model.global_batch,
        sequence_length=model.sequence_length,
        precision="bf16",
        family="dense",
        layer_count=model.layer_count,
        hidden_size=model.hidden_size,
        head_count=heads,
        kv_head_count=heads,
        ffn_size=model.hidden_size * 11 // 4,
        vocab_size=32000,
    )


def _environment(machine: Machine, size: Size, accelerator: str) -> Environment:
    return Environment(
        name="generated",
        device="cuda",
        accelerator=accelerator,
        world_size=size.world_size,
        ranks_per_node=machine.ranks_per_node,
        scale_up=Link(
            bandwidth_bytes_per_s=machine.scale_up_bytes_per_s, latency_s=machine.latency_s
        ),
        scale_out=Link(
            bandwidth_bytes_per_s=machine.scale_out_bytes_per_s, latency_s=machine.latency_s
        ),
    )


def _memory(configs: Sequence[Config], model: Model, draw: Random) -> int:
    """As much memory as leaves between 15 and 45 % of all configurations without enough."""
    needed = sorted(memory_bytes(plan_of(config.values), model) for config in configs)
    return int(needed[int(len(needed) * draw.uniform(0.55, 0.85))])


def _seed(entries: Sequence[Entry]) -> Entry:
    """A start that fits and is slower than seven of eight."""
    measured = sorted((entry for entry in entries if entry.samples), key=lambda e: e.samples[0])
    return measured[len(measured) * 7 // 8]
