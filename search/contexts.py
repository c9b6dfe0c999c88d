"""One policy in several contexts: what it decides in each, and what there is to launch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from policies.space import Space
from records.errors import StudyError
from records.study import Study
from records.trial import Config, Failed, Policy
from search.joined import joined, own_part, part_of
from search.spaces import space_of, study_in

if TYPE_CHECKING:
    from evaluator.ports import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One context of a study that is launched, and what is set there."""

    study: Study
    config: Config

    @property
    def name(self) -> str:
        """That of the context; the study's own is called what the study is."""
        return self.study.name


def decided(policy: Policy, study: Study, space: Space) -> Config | Failed:
    """Run a policy in every context of a study, also those held out, and check what it returns.

    Gives the joined configuration of those that are launched, or the first failure, which names its
    context. `space` is the study's own. Raises `EnvironmentFault` when this machine cannot isolate
    policies.
    """
    # Imported here: records are read and shown without running a policy.
    from policies.contract import decide

    own = decide(policy, study.workload, study.usable_environment, space)
    if not study.contexts:
        return own
    if isinstance(own, Failed):
        return in_context(own, study.name)
    others: dict[str, Config] = {}
    for context in study.contexts:
        inside = study_in(study, context)
        part = decide(policy, inside.workload, inside.usable_environment, space_of(inside))
        if isinstance(part, Failed):
            return in_context(part, context.name)
        if not context.held_out:
            others[context.name] = part
    return joined(own, others)


def in_context(failed: Failed, name: str) -> Failed:
    """The failure, which says where it was."""
    return replace(failed, message=f"in context {name}: {failed.message}")


def parts(study: Study, config: Config) -> Iterator[Part]:
    """What a joined configuration launches, the study's own context first."""
    if not study.contexts:
        yield Part(study=study, config=config)
        return
    yield Part(study=replace(study, contexts=()), config=own_part(config))
    for context in study.contexts:
        if not context.held_out:
            part = part_of(config, context.name)
            yield Part(study=study_in(study, context), config=part)


def part_named(policy: Policy, config: Config, study: Study, name: str | None) -> Part:
    """What a policy that decided this sets in one context, which may be one that is held out.

    Without a name, in the study's own. Raises `StudyError` for a name that no context has, and
    `EnvironmentFault` when this machine cannot isolate policies.
    """
    known = list(parts(study, config))
    found = known[0] if name is None else next((p for p in known if p.name == name), None)
    if found is not None:
        return found
    hidden = next((context for context in study.contexts if context.name == name), None)
    if hidden is None:
        names = [study.name, *(context.name for context in study.contexts)]
        raise StudyError(f"the study has no context {name!r}; it has {', '.join(names)}")
    from policies.contract import decide

    inside = study_in(study, hidden)
    answer = decide(policy, inside.workload, inside.usable_environment, space_of(inside))
    if isinstance(answer, Failed):
        raise StudyError(f"{in_context(answer, hidden.name)}; give another policy a trial")
    return Part(study=inside, config=answer)


def held_out_study(study: Study) -> Study | None:
    """The study of the contexts that are held out, the first of them as its own; None without."""
    held_out = [replace(context, held_out=False) for context in study.contexts if context.held_out]
    if not held_out:
        return None
    return replace(study_in(study, held_out[0]), contexts=tuple(held_out[1:]))


def estimate(recipe: "Recipe", study: Study, config: Config) -> Mapping[str, float] | None:
    """What the recipe guesses of a step, each part of it the mean over the contexts; or None."""
    found = [recipe.estimate(part.study, part.config) for part in parts(study, config)]
    known = [each for each in found if each is not None]
    if len(known) < len(found):
        return None
    terms = dict.fromkeys(term for each in known for term in each)
    return {term: fmean(each.get(term, 0.0) for each in known) for term in terms}
