"""Pipeline parallelism: which stages a rank holds, and the order in which it works on them."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    get_schedule_class,
)

from evaluator.rank.job import Job, Schedule
from evaluator.workloads.model import MicroBatchLoss, Stage


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
        borders = _Borders(job, dtype)
        stages = [
            PipelineStage(
                model,
                stage.number,
                stage.count,
                device,
                input_args=borders.before(stage),
                output_args=borders.after(stage),
                group=ranks.get_group(),
            )
            for stage, model in models.items()
        ]
        self._schedule = _schedule(job.config.pipeline_schedule, stages, loss)

    def run(self, tokens: Tensor, targets: Tensor) -> Tensor | None:
        """Leave the gradients of (sequences, length) on the parameters.

        Return the mean loss where the last stage is, `None` elsewhere.
        """
        inputs = (tokens,) if self._takes_tokens else ()
        parts: list[Tensor] = []
        with self._loss.sliced():
            self._schedule.step(
                *inputs,
                target=targets if self._gives_loss else None,
                losses=parts if self._gives_loss else None,
                return_outputs=False,
            )
        return torch.stack(parts).detach().sum() if parts else None


def _schedule(
    name: Schedule, stages: Sequence[PipelineStage], loss: MicroBatchLoss
) -> PipelineScheduleSingle | PipelineScheduleMulti:
    kind = get_schedule_class(name.replace("_", ""))
    is_single = issubclass(kind, PipelineScheduleSingle)
    # The loss already carries the micro-batch count.
    schedule: PipelineScheduleSingle | PipelineScheduleMulti = kind(
        stages[0] if is_single else list(stages),
        loss.micro_batch_count,
        loss_fn=loss,
        scale_grads=False,
    )
    return schedule


class _Borders:
    """What crosses the borders of stages, so that no pass is spent on finding out."""

    def __init__(self, job: Job, dtype: torch.dtype) -> None:
        workload, config = job.workload, job.config
        self._dtype = dtype
        batch, length = config.micro_batch, workload.sequence_length // config.cp
        sequence_ranks = config.tp if config.sequence_parallel else 1
        vocabulary_ranks = config.tp if config.loss_parallel else 1
        self._tokens = (batch, length)
        self._hidden = (batch, length // sequence_ranks, workload.hidden_size)
        self._logits = (batch, length, workload.vocab_size // vocabulary_ranks)

    def before(self, stage: Stage) -> Tensor:
        """What goes into a stage, without its numbers."""
        if stage.is_first:
            return torch.empty(self._tokens, dtype=torch.long, device="meta")
        return self._floating(self._hidden)

    def after(self, stage: Stage) -> Tensor:
        """What comes out of a stage, without its numbers."""
        return self._floating(self._logits if stage.is_last else self._hidden)

    def _floating(self, shape: tuple[int, ...]) -> Tensor:
        return torch.empty(shape, dtype=self._dtype, device="meta", requires_grad=True)
