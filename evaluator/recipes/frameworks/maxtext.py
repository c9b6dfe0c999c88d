"""MaxText."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from evaluator.recipes.frameworks.framework import FrameworkKnob, FrameworkRecipe
from evaluator.recipes.frameworks.launch_line import LaunchLine
from evaluator.recipes.frameworks.parser import Answer
from records.expression import Rule
from records.study import Study, Value

_BATCH_AXES = ("dp", "dp_shard", "dp_shard_transpose", "ep")
"""Axes of the mesh along which devices see different sequences."""
_CPU_DEVICES = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


class MaxText(FrameworkRecipe):
    """Starts MaxText's training; one process drives all devices of the machine."""

    name = "maxtext"

    def started_ranks(self, line: LaunchLine) -> int | None:
        """Return the CPU devices that XLA_FLAGS of a line ask for, which are the ranks."""
        found = _CPU_DEVICES.search(line.environment.get("XLA_FLAGS", ""))
        return int(found[1]) if found else None

    def study(self, line: LaunchLine, base: Study, answer: Answer | None = None) -> Study:
        """Return the search around a launch line, with as many CPU devices as there are ranks."""
        study = super().study(line, base, answer)
        if base.environment.device != "cpu" or study.command is None:
            return study
        variables = study.command.environment
        others = _CPU_DEVICES.sub("", variables.get("XLA_FLAGS", "")).strip()
        count = f"--xla_force_host_platform_device_count={base.environment.world_size}"
        xla = {"XLA_FLAGS": f"{others} {count}".strip(), "JAX_PLATFORMS": "cpu"}
        return replace(study, command=replace(study.command, environment={**variables, **xla}))

    def knobs(self, study: Study) -> Mapping[str, FrameworkKnob]:
        """Return the knobs; the axis of experts is one of data where there are none."""
        knobs = {**super().knobs(study)}
        if not study.workload.expert_count:
            only = (knobs["ep"].default,)
            knobs["ep"] = msgspec.structs.replace(knobs["ep"], choices=only)
        return knobs

    def rules(self, study: Study) -> tuple[Rule, ...]:
        """Return the rules; a line that breaks the one about what has no effect may stay so."""
        rules = super().rules(study)
        if study.space.defaults.get("activation_checkpointing") != "none":
            return rules
        return tuple(rule for rule in rules if rule.constraint.name != "no_remat_in_a_scan")

    def seed(self, values: dict[str, Value], rank_count: int) -> dict[str, Value]:
        """Return the seeds with the batch of a device as that of the devices that share it."""
        per_device = float(values.get("micro_batch", 1))
        sequences = round(per_device * rank_count / _count(values, _BATCH_AXES))
        stages = max(1, int(values.get("stages_per_rank", 1)))  # -1 without a pipeline
        return {**values, "micro_batch": max(1, sequences), "stages_per_rank": stages}

    def knob_words(self, study: Study, name: str, settings: Mapping[str, Value]) -> Sequence[str]:
        """Return the arguments of one knob; a smaller micro-batch is made up for by more passes."""
        if name == "stages_per_rank":
            layers = (study.workload.layer_count or 1) // _count(settings, ("pp", name))
            own = super().knob_words(study, name, settings)
            return (*own, f"num_layers_per_pipeline_stage={layers}")
        if name != "micro_batch":
            return super().knob_words(study, name, settings)
        at_once = _count(settings, (*_BATCH_AXES, "micro_batch"))
        per_device = at_once / study.environment.world_size
        return (
            f"per_device_batch_size={per_device:g}",
            f"gradient_accumulation_steps={study.workload.global_batch // at_once}",
        )

    def meaning(self, study: Study, settings: Mapping[str, Value]) -> Mapping[str, Value]:  # noqa: ARG002 - the port
        """Return settings as estimates know them: experts' devices shard the other weights too."""
        cut = max(1, int(settings.get("pp", 1)))  # a forward pass, by the pipeline
        micro_batch = int(settings.get("micro_batch", 1)) // cut
        return {
            **settings,
            "dp_shard": _count(settings, _BATCH_AXES[1:]),
            "tp": _count(settings, ("tp", "tp_sequence")),
            "micro_batch": max(1, micro_batch),
        }


def _count(settings: Mapping[str, Value], names: Sequence[str]) -> int:
    return math.prod(int(settings.get(name, 1)) for name in names)
