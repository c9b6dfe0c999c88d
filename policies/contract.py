"""What a policy is given and what its answer must be; from its text to a checked configuration."""

from collections.abc import Mapping
from dataclasses import asdict

from policies.sandbox import Refusal, SandboxUnavailable, run_policy
from policies.space import Space
from records.errors import EnvironmentFault
from records.study import Environment
from records.trial import Config, Failed, FailureKind, Policy, Stage
from records.workload import Workload

MAX_FAULTS = 5


def workload_fields(workload: Workload) -> Mapping[str, object]:
    """The `workload` argument of `generate_config`: every field, None where it is not known."""
    return asdict(workload)


def environment_fields(environment: Environment) -> Mapping[str, object]:
    """The `environment` argument of `generate_config`; links as nested dicts, in SI units."""
    return asdict(environment)


def decide(
    policy: Policy, workload: Workload, environment: Environment, space: Space
) -> Config | Failed:
    """Run a policy in the sandbox and check what it returns against the space.

    Raises `EnvironmentFault` when this machine cannot isolate policies.
    """
    try:
        answer = run_policy(
            policy.source, workload_fields(workload), environment_fields(environment)
        )
    except SandboxUnavailable as error:
        raise EnvironmentFault(str(error)) from error
    if isinstance(answer, Refusal):
        return Failed(stage=Stage.DECIDE, kind=FailureKind.POLICY_ERROR, message=_located(answer))
    config = space.check(answer)
    if isinstance(config, Config):
        return config
    return Failed(
        stage=Stage.CHECK, kind=FailureKind.INVALID_CONFIG, message="; ".join(config[:MAX_FAULTS])
    )


def _located(refusal: Refusal) -> str:
    at = f"line {refusal.line}: " if refusal.line is not None else ""
    return refusal.message if refusal.message.startswith("line ") else at + refusal.message
