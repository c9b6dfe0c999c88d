"""Landscapes drawn from an analytic model of one training step on 3D-parallel ranks.

`generated:7` is some 630 configurations, `generated:small-7` 180 and `generated:large-7` 1700; no
real launch is judged by them. With `-anonymous`, names of knobs give no hint, and there are no
estimates. A step is compute that saturates with the tokens of a micro-batch, the pipeline's bubble,
tensor-, data- and pipeline-parallel communication in and between nodes, and recomputation; pairs
of settings interact in ways that no cost model knows, and launches differ by 3 % (log-normal).
Between 15 and 45 % of the configurations run out of memory.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from random import Random
from typing import Final, TypeAlias

from policies.space import Space
from records.codec import with_texts
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
from search.strategy_bench.landscape import Entry, Fault, Landscape, with_estimates

BYTES = 2
"""Of a parameter, a gradient or an activation on the wire."""
STATE_BYTES = 12
"""Of a parameter's optimizer state: a master copy and two moments."""
RECOMPUTE_SHARE = {"none": 0.0, "selective": 0.06, "full": 0.30}
"""Further compute, as a share."""
ACTIVATION_BYTES = {"none": 34.0, "selective": 18.0, "full": 2.0}
"""Bytes of activations for each token and hidden unit of a layer."""
OVERLAP_SLOWDOWN = 0.08
"""What hidden communication takes from compute, as a share of itself: the memory's bandwidth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Sizes of a decoder and the work of a step."""

    layer_count: int
    hidden_size: int
    sequence_length: int
    global_batch: int

    @property
    def parameter_count(self) -> float:
        """Parameters of all layers."""
        return 12.0 * self.layer_count * self.hidden_size**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the ranks can do; `flops` is what large matrices reach.

    `overlap` is the share of data-parallel communication that compute can hide,
    `saturation_tokens` how many tokens in a micro-batch reach half of the efficiency, and
    `slicing_loss` the share of it that each doubling of `tp` costs.
    """

    flops: float
    ranks_per_node: int
    scale_up_bytes_per_s: float
    scale_out_bytes_per_s: float
    latency_s: float
    saturation_tokens: float
    overlap: float
    slicing_loss: float

    def bandwidth(self, span: int) -> float:
        """Bytes per second and rank, in a group over `span` neighbouring ranks."""
        inside = span <= self.ranks_per_node
        return self.scale_up_bytes_per_s if inside else self.scale_out_bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A configuration as the model takes it; `chunks` are the pipeline stages of a rank."""

    tp: int
    pp: int
    shards: int
    replicas: int
    micro_batch: int
    checkpointing: str
    chunks: int
    keeps_gathered: bool

    def micro_batch_count(self, model: Model) -> float:
        """Micro-batches that a rank takes in a step."""
        return model.global_batch / (self.shards * self.replicas * self.micro_batch)


def plan_of(settings: Mapping[str, Value]) -> Plan:
    """The plan of settings by the names of the built-in recipe."""
    return Plan(
        tp=int(settings["tp"]),
        pp=int(settings["pp"]),
        shards=int(settings["dp_shard"]),
        replicas=int(settings.get("dp_replicate", 1)),
        micro_batch=int(settings["micro_batch"]),
        checkpointing=str(settings["activation_checkpointing"]),
        chunks=2 if settings.get("pipeline_schedule") == "interleaved_1f1b" else 1,
        keeps_gathered=settings.get("fsdp_reshard") == "never",
    )


def step_s(plan: Plan, model: Model, machine: Machine) -> float:
    """Seconds of a step: compute, its bubble, and communication that compute does not hide."""
    count = plan.micro_batch_count(model)
    compute = count * _micro_batch_s(plan, model, machine)
    tensor = count * _tensor_s(plan, model, machine)
    bubble = (compute + tensor) * (plan.pp - 1) / (count * plan.chunks)
    data = _data_s(plan, model, machine)
    hidden = min(machine.overlap * data, 0.7 * compute)
    pipeline = count * _pipeline_s(plan, model, machine)
    return compute + OVERLAP_SLOWDOWN * hidden + bubble + tensor + data - hidden + pipeline


def memory_bytes(plan: Plan, model: Model) -> float:
    """What the rank that needs most needs."""
    own = model.parameter_count / (plan.tp * plan.pp)
    gathered = own if plan.keeps_gathered else own / plan.shards
    state = BYTES * gathered + own / plan.shards * (BYTES + STATE_BYTES)
    tokens = plan.micro_batch * model.sequence_length
    layers = model.layer_count / plan.pp
    kept = ACTIVATION_BYTES[plan.checkpointing] * tokens * model.hidden_size * layers / plan.tp
    deepest = plan.pp * (1.25 if plan.chunks > 1 else 1.0)
    in_flight = min(plan.micro_batch_count(model), deepest)
    working = 40.0 * tokens * model.hidden_size / plan.tp
    return state + kept * in_flight + working


