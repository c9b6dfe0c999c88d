"""Which part of the built-in model each rank of a pipeline holds, counted in parameters."""

from collections.abc import Iterator
from dataclasses import dataclass

from evaluator.memory.layer_sizes import Weights, edge_weights, layer_weights
from evaluator.rank.job import Config, Schedule, Workload

FOLDED = (Schedule.ZBV, Schedule.DUAL_PIPE_V)
SPLIT_BACKWARD = (Schedule.INTERLEAVED_ZERO_BUBBLE, *FOLDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageShare:
    """One stage: its layers, its parameters whole, and those that this rank holds of them."""

    layers: range
    whole: float
    held: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What the rank at one place of the pipeline holds.

    `held` parameters are its own for good; `unsharded` are those that it computes with. `edge` are
    the parameters of embedding and head among these, `largest_layer` those of its largest layer.
    """

    work: Workload
    config: Config
    place: int
    stages: tuple[StageShare, ...]
    held: float
    unsharded: float
    edge: float
    largest_layer: float
    gives_loss: bool

    @property
    def layer_count(self) -> int:
        """Layers in all its stages."""
        return sum(len(stage.layers) for stage in self.stages)

    @property
    def tokens(self) -> float:
        """Tokens of one micro-batch that this rank sees."""
        return self.config.micro_batch * self.work.sequence_length / self.config.cp


def shares(work: Workload, config: Config) -> Iterator[Share]:
    """What the rank at each place of the pipeline holds; without one there is one place."""
    count = config.pp * config.stages_per_rank
    for place in range(config.pp):
        numbers = _stage_numbers(config, place)
        stages = tuple(_stage(work, config, number, count) for number in numbers)
        edge = edge_weights(work, first=0 in numbers, last=count - 1 in numbers, tp=config.tp).total
        layers = [
            layer_weights(work, layer, tp=config.tp, ep=config.ep).total
            for stage in stages
            for layer in stage.layers
        ]
        yield Share(
            work=work,
            config=config,
            place=place,
            stages=stages,
            held=sum(stage.held for stage in stages),
            unsharded=edge + sum(layers),
            edge=edge,
            largest_layer=max(layers),
            gives_loss=count - 1 in numbers,
        )


def micro_batch_count(work: Workload, config: Config) -> int:
    """Forward passes per rank and step."""
    return work.global_batch // (config.dp * config.micro_batch)


def in_buckets(config: Config) -> bool:
    """Whether gradients live in buckets of DistributedDataParallel, for good."""
    return (
        config.dp_replicate > 1
        and config.dp_shard == config.tp == config.cp == config.stages_per_rank == 1
    )


def in_flight(config: Config, count: int, place: int) -> int:
    """Passes through single stages whose backward pass has yet to come, at most, of `count` each.

    1F1B starts its first backward pass when the first micro-batch is back from the stages after
    it; looped schedules warm up two steps for each rank after this one and a round for each
    further stage; folded ones never hold more than 1F1B does on its first rank. Zero-bubble
    schedules keep what the split-off part of a backward pass needs for about as long.
    """
    stages = config.stages_per_rank
    match config.pipeline_schedule:
        case _ if config.pp == 1:
            return 1
        case Schedule.GPIPE | Schedule.LOOPED_BFS:
            return count * stages
        case Schedule.ONE_F_ONE_B:
            return min(count, config.pp - place)
        case Schedule.INTERLEAVED | Schedule.INTERLEAVED_ZERO_BUBBLE:
            each_round = count // max(1, count // config.pp)
            warm_up = (stages - 1) * each_round + 2 * (config.pp - 1 - place)
            return min(count * stages, warm_up + 1)
        case _:
            return min(count * stages, stages * config.pp + 1)


def _stage_numbers(config: Config, place: int) -> tuple[int, ...]:
    count = config.pp * config.stages_per_rank
    if config.pp > 1 and config.pipeline_schedule in FOLDED:
        return place, count - 1 - place
    return tuple(range(place, count, config.pp))


def _stage(work: Workload, config: Config, number: int, count: int) -> StageShare:
    size = work.layer_count // count
    layers = range(number * size, (number + 1) * size)
    ends = {"first": number == 0, "last": number == count - 1}
    whole = edge_weights(work, **ends)
    own = edge_weights(work, **ends, tp=config.tp)
    for layer in layers:
        whole += layer_weights(work, layer)
        own += layer_weights(work, layer, tp=config.tp, ep=config.ep)
    return StageShare(layers=layers, whole=whole.total, held=_held(own, config))


def _held(own: Weights, config: Config) -> float:
    """What is left of a rank's weights once they are sharded; experts over fewer ranks."""
    if config.dp_shard == 1:
        return own.total
    shards = config.dp_shard * config.cp
    return own.plain / shards + own.routed / (shards / config.ep)
