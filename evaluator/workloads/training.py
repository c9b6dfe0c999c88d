"""The built-in training job: the same batches, model and optimizer for every configuration.

The tokens of a step are a function of workload and step alone. Every number is in the workload's
precision: parameters, gradients, optimizer state and what ranks send, unless a knob names another
format. Only the loss is computed in fp32.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from inspect import signature
from itertools import chain
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    get_schedule_class,
)
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from evaluator.rank.job import (
    ComputePrecision,
    Config,
    Job,
    JobError,
    OptimizerLoop,
    Schedule,
    Workload,
)
from evaluator.rank.main import RankContext
from evaluator.rank.steps import Work
from evaluator.workloads.context_parallel import own_positions
from evaluator.workloads.model import DTYPES, MicroBatchLoss, Stage, build_decoder
from evaluator.workloads.parallelize import MERGES_MESHES, Layout, open_layout, parallelize


class Accumulation:
    """Gradients add up over the micro-batches and are exchanged with the last one."""

    def __init__(self, model: nn.Module, loss: MicroBatchLoss, *, micro_batch: int) -> None:
        self._model = model
        self._loss = loss
        self._micro_batch = micro_batch

    def run(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Leave the gradients of (sequences, length) on the parameters; return the mean loss."""
        pieces = zip(
            torch.split(tokens, self._micro_batch),
            torch.split(targets, self._micro_batch),
            strict=True,
        )
        total = torch.zeros((), device=tokens.device)
        with self._loss.sliced():
            for i, (inputs, outputs) in enumerate(pieces):
                with self._exchange(wanted=i == self._loss.micro_batch_count - 1):
                    loss = self._loss(self._model(inputs), outputs)
                    torch.autograd.backward(loss)
                total += loss.detach()
        return total

    def _exchange(self, *, wanted: bool) -> AbstractContextManager[None]:
        if isinstance(self._model, FSDPModule):
            self._model.set_requires_gradient_sync(wanted)
        elif isinstance(self._model, DistributedDataParallel) and not wanted:
            return self._model.no_sync()
        return nullcontext()


