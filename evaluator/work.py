"""Whether two trials computed the same thing: their losses from the same seed must agree.

Some combinations of parallelism run at full speed and compute something else.
"""

import math

from records.study import Study
from records.trial import Failed, FailureKind, Measurement, Stage

TOLERANCE = {"fp32": 2e-3, "bf16": 5e-2}
"""Largest relative difference of a loss; reduction order alone gives about 1e-5 in fp32."""


def other_work(measured: Measurement, reference: Measurement, study: Study) -> Failed | None:
    """Give a failure when the losses differ step by step from those of the reference trial."""
    tolerance = TOLERANCE.get(study.workload.precision, max(TOLERANCE.values()))
    for step, (loss, expected) in enumerate(zip(measured.losses, reference.losses, strict=False)):
        if not math.isclose(loss, expected, rel_tol=tolerance):
            return Failed(
                stage=Stage.MEASURE,
                kind=FailureKind.INVALID_CONFIG,
                message=f"computed something else: loss {loss:.4f} at step {step}, "
                f"the first measured trial had {expected:.4f}",
            )
    return None
