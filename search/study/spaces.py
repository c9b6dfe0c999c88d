"""Space of a study; several contexts joined.

The configurations that a policy gives in several contexts, as one: `tp`, and `big.tp` elsewhere.

So a trial has one configuration however many contexts its study has.

A study's space as its recipe knows it, ready for use.

One policy in several contexts: what it decides in each, and what there is to launch.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING

from evaluator.recipes.catalog import recipe_of
from policies.space import Space
from records.errors import StudyError
from records.study import Context, Study, Value
from records.trial import Config, Failed, Policy

if TYPE_CHECKING:
    from evaluator.job import Recipe


SEPARATOR = "."


def join_contexts(own: Config, others: Mapping[str, Config]) -> Config:
    """One configuration: the study's own as it is, other knobs with the names of their contexts."""
    elsewhere = {
        f"{name}{SEPARATOR}{knob}": value
        for name, config in others.items()
        for knob, value in config.values.items()
    }
    return Config({**own.values, **elsewhere})


def own_part(config: Config) -> Config:
    """What a joined configuration is in the study's own context."""
    return Config({knob: value for knob, value in config.values.items() if SEPARATOR not in knob})


def part_of(config: Config, context: str) -> Config:
    """What a joined configuration is in one of the other contexts."""
    prefix = f"{context}{SEPARATOR}"
    found = config.values.items()
    return Config({k.removeprefix(prefix): value for k, value in found if k.startswith(prefix)})


class MultiContextSpace(Space):
    """The study's own space, of which only what can be set everywhere is feasible, joined.

    A policy that decides by its arguments can do more than that: what it gives is checked against
    the space of each context. `others` are those spaces, `held_out` the names of contexts whose
    part is not in the configuration.
    """

    def __init__(
        self,
        study: Study,
        derived: Mapping[str, Callable[[Mapping[str, Value]], Value]],
        others: Mapping[str, Space],
        held_out: Set[str],
    ) -> None:
        own = study.space, study.workload, study.usable_environment, derived
        super().__init__(*own)
        self._own = Space(*own)
        self._others = others
        self._held_out = held_out
        for knob in self.knobs:
            if SEPARATOR in knob.name:
                raise StudyError(
                    f"[space] knob {knob.name!r} has a {SEPARATOR!r} in its name, which stands "
                    "after the name of a context; call it something else"
                )

    @cached_property
    def feasible(self) -> tuple[Config, ...]:
        """Every configuration of the study that every context takes, joined with what it is there.

        A knob that has no effect in a context is not in its part.
        """
        everywhere = map(self._everywhere, self._own.feasible)
        return tuple(config for config in everywhere if config is not None)

    @property
    def is_listable(self) -> bool:
        """Give False: policies that decide by their arguments can do more than what is feasible."""
        return False

    def obstacles(self) -> tuple[str, ...]:
        """Why nothing is feasible: in the study's own context, in another, or in all together."""
        if self._own.feasible:
            empty = [name for name, space in self._others.items() if not space.feasible]
            return tuple(f"nothing is feasible in context {name}" for name in empty) or (
                "what is the same everywhere breaks a constraint somewhere; only a policy that "
                "decides by its arguments could do, which needs --strategy llm",
            )
        return self._own.obstacles()

    def settings(self, config: Config) -> Mapping[str, Value]:
        """The study's own part, with the defaults of what it leaves out."""
        return super().settings(own_part(config))

    def answer(self, config: Config) -> Mapping[str, Value]:
        """What a policy has to return in every context to get this configuration."""
        return own_part(config).values

    def _everywhere(self, config: Config) -> Config | None:
        parts = {name: space.check(config.values) for name, space in self._others.items()}
        found = {name: part for name, part in parts.items() if isinstance(part, Config)}
        if len(found) < len(parts):
            return None
        return join_contexts(
            config, {n: part for n, part in found.items() if n not in self._held_out}
        )


def completed(study: Study) -> Study:
    """The study with the defaults and rules of its recipe; one that has them stays as it is.

    Raises `StudyError` where nothing can be feasible, in its own context or another.
    """
    recipe = recipe_of(study)
    # What is searched in a context follows from its own sizes, so from the space as it was given.
    contexts = tuple(
        context
        if context.space is not None
        else replace(context, space=recipe.complete(study_in(study, context)).space)
        for context in study.contexts
    )
    return replace(recipe.complete(study), contexts=contexts)


def study_in(study: Study, context: Context) -> Study:
    """The study as one of its contexts has it, which is then its own and only one."""
    return replace(
        study,
        name=context.name,
        workload=context.workload,
        environment=context.environment,
        space=context.space or study.space,
        contexts=(),
    )


def space_of(study: Study) -> Space:
    """The space of a completed study, with the names that its recipe derives.

    Where the study has contexts, its configurations are joined.
    """
    derived = recipe_of(study).derived(study)
    if not study.contexts:
        return Space(study.space, study.workload, study.usable_environment, derived)
    others = {context.name: space_of(study_in(study, context)) for context in study.contexts}
    held_out = {context.name for context in study.contexts if context.held_out}
    return MultiContextSpace(study, derived, others, held_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One context of a study that is launched, and what is set there."""

    study: Study
    config: Config

    @property
    def name(self) -> str:
        """That of the context; the study's own is called what the study is."""
        return self.study.name


def decide_config(policy: Policy, study: Study, space: Space) -> Config | Failed:
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
    return join_contexts(own, others)


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
