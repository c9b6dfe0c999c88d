"""How sure the search wants to be: while it looks around, and when it claims."""

from evaluator.timing.paired import Rule
from records.study import Measure

LEAST_RACE_ROUNDS = 2


def race_rule(measure: Measure) -> Rule:
    """How a challenger is judged while searching: on few rounds, with the noise of earlier ones."""
    return Rule(
        margin=measure.margin,
        alpha=measure.alpha,
        min_rounds=LEAST_RACE_ROUNDS,
        max_rounds=max(measure.race_rounds, LEAST_RACE_ROUNDS),
    )


def claim_rule(measure: Measure) -> Rule:
    """How a claim is judged at the end: on fresh launches that have to speak for themselves."""
    least = max(measure.confirm_rounds, 1)
    return Rule(
        margin=measure.margin,
        alpha=measure.alpha,
        min_rounds=least,
        max_rounds=max(measure.max_confirm_rounds, least),
    )
