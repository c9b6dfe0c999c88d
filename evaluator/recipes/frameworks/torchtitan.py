"""TorchTitan: its launch line, by the flags of 0.2 and of 0.3."""

from collections.abc import Mapping, Sequence

import msgspec

from evaluator.recipes.frameworks.flags import Flags
from evaluator.recipes.frameworks.framework import FrameworkKnob, FrameworkRecipe
from evaluator.recipes.frameworks.launch_line import LaunchLine
from evaluator.recipes.frameworks.parser import Answer
from evaluator.recipes.knobs import new_rule
from records.expression import Rule
from records.study import Study, Value
from records.trial import Config

SUBCOMMAND = "activation-checkpoint:"
"""Since 0.3 checkpointing is chosen by a word after all flags, as in activation-checkpoint:full."""
RENAMED = {
    "--activation_checkpoint.mode": f"--{SUBCOMMAND.rstrip(':')}",
    "--parallelism.enable_async_tensor_parallel": "--compile.enable_async_tensor_parallel",
}
"""Flags of 0.3, by what they are called in 0.2."""


class TorchTitan(FrameworkRecipe):
    """Starts `torchtitan.train` under torchrun."""

    name = "torchtitan"

    def knobs_of(self, flags: Flags) -> Mapping[str, FrameworkKnob]:
        """Return the knobs whose flags a version has, under one of their names."""
        found = {}
        for name, knob in self.table.knobs.items():
            spellings = (knob.flag, RENAMED.get(knob.flag, knob.flag))
            own = next((flag for flag in spellings if flags.named(flag)), None)
            if own is not None:
                found[name] = msgspec.structs.replace(knob, flag=own)
        return found

    def knobs(self, study: Study) -> Mapping[str, FrameworkKnob]:
        """Return the knobs; batches are divisors of the global batch that are powers of two."""
        found = dict(super().knobs(study))
        batch = study.workload.global_batch
        sizes = [2**n for n in range(batch.bit_length()) if batch % 2**n == 0]
        for name in found.keys() & {"micro_batch", "pipeline_micro_batch"}:
            knob = found[name]
            choices = tuple(dict.fromkeys((knob.default, *sizes)))
            found[name] = msgspec.structs.replace(knob, choices=choices)
        if not study.workload.expert_count:
            found["ep"] = msgspec.structs.replace(found["ep"], searched=False)
        return found

    def rules(self, study: Study) -> tuple[Rule, ...]:
        """Every rule, and before 0.3 one that keeps gradients of the same scale."""
        unknown = self.table.knobs.keys() - self.knobs(study).keys()
        rules = tuple(r for r in super().rules(study) if not r.expression.names & unknown)
        if not self.version(study).startswith("0.2."):
            return rules
        seed = study.space.defaults
        unsharded = "dp_shard * cp * tp * pp == 1"
        scale = f"(dp_replicate if {unsharded} else 1)"
        is_replicated = all(seed.get(name, 1) == 1 for name in ("dp_shard", "cp", "tp", "pp"))
        own_scale = seed.get("dp_replicate", 1) if is_replicated else 1
        has_pipeline = int(seed.get("pp", 1)) > 1
        same = f"{scale} == {own_scale} and pp {'>' if has_pipeline else '=='} 1"
        return (
            *rules,
            new_rule(
                "gradients",
                same,
                "TorchTitan 0.2 trains on gradients of another scale than the launch line: those "
                "of DDP are divided by the replicas again "
                "(models/llama3/infra/parallelize.py:372), those of a pipeline are not divided by "
                "the tokens (train.py:523); mended in 0.3",
            ),
        )

    def meaning(self, study: Study, settings: Mapping[str, Value]) -> Mapping[str, Value]:  # noqa: ARG002 - for all frameworks
        """Return settings as the estimates have them: a pipeline computes smaller batches."""
        if settings.get("pp", 1) == 1:
            return settings
        return {**settings, "micro_batch": settings.get("pipeline_micro_batch", 1)}

    def knob_words(self, study: Study, name: str, settings: Mapping[str, Value]) -> Sequence[str]:
        """Return the arguments of one knob: switches have a `no_` after their section."""
        knob = self.knobs(study)[name]
        (word,) = knob.words(settings[name])
        flag, _, text = word.partition("=")
        if text in {"true", "false"}:
            section, _, switch = flag.rpartition(".")
            return (flag if text == "true" else f"{section}.no_{switch}",)
        if flag == RENAMED["--activation_checkpoint.mode"]:
            return (f"{SUBCOMMAND}{text.replace('_', '-')}",)
        return (word,)

    def flags(self, study: Study, config: Config) -> tuple[str, ...]:
        """Return the arguments of a configuration, a subcommand after all flags."""
        words = super().flags(study, config)
        return tuple(sorted(words, key=lambda word: word.startswith(SUBCOMMAND)))

    def _seeds(
        self, line: LaunchLine, flags: Flags, answer: Answer | None
    ) -> tuple[dict[str, Value], list[str]]:
        seeds, left = super()._seeds(line, flags, answer)
        at = next((i for i, word in enumerate(left) if word.startswith(SUBCOMMAND)), len(left))
        return seeds, left[:at]  # what follows a subcommand are its options