def _micro_batch_s(plan: Plan, model: Model, machine: Machine) -> float:
    tokens = plan.micro_batch * model.sequence_length
    attention = 1 + model.sequence_length / (6 * model.hidden_size)
    flops = 6 * model.parameter_count * tokens * attention / (plan.tp * plan.pp)
    filled = tokens / plan.tp
    reached = filled / (filled + machine.saturation_tokens / 4)
    sliced = (1 - machine.slicing_loss) ** (plan.tp.bit_length() - 1)
    more = 1 + RECOMPUTE_SHARE[plan.checkpointing]
    return flops * more / (machine.flops * reached * sliced)


def _tensor_s(plan: Plan, model: Model, machine: Machine) -> float:
    """Four all-reduces a layer, two more where the backward pass recomputes the forward one."""
    if plan.tp == 1:
        return 0.0
    calls = (6 if plan.checkpointing == "full" else 4) * model.layer_count / plan.pp
    size = plan.micro_batch * model.sequence_length * model.hidden_size * BYTES
    carried = 2 * size * (plan.tp - 1) / plan.tp / machine.bandwidth(plan.tp)
    return calls * (carried + plan.tp * machine.latency_s)


def _data_s(plan: Plan, model: Model, machine: Machine) -> float:
    """Shards gathered and scattered for each layer, then replicas' gradients summed."""
    size = model.parameter_count / (plan.tp * plan.pp) * BYTES
    layers = model.layer_count / plan.pp
    seconds = 0.0
    if plan.shards > 1:
        passes = 2.0 if plan.keeps_gathered else 3.0
        share = passes * size * (plan.shards - 1) / plan.shards
        seconds += share / machine.bandwidth(plan.tp * plan.shards)
        seconds += passes * layers * plan.shards * machine.latency_s
    if plan.replicas > 1:
        share = 2 * size / plan.shards * (plan.replicas - 1) / plan.replicas
        seconds += share / machine.bandwidth(plan.tp * plan.shards * plan.replicas)
        seconds += layers * plan.replicas * machine.latency_s
    return seconds


def _pipeline_s(plan: Plan, model: Model, machine: Machine) -> float:
    """Activations and their gradients, handed to the next stage and back."""
    if plan.pp == 1:
        return 0.0
    size = plan.micro_batch * model.sequence_length * model.hidden_size * BYTES / plan.tp
    span = plan.tp * plan.shards * plan.replicas * 2
    return 2 * plan.chunks * (size / machine.bandwidth(span) + machine.latency_s)


TEXT_OR_NAME = re.compile(r"'[^']*'|\"[^\"]*\"|\b[A-Za-z_]\w*\b")


def anonymise(landscape: Landscape) -> Landscape:
    """The landscape with numbered knobs and texts, and without estimates, reasons and causes."""
    space = landscape.space
    choices = [choice for dimension in space.dimensions for choice in dimension.choices or ()]
    texts = dict.fromkeys(choice for choice in choices if isinstance(choice, str))
    knobs = {each.name: f"knob_{n}" for n, each in enumerate(space.dimensions, start=1)}
    values = {text: f"value_{n}" for n, text in enumerate(texts, start=1)}
    words = {**{repr(old): repr(new) for old, new in values.items()}, **knobs}

    def change(text: str) -> str:
        """Rename a choice, or what an expression names."""
        if text in values:
            return values[text]
        return TEXT_OR_NAME.sub(lambda found: words.get(found[0].replace('"', "'"), found[0]), text)

    rules = (
        Constraint(name=f"rule_{n}", expression=rule.expression)
        for n, rule in enumerate(space.constraints, start=1)
    )
    entries = (
        replace(
            entry,
            failure=entry.failure and replace(entry.failure, message="it failed"),
            estimate=None,
        )
        for entry in landscape.entries
    )
    bare = replace(
        landscape,
        about="A landscape under names that say nothing.",
        launch=None,
        command=None,
        space=replace(space, constraints=tuple(rules)),
        entries=tuple(entries),
    )
    return with_texts(bare, change)


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
_Effects: TypeAlias = Mapping[tuple[tuple[str, str], tuple[Value, Value]], float]
CORE: Final = ("tp", "pp", "dp_shard", "micro_batch", "activation_checkpointing")


@dataclass(frozen=True, slots=True)
class Size:
    """How large a generated space is: its ranks, and the knobs that are searched."""

    world_size: int
    knobs: tuple[str, ...]


