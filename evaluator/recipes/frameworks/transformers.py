"""Transformers and accelerate: a Trainer's options, or those of accelerate's launcher."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from evaluator.recipes.frameworks.deepspeed import changed_paths, with_paths
from evaluator.recipes.frameworks.framework import FrameworkRecipe
from evaluator.recipes.frameworks.launch_line import LaunchLine
from evaluator.recipes.frameworks.parser import Answer
from evaluator.recipes.knobs import new_rule
from records.expression import Rule
from records.scrub import expanded
from records.study import Study, Value

_LAUNCHED = re.compile(
    r"--(multi_gpu|use_fsdp|fsdp_version|fsdp_reshard\w*|use_deepspeed|zero_\w+)"
)
"""Options of accelerate's launcher by which it is asked for a strategy."""
_TRAINER_OPTIONS = re.compile(r"HfArgumentParser|TrlParser|TrainingArguments")
_OWN_OPTION = re.compile(r"""add_argument\(\s*["']--([\w-]+)""")


class Transformers(FrameworkRecipe):
    """Starts a script that trains with a Trainer or with accelerate."""

    name = "transformers"

    def study(self, line: LaunchLine, base: Study, answer: Answer | None = None) -> Study:
        """Return the search around a launch line, of knobs that its script takes."""
        line = replace(line, launcher=_without_strategy(line))
        study = super().study(line, base, answer)
        values = answer.parsed[0].values if answer and answer.parsed else {}
        own = _own_options(study)
        dimensions = []
        for dimension in study.space.dimensions:
            knob, choices = self.table.knobs[dimension.name], dimension.choices or ()
            if dimension.name == "strategy":
                has_zero = answer is None or "deepspeed" in answer.versions
                choices = tuple(c for c in choices if has_zero or not str(c).startswith("zero"))
                by_us = own is None or (_by_launcher(study) and base.environment.device != "cpu")
                is_taken = by_us and len(choices) > 1
            else:
                is_taken = own is None or all(name in own for name in _options_of(knob.flag))
            is_other = dimension.name == "optimizer" and values.get(knob.flag) not in knob.choices
            if is_taken and not is_other:
                dimensions.append(replace(dimension, choices=choices))
        return replace(study, space=replace(study.space, dimensions=tuple(dimensions)))

    def rules(self, study: Study) -> tuple[Rule, ...]:
        """Return the rules, with the one that CPUs add."""
        rules = super().rules(study)
        return rules if study.environment.device != "cpu" else (*rules, _NO_ZERO_ON_CPUS)

    def knob_words(self, study: Study, name: str, settings: Mapping[str, Value]) -> Sequence[str]:
        """Return the arguments of one knob; the strategy has those of all that shard."""
        knob, own = self.table.knobs[name], _own_options(study)
        if name == "strategy":
            return self._strategy_words(study, settings)
        if not knob.flag.startswith("--") or name.endswith("_settings"):
            return ()
        if own is not None and not own.issuperset(_options_of(knob.flag)):
            return ()
        if name == "micro_batch":
            samples = int(settings[name]) * study.environment.world_size
            parts = max(1, study.workload.global_batch // samples)
            return (*knob.words(settings[name]), f"--gradient_accumulation_steps={parts}")
        in_fsdp = name == "activation_checkpointing" and settings["strategy"] == "fsdp"
        return () if in_fsdp and own is None else knob.words(settings[name])

    def work_words(self, study: Study, settings: Mapping[str, Value]) -> tuple[str, ...]:
        """Return the arguments that hold the work equal; a script with its own options has none."""
        words = () if _own_options(study) is not None else super().work_words(study, settings)
        searched = {dimension.name for dimension in study.space.dimensions}
        fixed = (name for name in ("strategy", "micro_batch") if name not in searched)
        return (*words, *(w for name in fixed for w in self.knob_words(study, name, settings)))

    def _strategy_words(self, study: Study, settings: Mapping[str, Value]) -> tuple[str, ...]:
        strategy, on_cpu = str(settings["strategy"]), study.environment.device == "cpu"
        stage = strategy.removeprefix("zero")
        takes_options = _own_options(study) is None
        cpu = ("--use_cpu=true",) if on_cpu and takes_options else ()
        if _by_launcher(study):
            reshard = str(settings["reshard_after_forward"]).lower()
            fsdp = ("--use_fsdp", "--fsdp_version=2", f"--fsdp_reshard_after_forward={reshard}")
            sharded = ("--use_deepspeed", f"--zero_stage={stage}")
            return {"ddp": ("--multi_gpu", *cpu), "fsdp": (*fsdp, *cpu)}.get(strategy, sharded)
        if not takes_options:
            return ()
        changed = changed_paths(self, study, settings)
        if strategy.startswith("zero"):
            # Without --use_cpu: with it accelerate would take no DeepSpeed.
            zero = json.loads(str(settings["zero_settings"])) or dict(_ZERO_SETTINGS)
            paths: dict[str, Value] = {**_LEFT_TO_TRAINER}
            paths |= {"zero_optimization.stage": int(stage), **changed}
            return (f"--deepspeed={json.dumps(with_paths(zero, paths))}",)
        if strategy == "ddp":
            return cpu
        own = {"version": 2, **json.loads(str(settings["fsdp_settings"]))}
        own["reshard_after_forward"] = settings["reshard_after_forward"]
        own["activation_checkpointing"] = settings["activation_checkpointing"]
        return (*cpu, "--fsdp", f"--fsdp_config={json.dumps(own)}")

    def hooked(self, line: LaunchLine) -> tuple[str, ...]:
        """Return the command with the hook, and what the launcher is asked for before it."""
        if line.launcher_name != "accelerate":
            return super().hooked(line)
        asked = tuple(word for word in line.arguments if _LAUNCHED.match(word))
        left = tuple(word for word in line.arguments if word not in asked)
        launcher = (*line.launcher, *asked, "--main_process_port=0")
        return super().hooked(replace(line, launcher=launcher, arguments=left))

    def meaning(self, study: Study, settings: Mapping[str, Value]) -> Mapping[str, Value]:
        """Return the degrees of data parallelism that a strategy amounts to."""
        shards = settings["strategy"] in {"fsdp", "zero3"}
        degree = "dp_shard" if shards else "dp_replicate"
        return {**settings, degree: study.environment.world_size}


_LEFT_TO_TRAINER = dict.fromkeys(
    ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto"
)
_NO_ZERO_ON_CPUS = new_rule(
    "zero_on_cpus",
    "strategy in ['ddp', 'fsdp']",
    "on CPUs accelerate takes every rank for the only one once DeepSpeed trains, so ranks would "
    "train on the same samples (accelerate/state.py, PartialState: no backend, one process); the "
    "deepspeed recipe runs ZeRO there",
)
_ZERO_SETTINGS = {"zero_allow_untested_optimizer": True, "gradient_clipping": "auto"}


def _options_of(flag: str) -> tuple[str, ...]:
    """Return the options that a script needs for a knob: a micro-batch needs accumulation."""
    name = flag.removeprefix("--")
    is_batch = name == "per_device_train_batch_size"
    return (name, "gradient_accumulation_steps") if is_batch else (name,)


def _by_launcher(study: Study) -> bool:
    """Whether accelerate's launcher starts the script and is asked for the strategy."""
    return study.command is not None and "launch" in study.command.run[:4]


def _without_strategy(line: LaunchLine) -> tuple[str, ...]:
    """Return a launcher without what asks for a strategy, which each trial does."""
    words, kept = list(line.launcher), []
    while words:
        word = words.pop(0)
        if line.launcher_name != "accelerate" or not _LAUNCHED.match(word):
            kept.append(word)
        elif "=" not in word and words and not words[0].startswith("-"):
            words.pop(0)
    return tuple(kept)


def _own_options(study: Study) -> frozenset[str] | None:
    """Return the options that a script adds itself; None where it has TrainingArguments."""
    run = study.command.run if study.command else ()
    path = next((Path(expanded(w)) for w in run if w.endswith(".py")), None)
    if path is None or not path.is_file():
        return None
    text = path.read_text("utf-8", "replace")
    if _TRAINER_OPTIONS.search(text):
        return None
    return frozenset(name.replace("-", "_") for name in _OWN_OPTION.findall(text))
