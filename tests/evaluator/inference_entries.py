"""Inference whose ranks also write down what they chose, for tests that compare answers.

Runs inside ranks, so it knows only the standard library, torch and the rank's own modules.
"""

import json
from pathlib import Path

from torch import Tensor

from evaluator.rank.main import RankContext
from evaluator.workloads.inference import Answers, Inference, serve


def tell(context: RankContext) -> Inference:
    """Append the choices of each round to a file of this rank."""
    work = serve(context)
    plain_answer = work.answer
    told = Path(f"rank{context.rank}.answers.jsonl")

    def answer(tokens: Tensor, targets: Tensor) -> Answers:
        answers = plain_answer(tokens, targets)
        with told.open("a", encoding="ascii") as file:
            file.write(json.dumps(answers.choices.tolist()) + "\n")
        return answers

    work.answer = answer  # type: ignore[method-assign] # the same work, told
    return work
