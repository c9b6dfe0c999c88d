"""What a policy receives and must return; run and check one policy; the built-in seeds."""

from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from importlib.resources import files
from pathlib import Path

from policies.space import Space
from records.errors import EnvironmentFault, StudyError, suggestion
from records.files import read_text
from records.scrub import expanded
from records.study import Environment
from records.trial import Config, Failed, FailureKind, Policy, Stage
from records.workload import Workload

MAX_FAULTS = 5


def workload_fields(workload: Workload) -> Mapping[str, object]:
    """The `workload` argument of `generate_config`: every field, None where it is not known."""
    return asdict(workload)


def environment_fields(environment: Environment) -> Mapping[str, object]:
    """The `environment` argument of `generate_config`; links as nested dicts, in SI units."""
    fields = asdict(environment)
    del fields["topology"]  # words, and only known once a search has its nodes
    return fields


def decide(
    policy: Policy, workload: Workload, environment: Environment, space: Space
) -> Config | Failed:
    """Run a policy in the sandbox and check what it returns against the space.

    Raises `EnvironmentFault` when this machine cannot isolate policies.
    """
    from policies.sandbox import Refusal, SandboxUnavailable, run_policy

    try:
        answer = run_policy(
            policy.source, workload_fields(workload), environment_fields(environment)
        )
    except SandboxUnavailable as error:
        raise EnvironmentFault(str(error)) from error
    if isinstance(answer, Refusal):
        message = answer.message
        if answer.line is not None and not message.startswith("line "):
            message = f"line {answer.line}: {message}"
        return Failed(stage=Stage.DECIDE, kind=FailureKind.POLICY_ERROR, message=message)
    config = space.check(answer)
    if isinstance(config, Config):
        return config
    return Failed(
        stage=Stage.CHECK, kind=FailureKind.INVALID_CONFIG, message="; ".join(config[:MAX_FAULTS])
    )


FIRST = "first"
"""The seed for spaces that no built-in policy knows."""


def seed_names() -> tuple[str, ...]:
    """Names of the built-in seeds."""
    entries = (files("policies") / "seeds").iterdir()
    written = (e.name.removesuffix(".py") for e in entries if e.name.endswith(".py"))
    return tuple(sorted((FIRST, *written)))


def is_feasible_seed(name: str, workload: Workload, environment: Environment, space: Space) -> bool:
    """Whether a built-in seed, which is ours and so needs no sandbox, decides within the space."""
    if name == FIRST:
        return True
    seed = import_module(f"policies.seeds.{name}")
    answer = seed.generate_config(workload_fields(workload), environment_fields(environment))
    return isinstance(space.check(answer), Config)


def seed_policy(name_or_path: str, space: Space) -> Policy:
    """A built-in seed by name, or a policy file by path; raises `StudyError` when neither is."""
    if name_or_path == FIRST:
        return _first(space)
    if name_or_path in seed_names():
        source = (files("policies") / "seeds" / f"{name_or_path}.py").read_text(encoding="utf-8")
        return Policy(source=source, author="seed", rationale=f"built-in seed {name_or_path}")
    try:
        source = read_text(Path(expanded(name_or_path)))
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(
            f"seed policy {name_or_path!r} is neither a built-in seed nor a readable file: "
            f"{getattr(error, 'strerror', None) or error}; {suggestion(name_or_path, seed_names())}"
        ) from error
    return Policy(source=source, author="seed", rationale=f"from {Path(name_or_path).name}")


def _first(space: Space) -> Policy:
    """A policy that decides for the first feasible configuration, in the order of the choices."""
    if not space.candidates:
        raise StudyError(
            f"seed policy {FIRST!r} needs a feasible configuration; give a policy file"
        )
    settings = dict(space.answer(space.candidates[0]))
    source = f"def generate_config(workload, environment):\n    return {settings!r}\n"
    return Policy(source=source, author="seed", rationale="the first feasible configuration")
