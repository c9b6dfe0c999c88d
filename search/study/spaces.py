"""The space of a study, one or several contexts joined, and what a policy decides in it.

A study with contexts still has one configuration per trial: the study's own knobs, and those of
the other contexts with the name of the context in front, as in `big.tp`.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import product
from statistics import fmean

from pydantic import ValidationError

from evaluator.objective import Scoring, scoring_of
from evaluator.ports import Recipe
from evaluator.recipes.catalog import recipe_of
from policies.contract import decide
from policies.space import Space
from records.codec import first_problem, from_document
from records.errors import StudyError, suggestion
from records.study import Context, Environment, Study, Value
from records.trial import Config, Failed, FailureKind, Policy, Stage
from records.workload import Workload

SEPARATOR = "."


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedContext:
    """A context of a study: the study with it as its own and only one, and its space."""

    study: Study
    space: Space
    held_out: bool = False

    def decide(self, policy: Policy) -> Config | Failed:
        """Return what a policy decides here; raises `EnvironmentFault` without a sandbox."""
        return decide(policy, self.study.workload, self.study.usable_environment, self.space)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedStudy:
    """A completed study with everything that follows from it, resolved once."""

    study: Study
    recipe: Recipe
    scoring: Scoring
    space: Space
    """The space of all contexts, joined."""
    contexts: tuple[PreparedContext, ...]
    """Every context, the study's own first."""

    def decide(self, policy: Policy) -> Config | Failed:
        """Run a policy in every context, also held-out ones, and check its answers.

        Return the joined configuration of the launched contexts, or the first failure with its
        context. Raises `EnvironmentFault` when this machine cannot isolate policies.
        """
        launched: dict[str, Config] = {}
        for context in self.contexts:
            answer = context.decide(policy)
            if isinstance(answer, Failed):
                return in_context(answer, context.study.name) if self.study.contexts else answer
            if not context.held_out:
                launched[context.study.name] = answer
        own = launched.pop(self.study.name)
        return join_contexts(own, launched)

    def held_out(self) -> "PreparedStudy | None":
        """Return the study of the held-out contexts, the first as its own; None without any."""
        study = held_out_study(self.study)
        return None if study is None else prepare(study)


def prepare(study: Study, space: Space | None = None) -> PreparedStudy:
    """Resolve a completed study; raises `StudyError` where its parts do not fit together.

    `space` takes the place of the one that a study with one context describes.
    """
    recipe = recipe_of(study)
    alone = None if space is None else PreparedContext(study=study, space=space)
    contexts = [alone] if alone else _contexts(study, recipe)
    return PreparedStudy(
        study=study,
        recipe=recipe,
        scoring=scoring_of(study),
        space=_joined(contexts, recipe),
        contexts=tuple(contexts),
    )


def join_contexts(own: Config, others: Mapping[str, Config]) -> Config:
    """Return one configuration: the study's own knobs, and prefixed ones for other contexts."""
    prefixed = {
        f"{name}{SEPARATOR}{knob}": value
        for name, config in others.items()
        for knob, value in config.values.items()
    }
    return Config({**own.values, **prefixed})


def own_part(config: Config) -> Config:
    """Return the settings of a joined configuration in the study's own context."""
    return Config({knob: value for knob, value in config.values.items() if SEPARATOR not in knob})


def part_of(config: Config, context: str) -> Config:
    """Return the settings of a joined configuration in one of the other contexts."""
    prefix = f"{context}{SEPARATOR}"
    found = config.values.items()
    return Config({k.removeprefix(prefix): value for k, value in found if k.startswith(prefix)})


class MultiContextSpace(Space):
    """The space of a study with contexts; a configuration is feasible if every context allows it.

    A policy can decide by its arguments, so it reaches more than the feasible configurations; its
    answers are checked against the space of each context. Configurations leave out the contexts
    that are held out.
    """

    def __init__(
        self, contexts: Sequence[PreparedContext], derived: Mapping[str, Callable[..., Value]]
    ) -> None:
        own, *self._others = contexts
        super().__init__(own.study.space, own.study.workload, own.study.usable_environment, derived)
        self._own = own.space
        for knob in self.knobs:
            if SEPARATOR in knob.name:
                raise StudyError(
                    f"[space] knob {knob.name!r} has a {SEPARATOR!r} in its name, which separates "
                    "the names of contexts and knobs; rename it"
                )

    @property
    def candidates(self) -> tuple[Config, ...]:
        """What a search chooses from: what is feasible."""
        return self.feasible

    @cached_property
    def feasible(self) -> tuple[Config, ...]:
        """The study's configurations that every context allows, joined with its settings there.

        A context's settings omit knobs that have no effect in it.
        """
        joined = map(self._joined, self._own.candidates)
        return tuple(config for config in joined if config is not None)

    @property
    def is_listable(self) -> bool:
        """False: policies that decide by their arguments reach more than what is feasible."""
        return False

    def obstacles(self) -> tuple[str, ...]:
        """Return why nothing is feasible: in the own context, in another, or in all together."""
        if not self._own.candidates:
            return self._own.obstacles()
        empty = [each.study.name for each in self._others if not each.space.candidates]
        return tuple(f"nothing is feasible in context {name}" for name in empty) or (
            "no configuration is valid in every context; only a policy that decides by its "
            "arguments can be, which needs --strategy llm",
        )

    def settings(self, config: Config) -> Mapping[str, Value]:
        """Return the settings in the study's own context, with defaults."""
        return super().settings(own_part(config))

    def answer(self, config: Config) -> Mapping[str, Value]:
        """Return what a policy must return in every context to get this configuration."""
        return own_part(config).values

    def _joined(self, config: Config) -> Config | None:
        others: dict[str, Config] = {}
        for context in self._others:
            part = context.space.check(config.values)
            if not isinstance(part, Config):
                return None
            if not context.held_out:
                others[context.study.name] = part
        return join_contexts(config, others)


