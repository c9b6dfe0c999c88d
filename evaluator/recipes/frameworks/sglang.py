"""SGLang: the space and rules of its server, whose ranks are those of all replicas."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from evaluator.recipes.frameworks.framework import FrameworkKnob, FrameworkRecipe
from evaluator.recipes.frameworks.launch_line import LaunchLine
from evaluator.recipes.frameworks.parser import Answer
from records.errors import StudyError
from records.study import Study
from records.workload import Workload


class SGLang(FrameworkRecipe):
    """Checks and spells configurations of `sglang.launch_server`; nothing sends it requests."""

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

    def check(self, study: Study) -> None:
        """Raise `StudyError`: a server without requests would run until the time limit."""
        super().check(study)
        raise StudyError(
            "the sglang recipe cannot measure its server yet; `cclsearch recipe check sglang` and "
            "`cclsearch space` work, and a script of your own can start the server and its load: "
            "see docs/own_script.md"
        )