SIZES: Final[Mapping[str, Size]] = {
    "small": Size(16, CORE),
    "medium": Size(16, (*CORE, "dp_replicate", "pipeline_schedule")),
    "large": Size(32, (*CORE, "dp_replicate", "pipeline_schedule", "fsdp_reshard")),
}
INTERLEAVED: Final = "interleaved_layers"
RULES: Final = (
    ("ranks", "tp * pp * dp_shard * dp_replicate == world_size", "all ranks work"),
    (
        "batch",
        "global_batch % (dp_shard * dp_replicate * micro_batch) == 0",
        "each rank takes whole micro-batches",
    ),
    ("heads", "head_count % tp == 0", "ranks hold whole heads"),
    ("layers", "layer_count % pp == 0", "stages of equally many layers"),
    (
        INTERLEAVED,
        "pipeline_schedule == '1f1b' or layer_count % (2 * pp) == 0",
        "each rank holds two stages",
    ),
)
"""Name, expression and reason of each."""
SEQUENCES_PER_RANK: Final = 4
ACCELERATORS: Final[Mapping[str, float]] = {
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA A40": 149.7e12,
}
"""Peak of each, in bf16."""


def generate_landscape(name: str) -> Landscape:
    """The landscape of a name such as `generated:7`; raises `StudyError` for any other."""
    found = NAME.fullmatch(name.removeprefix(PREFIX))
    if not found:
        raise StudyError(f"{name!r} is not a generated landscape; write {HELP}")
    size, seed, anonymous = found.groups()
    landscape = _landscape(name, SIZES[size or "medium"], int(seed))
    return anonymise(landscape) if anonymous else landscape


def _landscape(name: str, size: Size, seed: int) -> Landscape:
    draw = Random(f"landscape/{seed}")
    model = _model(draw, size)
    accelerator = draw.choice(list(ACCELERATORS))
    machine = _machine(draw, ACCELERATORS[accelerator])
    workload, space = _workload(model), _space(size)
    environment = _environment(machine, size, accelerator)
    configs = Space(space, workload, environment).feasible
    memory = _memory(configs, model, draw)
    effects = _effects(space, draw)
    entries = [_entry(config, model, machine, memory, effects) for config in configs]
    return with_estimates(
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


def _entry(config: Config, model: Model, machine: Machine, memory: int, effects: _Effects) -> Entry:
    plan = plan_of(config.values)
    needed = memory_bytes(plan, model)
    if needed > memory:
        words = f"out of memory: {needed / GIB:.1f} GiB needed, {memory / GIB:.1f} GiB there"
        fault = Fault(kind=FailureKind.OUT_OF_MEMORY, message=words)
        return Entry(config=config.values, failure=fault)
    seconds = step_s(plan, model, machine) * _factor(config, effects)
    return Entry(config=config.values, samples=(float(f"{seconds:.6g}"),))


def _effects(space: SearchSpace, draw: Random) -> _Effects:
    """How pairs of settings act together, drawn for each pair of choices of two knobs."""
    choices = {dimension.name: dimension.choices or () for dimension in space.dimensions}
    return {
        (knobs, pair): draw.gauss(0, INTERACTION_SIGMA)
        for knobs in PAIRS
        if choices.keys() >= {*knobs}
        for pair in product(choices[knobs[0]], choices[knobs[1]])
    }


def _factor(config: Config, effects: _Effects) -> float:
    """What the step time is multiplied by, for all pairs that the configuration has."""
    pairs = [knobs for knobs in PAIRS if config.values.keys() >= {*knobs}]
    return math.exp(
        math.fsum(effects[knobs, (config[knobs[0]], config[knobs[1]])] for knobs in pairs)
    )


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
        constraints=tuple(
            Constraint(name=name, expression=expression, reason=reason)
            for name, expression, reason in RULES
            if name != INTERLEAVED or "pipeline_schedule" in size.knobs
        ),
        defaults={} if "dp_replicate" in size.knobs else {"dp_replicate": 1},
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
    scale_up, scale_out = (
        Link(bandwidth_bytes_per_s=each, latency_s=machine.latency_s)
        for each in (machine.scale_up_bytes_per_s, machine.scale_out_bytes_per_s)
    )
    return Environment(
        name="generate_landscape",
        device="cuda",
        accelerator=accelerator,
        world_size=size.world_size,
        ranks_per_node=machine.ranks_per_node,
        scale_up=scale_up,
        scale_out=scale_out,
    )


def _memory(configs: Sequence[Config], model: Model, draw: Random) -> int:
    """As much memory as leaves between 15 and 45 % of all configurations without enough."""
    needed = sorted(memory_bytes(plan_of(config.values), model) for config in configs)
    return int(needed[int(len(needed) * draw.uniform(0.55, 0.85))])


def _seed(entries: Sequence[Entry]) -> Entry:
    """A start that fits and is slower than seven of eight."""
    measured = sorted((entry for entry in entries if entry.samples), key=lambda e: e.samples[0])
    return measured[len(measured) * 7 // 8]
