"""An analytic model of one training step on 3D-parallel ranks: its seconds, and its memory.

It is the truth of generated landscapes; nothing that is really launched is judged by it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from records.study import Value

BYTES = 2
"""Of a parameter, a gradient or an activation on the wire."""
STATE_BYTES = 12
"""Of a parameter's optimizer state: a master copy and two moments."""
RECOMPUTED = {"none": 0.0, "selective": 0.06, "full": 0.30}
"""Further compute, as a share."""
KEPT = {"none": 34.0, "selective": 18.0, "full": 2.0}
"""Bytes of activations for each token and hidden unit of a layer."""
SLOWED = 0.08
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
        """Bytes per second and rank, in a group that reaches over so many neighbouring ranks."""
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
    return compute + SLOWED * hidden + bubble + tensor + data - hidden + pipeline


def memory_bytes(plan: Plan, model: Model) -> float:
    """What the rank that needs most needs."""
    own = model.parameter_count / (plan.tp * plan.pp)
    gathered = own if plan.keeps_gathered else own / plan.shards
    state = BYTES * gathered + own / plan.shards * (BYTES + STATE_BYTES)
    tokens = plan.micro_batch * model.sequence_length
    layers = model.layer_count / plan.pp
    kept = KEPT[plan.checkpointing] * tokens * model.hidden_size * layers / plan.tp
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
    more = 1 + RECOMPUTED[plan.checkpointing]
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
