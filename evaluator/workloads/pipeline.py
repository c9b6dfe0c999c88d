"""Pipeline parallelism: which stages a rank holds, and the order in which it works on them."""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    get_schedule_class,
)

from evaluator.rank.job import Config, Job, Schedule, Workload
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


def _borders(
    workload: Workload, config: Config, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, hidden states and logits without their numbers: no pass is spent on finding out."""
    batch, length = config.micro_batch, workload.sequence_length // config.cp
    sequence_ranks = config.tp if config.sequence_parallel else 1
    vocabulary_ranks = config.tp if config.loss_parallel else 1
    empty = partial(torch.empty, dtype=dtype, device="meta", requires_grad=True)
    return (
        torch.empty(batch, length, dtype=torch.long, device="meta"),
        empty(batch, length // sequence_ranks, workload.hidden_size),
        empty(batch, length, workload.vocab_size // vocabulary_ranks),
    )
