"""Judges a policy before it becomes a trial: what it decides, or the exact rule that it breaks."""

from policies.space import Space
from records.history import History
from records.study import Study
from records.trial import Config, Failed, FailureKind, Measured, Policy, Trial
from search.contexts import decided
from search.learnt import learnt

UNDER_WAY = "same configuration as a trial that is being measured"


class Judge:
    """Runs policies of one study in the sandbox, and launches nothing."""

    def __init__(self, study: Study, space: Space) -> None:
        self._study = study
        self._space = space

    def __call__(self, policy: Policy, history: History) -> Config | str:
        """Give the configuration that a trial would launch, or why there would be none.

        Raises `EnvironmentFault` when this machine cannot isolate policies.
        """
        config = decided(policy, self._study, self._space)
        if isinstance(config, Failed):
            return _unusable(config)
        earlier = history.tried(config)
        if earlier is not None:
            return same_as(earlier)
        if config in history.pending:
            return UNDER_WAY
        for rule in learnt(self._space, history, self._study.revoked):
            broken = rule.breaks(config)
            if broken is not None:
                trials = ", ".join(f"#{ordinal}" for ordinal in rule.ordinals)
                return f"every trial like this ended in {rule.kind} ({trials}): {broken}"
        return config


def same_as(earlier: Trial) -> str:
    """That a configuration was launched before, and what came of it."""
    match earlier.outcome:
        case Measured():
            score = earlier.score
            result = f"scored {score.value:.6g} {score.unit}" if score else "was measured"
        case Failed() as failed:
            result = f"ended in {failed}"
    return f"same configuration as trial {earlier.ordinal}, which {result}"


def _unusable(failed: Failed) -> str:
    if failed.kind is FailureKind.POLICY_ERROR:
        return f"the policy failed: {failed.message}"
    return failed.message
