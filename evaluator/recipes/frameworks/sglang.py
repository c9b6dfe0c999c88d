"""SGLang: a server, whose ranks are those of all its replicas."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from evaluator.recipes.frameworks.framework import FrameworkKnob, FrameworkRecipe
from evaluator.recipes.frameworks.launch_line import LaunchLine
from evaluator.recipes.frameworks.parser import Answer
from records.study import Study
from records.workload import Workload


class SGLang(FrameworkRecipe):
    """Starts `sglang.launch_server`."""

    name = "sglang"

    def workload(self, base: Workload, line: LaunchLine, answer: Answer | None) -> Workload:
        """Return the requests of a step and the sizes of the model."""
        work = super().workload(base, line, answer)
        return replace(work, expert_count=work.expert_count or 0)

    def knobs(self, study: Study) -> Mapping[str, FrameworkKnob]:
        """Return the knobs; a dense model leaves none of experts to choose."""
        found = dict(super().knobs(study))
        if not study.workload.expert_count:
            only = (found["ep"].default,)
            found["ep"] = msgspec.structs.replace(found["ep"], choices=only)
        return found
