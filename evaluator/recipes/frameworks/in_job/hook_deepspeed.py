"""Runs a script whose DeepSpeed engine reports its optimizer steps, tokens and losses."""

import functools
from typing import Any

import hook
from deepspeed.runtime.engine import DeepSpeedEngine

import cclsearch


def follow_engine() -> None:
    """Time each step at which the gradients of all micro-batches are applied."""
    build, forward = DeepSpeedEngine.__init__, DeepSpeedEngine.forward
    backward, step = DeepSpeedEngine.backward, DeepSpeedEngine.step

    @functools.wraps(build)
    def build_and_say(self: Any, *words: Any, **settings: Any) -> None:
        build(self, *words, **settings)
        stage = int(self.zero_optimization_stage())
        hook.say(f"DeepSpeed trains with ZeRO stage {stage}")

    @functools.wraps(forward)
    def count_and_forward(self: Any, *words: Any, **settings: Any) -> Any:
        if self.training:
            cclsearch._first_mark()
            cclsearch.log(tokens=cclsearch._token_count(settings or words))
        return forward(self, *words, **settings)

    @functools.wraps(backward)
    def log_and_backward(self: Any, loss: Any, *words: Any, **settings: Any) -> Any:
        is_scaled = settings.get("scale_wrt_gas") is False
        parts = self.gradient_accumulation_steps() if is_scaled else 1
        cclsearch.log(loss=loss.detach() * parts)
        return backward(self, loss, *words, **settings)

    @functools.wraps(step)
    def step_and_mark(self: Any, *words: Any, **settings: Any) -> Any:
        is_last = self.is_gradient_accumulation_boundary()
        result = step(self, *words, **settings)
        if is_last:
            cclsearch.log(grad_norm=self.get_global_grad_norm())
            hook.end_step()
        return result

    DeepSpeedEngine.__init__, DeepSpeedEngine.forward = build_and_say, count_and_forward
    DeepSpeedEngine.backward, DeepSpeedEngine.step = log_and_backward, step_and_mark


if __name__ == "__main__":
    follow_engine()
    hook.run_program()
