"""SGLang: a server under its own load; a step is a batch of requests."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from evaluator.recipes.frameworks.flags import folder_of
from evaluator.recipes.frameworks.framework import FrameworkKnob
from evaluator.recipes.frameworks.launch_line import LaunchLine
from evaluator.recipes.frameworks.parser import Answer
from evaluator.recipes.frameworks.vllm import Vllm
from records.study import Study
from records.trial import Config

_HOOK = "hook_vllm.py"


class SGLang(Vllm):
    """Starts `sglang.launch_server` and loads it, as the recipe of vLLM does with its server."""

    name = "sglang"

    def study(self, line: LaunchLine, base: Study, answer: Answer | None = None) -> Study:
        """Return the search around a launch line; its steps are not profiled."""
        study = super().study(line, base, answer)
        return replace(study, measure=replace(study.measure, profiled_steps=0))

    def knobs(self, study: Study) -> Mapping[str, FrameworkKnob]:
        """Return the knobs; a dense model leaves none of experts to choose."""
        found = dict(super().knobs(study))
        if not study.workload.expert_count:
            only = (found["ep"].default,)
            found["ep"] = msgspec.structs.replace(found["ep"], choices=only)
        return found

    def files(self, study: Study, config: Config) -> Mapping[str, str]:
        """Return the traffic, and the hook whose server and report this one has."""
        shared = (folder_of(self.name) / "in_job" / _HOOK).read_text("utf-8")
        return {**super().files(study, config), _HOOK: shared}