def completed(study: Study) -> Study:
    """Return the study with the defaults and rules of its recipe; idempotent.

    Raises `StudyError` where nothing can be feasible, in its own context or another.
    """
    recipe = recipe_of(study)
    # A context derives its space from its own sizes, so from the space of the study file.
    contexts = tuple(
        context
        if context.space is not None
        else replace(context, space=recipe.complete(study_in(study, context)).space)
        for context in study.contexts
    )
    return replace(recipe.complete(study), contexts=contexts)


def study_in(study: Study, context: Context) -> Study:
    """Return the study with one of its contexts as its own and only one."""
    return replace(
        study,
        name=context.name,
        workload=context.workload,
        environment=context.environment,
        space=context.space or study.space,
        contexts=(),
    )


def space_of(study: Study) -> Space:
    """Return the space of a completed study; with contexts, its configurations are joined."""
    recipe = recipe_of(study)
    return _joined(_contexts(study, recipe), recipe)


def _contexts(study: Study, recipe: Recipe) -> list[PreparedContext]:
    """Return every context of a study, its own first."""
    studies = (replace(study, contexts=()), *(study_in(study, each) for each in study.contexts))
    held_out = (False, *(context.held_out for context in study.contexts))
    return [
        PreparedContext(
            study=each,
            space=Space(each.space, each.workload, each.usable_environment, recipe.derived(each)),
            held_out=hidden,
        )
        for each, hidden in zip(studies, held_out, strict=True)
    ]


def _joined(contexts: Sequence[PreparedContext], recipe: Recipe) -> Space:
    own, *others = contexts
    return MultiContextSpace(contexts, recipe.derived(own.study)) if others else own.space


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One launched context of a study with its configuration."""

    study: Study
    config: Config

    @property
    def name(self) -> str:
        """The name of the context; the study's own has the name of the study."""
        return self.study.name


def in_context(failed: Failed, name: str) -> Failed:
    """Return the failure with the name of its context in the message."""
    return replace(failed, message=f"in context {name}: {failed.message}")


def parts(study: Study, config: Config) -> Iterator[Part]:
    """Yield what a joined configuration launches, the study's own context first."""
    if not study.contexts:
        yield Part(study=study, config=config)
        return
    yield Part(study=replace(study, contexts=()), config=own_part(config))
    for context in study.contexts:
        if not context.held_out:
            part = part_of(config, context.name)
            yield Part(study=study_in(study, context), config=part)


def part_named(policy: Policy, config: Config, study: Study, name: str | None) -> Part:
    """Return a decided policy's configuration in a context, also a held-out one.

    Without a name, in the study's own. Raises `StudyError` for an unknown name, and
    `EnvironmentFault` when this machine cannot isolate policies.
    """
    launched = list(parts(study, config))
    for part in launched:
        if name in (None, part.name):
            return part
    hidden = next((context for context in study.contexts if context.name == name), None)
    if hidden is None:
        names = [study.name, *(context.name for context in study.contexts)]
        raise StudyError(f"the study has no context {name!r}; it has {', '.join(names)}")
    inside = study_in(study, hidden)
    answer = PreparedContext(study=inside, space=space_of(inside)).decide(policy)
    if isinstance(answer, Failed):
        raise StudyError(f"{in_context(answer, hidden.name)}; choose a trial with another policy")
    return Part(study=inside, config=answer)


def held_out_study(study: Study) -> Study | None:
    """Return a study of the held-out contexts, the first as its own; None without any."""
    held_out = [replace(context, held_out=False) for context in study.contexts if context.held_out]
    if not held_out:
        return None
    return replace(study_in(study, held_out[0]), contexts=tuple(held_out[1:]))


