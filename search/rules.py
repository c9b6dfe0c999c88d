"""How sure the search wants to be: while it looks around, and when it claims."""

from typing import assert_never

from evaluator.timing.paired import Rule
from records.study import Measure
from records.trial import Purpose

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


def least_rounds(purpose: Purpose, measure: Measure) -> int:
    """Rounds without which a contest decides nothing, or one where it is only thinned out."""
    match purpose:
        case Purpose.RACE:
            return race_rule(measure).min_rounds
        case Purpose.CONFIRM | Purpose.HELD_OUT:
            return claim_rule(measure).min_rounds
        case Purpose.HALVING | Purpose.SELF_TEST:
            return 1
        case _:
            assert_never(purpose)
