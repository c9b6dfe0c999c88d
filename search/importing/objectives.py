"""What another tool was to reach, as an objective of ours."""

import re
from collections.abc import Mapping
from typing import Final, Literal

from evaluator.metrics.published import SCORE
from evaluator.objective import scoring
from records.errors import StudyError
from records.study import Objective
from search.importing.search_rows import Aim

NAMES: Final[Mapping[str, str]] = {"avg_step_time": "step_time", "T": "step_time", "G": "gpus"}
"""Their names of our metrics."""
_NAME = re.compile(r"\b[A-Za-z_]\w*\b")
PUBLISHED: Final = Objective(expression=SCORE, direction="minimize")


def objective_of(aim: Aim | None) -> Objective:
    """The same over our metrics; where they cannot tell it, the score as it was published."""
    if aim is None:
        return PUBLISHED
    direction: Literal["minimize", "maximize"]
    direction = "maximize" if aim.direction == "maximize" else "minimize"
    expression = _NAME.sub(lambda name: NAMES.get(name[0], name[0]), aim.formula)
    ours = Objective(expression=expression, direction=direction)
    try:
        scoring(ours)
    except StudyError:
        return Objective(expression=SCORE, direction=direction)
    return ours