class Pipeline:
    """Passes micro-batches through this rank's stages as the schedule says."""

    def __init__(
        self,
        models: Mapping[Stage, nn.Module],
        loss: MicroBatchLoss,
        job: Job,
        *,
        ranks: DeviceMesh,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._loss = loss
        self._takes_tokens = any(stage.is_first for stage in models)
        self._gives_loss = any(stage.is_last for stage in models)
        tokens, hidden, logits = _borders(job.workload, job.config, dtype)
        stages = [
            PipelineStage(
                model,
                stage.number,
                stage.count,
                device,
                input_args=tokens if stage.is_first else hidden,
                output_args=logits if stage.is_last else hidden,
                group=ranks.get_group(),
            )
            for stage, model in models.items()
        ]
        if device.type == "cpu" and not MERGES_MESHES:
            _mend_older_torch(stages)
        self._schedule = _schedule(job.config.pipeline_schedule, stages, loss)
        self._step: Callable[..., object] = self._schedule.step
        if "return_outputs" in signature(self._step).parameters:  # older torch always returns them
            self._step = partial(self._step, return_outputs=False)

    def run(self, tokens: Tensor, targets: Tensor) -> Tensor | None:
        """Leave the gradients of (sequences, length) on the parameters.

        Return the mean loss where the last stage is, `None` elsewhere.
        """
        inputs = (tokens,) if self._takes_tokens else ()
        parts: list[Tensor] = []
        with self._loss.sliced():
            self._step(
                *inputs,
                target=targets if self._gives_loss else None,
                losses=parts if self._gives_loss else None,
            )
        return torch.stack(parts).detach().sum() if parts else None


class _Together:
    """Messages that were started together."""

    def __init__(self, works: Sequence[dist.Work]) -> None:
        self._works = works

    def wait(self) -> None:
        """Wait for all of them."""
        for work in self._works:
            work.wait()


def _start(operations: list[dist.P2POp], desc: str | None = None) -> _Together | None:  # noqa: ARG001 - of torch
    return _Together(dist.batch_isend_irecv(operations)) if operations else None


def _mend_older_torch(stages: Sequence[PipelineStage]) -> None:
    """Make stages of torch before 2.10 work over gloo.

    Neighbours greet each other with numbers of two sizes, which gloo refuses; torch before 2.7
    waits only for the last of several messages, and the others are lost.
    """
    for stage in stages:
        vars(stage)["_get_init_p2p_neighbors_ops"] = list
    if not hasattr(schedules, "_wait_batch_p2p"):
        vars(schedules)["_batch_p2p"] = _start


def _schedule(
    name: Schedule, stages: Sequence[PipelineStage], loss: MicroBatchLoss
) -> PipelineScheduleSingle | PipelineScheduleMulti:
    kind = get_schedule_class(name.replace("_", ""))
    is_single = issubclass(kind, PipelineScheduleSingle)
    make: Callable[..., PipelineScheduleSingle | PipelineScheduleMulti] = kind
    if "scale_grads" in signature(kind).parameters:  # from torch 2.7 on
        make = partial(kind, scale_grads=False)  # the loss already carries the micro-batch count
    return make(stages[0] if is_single else list(stages), loss.micro_batch_count, loss_fn=loss)


def _borders(
    workload: Workload, config: Config, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, hidden states and logits without their numbers: no pass is spent on finding out."""
    batch, length = config.micro_batch, workload.sequence_length // config.cp
    sequence_ranks = config.tp if config.sequence_parallel else 1
    vocabulary_ranks = config.tp if config.loss_parallel else 1
    empty = partial(torch.empty, dtype=dtype, device="meta", requires_grad=True)
    logits = torch.bfloat16 if config.autocasts else dtype
    return (
        torch.empty(batch, length, dtype=torch.long, device="meta"),
        empty(batch, length // sequence_ranks, workload.hidden_size),
        empty(batch, length, workload.vocab_size // vocabulary_ranks, dtype=logits),
    )


_STRIDE = 7
_SEED_STRIDE = 1_000_003


class Batches:
    """One replica's share of each global batch, and of its sequences the given places."""

    def __init__(
        self,
        workload: Workload,
        *,
        replica: int,
        replica_count: int,
        positions: Tensor,
        device: torch.device,
    ) -> None:
        self._source = TextTokens(workload) if workload.text_file else SyntheticTokens(workload)
        self._seed = workload.seed
        share = workload.global_batch // replica_count
        self._rows = slice(replica * share, (replica + 1) * share)
        self._positions = positions
        self._device = device

    def take(self, index: int) -> tuple[Tensor, Tensor]:
        """Tokens and next tokens of batch `index`, each (sequences of this replica, positions)."""
        generator = torch.Generator().manual_seed(self._seed * _SEED_STRIDE + index)
        sequences = self._source.sequences(generator, self._rows)
        tokens, targets = sequences[:, self._positions], sequences[:, self._positions + 1]
        return tokens.to(self._device), targets.to(self._device)


class SyntheticTokens:
    """Each sequence starts at a random token and continues in equal strides around the vocabulary.

    Easy to learn, so that the loss falls within a few steps if, and only if, training works.
    """

    def __init__(self, workload: Workload) -> None:
        self._vocab_size = workload.vocab_size
        self._global_batch = workload.global_batch
        self._offsets = _STRIDE * torch.arange(workload.sequence_length + 1)

    def sequences(self, generator: torch.Generator, rows: slice) -> Tensor:
        """Draw the starts of a global batch; return some rows, a token longer than a sequence."""
        starts = torch.randint(self._vocab_size, (self._global_batch, 1), generator=generator)
        return (starts[rows] + self._offsets) % self._vocab_size


class TextTokens:
    """Pieces of a file, each byte a token; raises `JobError` if the file gives no sequence."""

    def __init__(self, workload: Workload) -> None:
        path = Path(str(workload.text_file)).expanduser()
        self._workload = workload
        self._span = torch.arange(workload.sequence_length + 1)
        try:
            size = path.stat().st_size
            if size < len(self._span):
                raise JobError(
                    f"text_file: {path} has {size} bytes, but a sequence takes {len(self._span)}"
                )
            self._bytes = torch.from_file(str(path), size=size, dtype=torch.uint8)
        except (OSError, RuntimeError) as error:
            raise JobError(f"text_file: {path} cannot be read: {error}") from error

    def sequences(self, generator: torch.Generator, rows: slice) -> Tensor:
        """Draw where all rows begin, and read those that are wanted, a token longer."""
        last = len(self._bytes) - len(self._span)
        starts = torch.randint(last + 1, (self._workload.global_batch, 1), generator=generator)
        return self._bytes[starts[rows] + self._span].long() % self._workload.vocab_size


_LEARNING_RATE = 1e-3


def open_optimizer(parameters: Iterable[nn.Parameter], loop: OptimizerLoop) -> torch.optim.AdamW:
    """Give AdamW over all parameters.

    Parameters spread over different ranks are in separate groups: one operation on many
    tensors cannot span them.
    """
    groups: defaultdict[DeviceMesh | None, list[nn.Parameter]] = defaultdict(list)
    for parameter in parameters:
        groups[parameter.device_mesh if isinstance(parameter, DTensor) else None].append(parameter)
    return torch.optim.AdamW(
        [{"params": group} for group in groups.values()],
        lr=_LEARNING_RATE,
        foreach=loop is OptimizerLoop.FOREACH,
        fused=loop is OptimizerLoop.FUSED,
    )


def train(context: RankContext) -> Work:
    """Build this rank's share of the training job; every rank must call it."""
    workload, config = context.job.workload, context.job.config
    # Set in any case: images of some makers have TF32 as the default.
    is_tf32 = config.compute_precision is ComputePrecision.TF32
    torch.set_float32_matmul_precision("high" if is_tf32 else "highest")
    layout = open_layout(config, context.device)
    dtype = DTYPES[workload.precision]
    positions = own_positions(config, layout.place("cp"), workload.sequence_length)
    own = config.stages_at(layout.place("pp"))
    models = {
        stage: parallelize(
            build_decoder(workload, stage, positions, device=context.device, dtype=dtype),
            config,
            layout,
        )
        for stage in (Stage(number, config.stage_count) for number in own)
    }
    parameters = chain.from_iterable(model.parameters() for model in models.values())
    tp, pp = layout.axis("tp"), layout.axis("pp")
    loss = MicroBatchLoss(context.job.micro_batch_count, tp if config.loss_parallel else None)
    passes: Accumulation | Pipeline
    if pp is None:
        (model,) = models.values()
        passes = Accumulation(model, loss, micro_batch=config.micro_batch)
    else:
        passes = Pipeline(models, loss, context.job, ranks=pp, device=context.device, dtype=dtype)
    return Training(
        batches=Batches(
            workload,
            replica=layout.place("dp_replicate") * config.dp_shard + layout.place("dp_shard"),
            replica_count=config.dp,
            positions=positions,
            device=context.device,
        ),
        passes=passes,
        optimizer=open_optimizer(parameters, config.optimizer_loop),
        layout=layout,
    )


class Training:
    """Repeats optimizer steps over the global batch and keeps their losses."""

    def __init__(
        self,
        *,
        batches: Batches,
        passes: Accumulation | Pipeline,
        optimizer: torch.optim.Optimizer,
        layout: Layout,
    ) -> None:
        self._batches = batches
        self._passes = passes
        self._optimizer = optimizer
        self._layout = layout
        self._losses: list[Tensor] = []

    def step(self, index: int) -> int:
        """Train on batch `index`; return the tokens fed where this rank counts them."""
        tokens, targets = self._batches.take(index)
        loss = self._passes.run(tokens, targets)
        self._optimizer.step()
        self._optimizer.zero_grad()
        if loss is not None:
            self._losses.append(loss)
        counts_tokens = self._layout.place("pp") == 0 and self._layout.place("tp") == 0
        return tokens.numel() if counts_tokens else 0

    def global_losses(self) -> list[float]:
        """Mean loss of every step so far; empty where the last stage is elsewhere."""
        return self._layout.mean(self._losses, "cp", "dp_shard", "dp_replicate")
