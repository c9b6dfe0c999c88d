"""The built-in inference job: a batch of requests, each a prompt to be read and an answer to give.

A step is one batch. A rank's requests are answered in rounds of `micro_batch`: the prompts are
read together (prefill), which gives the first tokens, and then the answers grow by a token per pass
(decode). The choice is greedy, but what is read next is a token from the seed: a near tie that
another order of summation decides otherwise would change the rest of an answer, and no two layouts
could be compared. How likely the model finds those tokens is the loss.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.profiler import record_function

from evaluator.rank.job import Job, JobError
from evaluator.rank.main import RankContext
from evaluator.rank.steps import MarkedWork
from evaluator.workloads.model import (
    DTYPES,
    INIT_DEVIATION,
    Attention,
    CachedAttention,
    CausalAttention,
    Decoder,
    Stage,
    build_decoder,
)
from evaluator.workloads.parallelize import Layout, apply_inference_tensor_parallel, open_layout
from evaluator.workloads.training import Batches

_SHARPNESS = 4.0


def serve(context: RankContext) -> MarkedWork:
    """Build this rank's share of the inference job; every rank must call it.

    Raises `JobError` for axes whose ranks would have nothing to do.
    """
    job = context.job
    config = job.config
    if any(degree > 1 for degree in (config.dp_shard, config.cp, config.pp, config.ep)):
        raise JobError("config: inference spreads over dp_replicate and tp only")
    layout = open_layout(config, context.device)
    # Of an answer every token but the last is read.
    length = job.workload.sequence_length + job.workload.output_length - 1
    model = open_model(job, layout, length=length, device=context.device)
    return Inference(
        batches=Batches(
            replace(job.workload, sequence_length=length),
            replica=layout.place("dp_replicate"),
            replica_count=config.dp_replicate,
            positions=torch.arange(length),
            device=context.device,
        ),
        server=Server(model, partial(_open_cache, job, length, context.device)),
        layout=layout,
        job=job,
    )


class Server:
    """A model that reads sequences bit by bit and says what comes next."""

    def __init__(self, model: Decoder, room: Callable[[], CachedAttention]) -> None:
        """Take a model that is whole or sliced, and what makes the memory of one layer."""
        self._model = model
        self._layers = [part for part in model.modules() if isinstance(part, Attention)]
        self._caches = [room() for _ in self._layers]
        for layer, cache in zip(self._layers, self._caches, strict=True):
            layer.attend = cache
        self._length = 0

    def begin(self) -> None:
        """Forget the sequences read so far."""
        self._length = 0
        for cache in self._caches:
            cache.forget()

    def read(self, tokens: Tensor) -> Tensor:
        """Read on by (sequences, length) tokens; logits of the next, (sequences, vocabulary)."""
        start, self._length = self._length, self._length + tokens.shape[1]
        model = self._model
        assert model.embedding and model.norm and model.head
        for layer in self._layers:
            layer.places = slice(start, self._length)
        x = model.embedding(tokens)
        for block in model.blocks:
            x = block(x)
        logits: Tensor = model.head(model.norm(x[:, -1]))
        return logits


@dataclass(frozen=True, slots=True)
class Answers:
    """What a round came to, each of shape (requests, answer length)."""

    choices: Tensor
    """The likeliest token at every place."""
    losses: Tensor
    """Negative log likelihood of the token that was read instead."""


class Inference:
    """Answers one batch of requests per step and keeps how well it foresaw them."""

    def __init__(self, *, batches: Batches, server: Server, layout: Layout, job: Job) -> None:
        self._batches = batches
        self._server = server
        self._layout = layout
        self._job = job
        self._losses: list[Tensor] = []
        self._marks_ns: list[int] = []

    @torch.inference_mode()
    def step(self, index: int) -> int:
        """Answer batch `index`; return the tokens of prompts and answers, counted on one rank."""
        self._marks_ns.clear()
        tokens, targets = self._batches.take(index)
        rounds = zip(
            torch.split(tokens, self._job.config.micro_batch),
            torch.split(targets, self._job.config.micro_batch),
            strict=True,
        )
        losses = [self.answer(*sequences).losses for sequences in rounds]
        self._losses.append(torch.cat(losses).mean())
        workload = self._job.workload
        length = workload.sequence_length + workload.output_length
        return len(tokens) * length if self._layout.place("tp") == 0 else 0

    def answer(self, tokens: Tensor, targets: Tensor) -> Answers:
        """Read prompts and answer them; marks the end of the prefill and of the round."""
        prompt_length = self._job.workload.sequence_length
        prompts, rest = tokens[:, :prompt_length], tokens[:, prompt_length:]
        expected = targets[:, prompt_length - 1 :].unbind(1)
        self._server.begin()
        with record_function("prefill"):
            answers = [_choose(self._server.read(prompts), expected[0])]
            self._mark(tokens.device)
        for token, following in zip(rest.unbind(1), expected[1:], strict=True):
            with record_function("decode"):
                answers.append(_choose(self._server.read(token.unsqueeze(1)), following))
        self._mark(tokens.device)
        choices, losses = zip(*answers, strict=True)
        return Answers(torch.stack(choices, dim=1), torch.stack(losses, dim=1))

    def marks_ns(self) -> list[int]:
        """When each prefill and each decode of the latest step ended, but for the last."""
        return self._marks_ns[:-1]

    def global_losses(self) -> list[float]:
        """Mean loss of every step so far over all requests."""
        return self._layout.mean(self._losses, "dp_replicate")

    def _mark(self, device: torch.device) -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self._marks_ns.append(time.perf_counter_ns())


def _choose(logits: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest token, and the loss on the expected one; each (sequences,)."""
    return logits.argmax(-1), F.cross_entropy(logits.float(), expected, reduction="none")


def open_model(job: Job, layout: Layout, *, length: int, device: torch.device) -> Decoder:
    """Build this rank's slices of the model, for sequences of up to `length` tokens."""
    model = build_decoder(
        job.workload,
        Stage(0, 1),
        torch.arange(length),
        device=device,
        dtype=DTYPES[job.workload.precision],
    ).eval()
    _sharpen(model)
    tp = layout.axis("tp")
    if tp is not None:
        apply_inference_tensor_parallel(model, tp)
    return model


def _open_cache(job: Job, length: int, device: torch.device) -> CachedAttention:
    """Take room in one layer for a round of sequences of `length` tokens."""
    workload, config = job.workload, job.config
    shape = (config.micro_batch, workload.kv_head_count // config.tp, length, workload.head_width)
    keys, values = torch.empty(2, *shape, dtype=DTYPES[workload.precision], device=device)
    return CachedAttention(CausalAttention(config.attention_backend), keys, values)


@torch.no_grad()
def _sharpen(model: Decoder) -> None:
    """Scale what was drawn, so that an answer depends on everything said before.

    With weights as training starts from, keys lost from the cache or read at wrong places change
    losses by less than the tolerance with which trials are compared.
    """
    assert model.head is not None
    for parameter in [*model.blocks.parameters(), model.head.weight]:
        if parameter.ndim > 1:
            parameter.mul_(parameter.shape[-1] ** -0.5 / INIT_DEVIATION)
    model.head.weight.mul_(_SHARPNESS)
