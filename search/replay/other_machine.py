"""What the policies of a study decide for other workloads and environments."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from evaluator.recipes.catalog import recipe_of
from policies.space import Space
from records.errors import StudyError
from records.study import Dimension, Study, Value
from records.trial import Config, Failed, Policy, Trial
from search.study.spaces import PolicyContext, estimate, own_part, policy_contexts

MEMORY = "estimated_memory_bytes"


class Kind(StrEnum):
    """How a policy takes to other places."""

    ADAPTS = "adapts"
    FIXED = "fixed"
    FAILS = "fails"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a policy gives in one place; estimates are None where the recipe has none."""

    place: str
    held_out: bool
    answer: Config | Failed
    step_s: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyElsewhere:
    """One policy with its recorded decision (of its first trial) and its decisions elsewhere."""

    ordinals: tuple[int, ...]
    policy: Policy
    recorded: Config | None
    answers: tuple[Answer, ...]

    @property
    def kind(self) -> Kind:
        """Whether it is valid everywhere, and decides by where it is."""
        given = [each.answer for each in self.answers]
        if any(isinstance(answer, Failed) for answer in given):
            return Kind.FAILS
        known = {*given, *([] if self.recorded is None else [self.recorded])}
        return Kind.ADAPTS if len(known) > 1 else Kind.FIXED


def policies_elsewhere(
    trials: Sequence[Trial],
    study: Study,
    varied: Mapping[str, Sequence[Value]],
    done: Callable[[int], None] = lambda _: None,
) -> tuple[PolicyElsewhere, ...]:
    """Ask every distinct policy of these trials in each context of `study` and at varied values.

    `done` receives the number of policies run so far. Raises `EnvironmentFault` without a sandbox.
    """
    everywhere = tuple(policy_contexts(study, varied))
    by_digest: dict[str, list[Trial]] = {}
    for trial in trials:
        by_digest.setdefault(trial.policy.digest, []).append(trial)
    found: list[PolicyElsewhere] = []
    for same in by_digest.values():
        policy = same[0].policy
        recorded = next((t.config for t in same if t.config is not None), None)
        found.append(
            PolicyElsewhere(
                ordinals=tuple(trial.ordinal for trial in same),
                policy=policy,
                recorded=None if recorded is None else own_part(recorded),
                answers=tuple(_answer(policy, place) for place in everywhere),
            )
        )
        done(len(found))
    return tuple(found)


def as_given(study: Study) -> Study:
    """Return a recorded study without the choices that its recipe added for its own sizes.

    Elsewhere the recipe adds others: degrees of parallelism follow from the number of ranks.
    """
    recipe = recipe_of(study)

    def given(dimension: Dimension) -> Dimension:
        bare = Dimension(name=dimension.name)
        try:
            space = replace(study.space, dimensions=(bare,), constraints=())
            (added,) = recipe.complete(replace(study, space=space, contexts=())).space.dimensions
        except StudyError:
            return dimension
        return bare if added == dimension else dimension

    dimensions = tuple(map(given, study.space.dimensions))
    return replace(study, space=replace(study.space, dimensions=dimensions))


def _answer(policy: Policy, place: PolicyContext) -> Answer:
    answer = place.decide(policy)
    step_s, memory_bytes = None, None
    if isinstance(answer, Config) and isinstance(place.space, Space):
        parts = estimate(recipe_of(place.study), place.study, answer)
        step_s = None if parts is None else sum(parts.values())
        memory = place.space.derived_number(answer, MEMORY)
        memory_bytes = None if memory is None else int(memory)
    return Answer(
        place=place.name,
        held_out=place.held_out,
        answer=answer,
        step_s=step_s,
        memory_bytes=memory_bytes,
    )