def estimate(recipe: Recipe, study: Study, config: Config) -> Mapping[str, float] | None:
    """Return the estimated seconds of a step by part, each the mean over contexts; or None."""
    found = [recipe.estimate(part.study, part.config) for part in parts(study, config)]
    known = [each for each in found if each is not None]
    if len(known) < len(found):
        return None
    terms = dict.fromkeys(term for each in known for term in each)
    return {term: fmean(each.get(term, 0.0) for each in known) for term in terms}


def estimate_words(study: Study) -> str:
    """Return what estimates of a study rest on, and that they are none of its results."""
    source = "from sizes alone" if study.prior is None else f"of {study.prior.source}"
    return f"an estimate {source}, not a measurement"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    """The estimated step time of a configuration by its parts, and derived values.

    `words` say what the estimate rests on.
    """

    config: Config
    parts_s: Mapping[str, float]
    words: str
    derived: Mapping[str, Value] = field(default_factory=dict)

    @property
    def step_s(self) -> float:
        """Sum of the parts."""
        return sum(self.parts_s.values())

    @property
    def facts(self) -> Mapping[str, object]:
        """The estimate for JSON, marked as such."""
        about = {"estimate": self.words, "config": dict(self.config.values), "step_s": self.step_s}
        return {**about, "parts_s": dict(self.parts_s), **self.derived}


def estimated(study: Study, space: Space, config: Config) -> Estimated:
    """Estimate one configuration; raise `StudyError` if that is impossible."""
    parts = estimate(recipe_of(study), study, config)
    if parts is None:
        raise StudyError(
            "cannot estimate: sizes or knobs are missing; give [workload] model "
            "or its sizes (layer_count, hidden_size, head_count, ffn_size, vocab_size), and call "
            "degrees tp, pp, dp, cp, ep and the batch of a pass micro_batch"
        )
    words = estimate_words(study)
    return Estimated(config=config, parts_s=parts, words=words, derived=space.derived(config))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyContext:
    """Where a policy is checked: a study with one context, or why nothing is feasible there."""

    name: str
    held_out: bool
    study: Study
    space: Space | Failed

    def decide(self, policy: Policy) -> Config | Failed:
        """Return what a policy decides here; raises `EnvironmentFault` without a sandbox."""
        if isinstance(self.space, Failed):
            return self.space
        return PreparedContext(study=self.study, space=self.space).decide(policy)


def policy_contexts(study: Study, varied: Mapping[str, Sequence[Value]]) -> Iterator[PolicyContext]:
    """Yield each context of a study, its own first, and every combination of varied values.

    `study` is not completed yet: the space depends on the sizes of each context. Raises
    `StudyError` for a value that a field cannot have.
    """
    alone = replace(study, contexts=())
    yield _context(study.name, alone)
    for context in study.contexts:
        yield _context(context.name, study_in(study, context), held_out=context.held_out)
    for values in product(*varied.values()) if varied else ():
        changes = dict(zip(varied, values, strict=True))
        name = " ".join(f"{field}={value}" for field, value in changes.items())
        yield _context(name, _changed(alone, changes))


def varied_values(texts: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    """Parse texts like `global_batch=16,32` into fields with the values to try."""
    known = [field.name for part in (Workload, Environment) for field in fields(part)]
    found: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        field, separator, listed = text.partition("=")
        if not separator or not listed:
            raise StudyError(f"--vary {text!r} lists no values; write global_batch=16,32")
        if field not in known:
            raise StudyError(f"--vary: unknown field {field!r}; {suggestion(field, known)}")
        found[field] = tuple(_value(word) for word in listed.split(","))
    return found


def _value(word: str) -> Value:
    try:
        value = json.loads(word)
    except ValueError:
        return word
    return value if isinstance(value, bool | int | float) else word


def _changed(study: Study, changes: Mapping[str, Value]) -> Study:
    """Return the study with other values; raises `StudyError` for one that a field cannot have."""
    here = {field.name for field in fields(Workload)}
    work = {field: value for field, value in changes.items() if field in here}
    machine = {field: value for field, value in changes.items() if field not in here}
    try:
        return replace(
            study,
            workload=from_document(Workload, {**asdict(study.workload), **work}),
            environment=from_document(Environment, {**asdict(study.environment), **machine}),
        )
    except ValidationError as error:
        raise StudyError(f"--vary {first_problem(error)}") from error


def _context(name: str, study: Study, *, held_out: bool = False) -> PolicyContext:
    space: Space | Failed
    try:
        study = completed(study)
        space = space_of(study)
    except StudyError as error:
        message = f"nothing is feasible here: {error}"
        space = Failed(stage=Stage.CHECK, kind=FailureKind.INVALID_CONFIG, message=message)
    return PolicyContext(name=name, held_out=held_out, study=study, space=space)
