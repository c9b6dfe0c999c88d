"""Runs a script of transformers or accelerate whose optimizer steps are timed.

A `Trainer` gets a callback. A loop of the script's own is followed by accelerate's optimizer, which
steps where gradients are synchronized. Both end with the last step that the study asks for.
"""

import functools
import os
from typing import Any

import hook
from accelerate import Accelerator, data_loader
from accelerate.optimizer import AcceleratedOptimizer

import cclsearch

trainers: list[Any] = []
"""Once there is one, it reports the steps."""
last_batch: list[Any] = [None]


def follow_trainer() -> None:
    """Have every Trainer report its steps, with the loss of all their micro-batches."""
    from transformers import Trainer, TrainerCallback

    build, train_micro_batch = Trainer.__init__, Trainer.training_step
    losses: list[Any] = []

    class Steps(TrainerCallback):
        def on_train_begin(self, *_: object, **__: object) -> None:
            cclsearch._first_mark()

        def on_step_end(self, *_: object, **__: object) -> None:
            cclsearch.log(loss=sum(losses))
            losses.clear()
            hook.end_step()

    @functools.wraps(build)
    def build_with_callback(self: Any, *words: Any, **settings: Any) -> None:
        build(self, *words, **settings)
        self.add_callback(Steps())
        trainers.append(self)

    @functools.wraps(train_micro_batch)
    def train_and_count(self: Any, model: Any, inputs: Any, *words: Any, **settings: Any) -> Any:
        cclsearch.log(tokens=fed(inputs))
        loss = train_micro_batch(self, model, inputs, *words, **settings)
        losses.append(loss.detach())
        return loss

    Trainer.__init__, Trainer.training_step = build_with_callback, train_and_count


def follow_accelerator() -> None:
    """Have accelerate say what it trains with, and report losses, tokens and gradient norms."""
    build, backward = Accelerator.__init__, Accelerator.backward
    clip = Accelerator.clip_grad_norm_

    @functools.wraps(build)
    def build_and_say(self: Any, *words: Any, **settings: Any) -> None:
        build(self, *words, **settings)
        hook.say(f"accelerate trains with {strategy(self.state)}")

    @functools.wraps(backward)
    def log_and_backward(self: Any, loss: Any, **settings: Any) -> Any:
        if not trainers:
            cclsearch.log(loss=loss, tokens=fed(last_batch[0]))
        return backward(self, loss, **settings)

    @functools.wraps(clip)
    def clip_and_log(self: Any, *words: Any, **settings: Any) -> Any:
        norm = clip(self, *words, **settings)
        if self.sync_gradients:
            whole = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
            cclsearch.log(grad_norm=whole)
        return norm

    Accelerator.__init__, Accelerator.backward = build_and_say, log_and_backward
    Accelerator.clip_grad_norm_ = clip_and_log


def follow_loop() -> None:
    """Time the optimizer steps of a loop without a Trainer, from its first batch on."""
    step = AcceleratedOptimizer.step

    def follow_batches(kind: Any) -> None:
        iterate = kind.__iter__

        @functools.wraps(iterate)
        def iterate_and_keep(self: Any) -> Any:
            for last_batch[0] in iterate(self):
                if not trainers:
                    cclsearch._first_mark()
                yield last_batch[0]

        kind.__iter__ = iterate_and_keep

    @functools.wraps(step)
    def step_and_mark(self: Any, *words: Any, **settings: Any) -> Any:
        result = step(self, *words, **settings)
        if self.gradient_state.sync_gradients and not trainers:
            hook.end_step()
        return result

    follow_batches(data_loader.DataLoaderShard)
    follow_batches(data_loader.DataLoaderDispatcher)
    AcceleratedOptimizer.step = step_and_mark


def strategy(state: Any) -> str:
    """Return what accelerate made of the options, which is not always what they ask for."""
    kind = state.distributed_type.value
    if kind == "DEEPSPEED":
        return f"zero{state.deepspeed_plugin.zero_stage}"
    if kind == "FSDP":
        return "fsdp"
    return "ddp" if kind.startswith("MULTI_") else "no other rank"


def fed(batch: Any) -> "int | None":
    """Return the tokens of a batch; its samples where the study does not say how long they are."""
    if os.environ.get("SEQUENCE_LENGTH", "1") != "1":
        return cclsearch._token_count(batch)
    parts = batch.values() if hasattr(batch, "values") else batch
    sizes = (len(part) for part in parts if getattr(part, "ndim", 0))
    return next(sizes, None)


if __name__ == "__main__":
    follow_accelerator()
    follow_loop()
    follow_trainer()
    hook.run_program()
