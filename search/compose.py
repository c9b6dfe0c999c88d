"""Puts the parts of a search together from a study; the only place that knows all of them."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime

from evaluator.evaluate import TrialEvaluator
from evaluator.launchers.local import LocalLauncher
from evaluator.objective import Scoring, scoring
from evaluator.ports import Launcher, Recipe
from evaluator.recipes.catalog import recipe_of
from policies.catalog import seed_policy
from policies.space import Space
from records.errors import StudyError
from records.store import Store
from records.study import Study
from records.trial import Config
from search import settings
from search.choosers.catalog import CHOOSERS, chooser_named
from search.loop import Search
from search.ports import Observer, Proposer
from search.prompt import PromptWriter
from search.proposers.offline import OfflineProposer
from search.spaces import space_of
from search.study_file import suggestion
from search.trial import Turn

STRATEGIES = ("auto", "llm", *CHOOSERS)


def new_study_id() -> str:
    """A name for a new study: when it began, and four letters against collisions."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def resolved_strategy(strategy: str) -> tuple[str, str]:
    """The strategy that `auto` stands for here, and one line that says why."""
    if strategy not in STRATEGIES:
        raise StudyError(f"strategy {strategy!r} is unknown; {suggestion(strategy, [*STRATEGIES])}")
    if strategy != "auto":
        return strategy, f"strategy {strategy}"
    if settings.has_key():
        return "llm", "strategy llm: ANTHROPIC_API_KEY is set"
    return "offline", "strategy offline: no ANTHROPIC_API_KEY, so no model is asked"


@contextmanager
def search_of(study_id: str, study: Study, store: Store, observer: Observer) -> Iterator[Search]:
    """A search ready to run; its launcher is closed at the end. Raises before anything starts."""
    recipe = recipe_of(study)
    recipe.check(study)
    space = space_of(study)
    if not space.feasible:
        why = "; ".join(space.obstacles()) or "several exclude each other"
        raise StudyError(f"[space] no configuration satisfies the constraints; relax one: {why}")
    objective = scoring(study.objective)
    seed = seed_policy(study.seed_policy, space)
    first = recipe.job(study, space.feasible[0])
    with ExitStack() as opened:
        proposer = _proposer(study, recipe, space, objective, opened)
        launcher = _launcher(study, recipe)
        opened.callback(launcher.close)
        launcher.prepare(first)
        evaluator = TrialEvaluator(
            recipe, launcher, observer.phase, lambda: _launcher(study, recipe)
        )
        opened.callback(evaluator.close)
        yield Search(
            study_id=study_id,
            study=study,
            seed=seed,
            proposer=proposer,
            scoring=objective,
            store=store,
            turn=Turn(
                study=study,
                space=space,
                scoring=objective,
                evaluator=evaluator,
                artifacts=store.artifacts,
                workdir=store.workdir(study_id),
                observer=observer,
            ),
            observer=observer,
        )


def _proposer(
    study: Study, recipe: Recipe, space: Space, objective: Scoring, opened: ExitStack
) -> Proposer:
    def estimates(config: Config) -> Mapping[str, float] | None:
        return recipe.estimate(study, config)

    if study.strategy in CHOOSERS:
        return OfflineProposer(chooser_named(study.strategy, space, estimates))
    if study.strategy == "llm":
        # Imported here: the SDK takes seconds to load and the other strategies do without.
        from search.llm.client import LlmClient
        from search.proposers.llm import LlmProposer

        client = LlmClient(settings.llm_settings(study.llm))
        opened.callback(client.close)
        fallback = OfflineProposer(chooser_named("offline", space, estimates))
        return LlmProposer(client, space, PromptWriter(space, objective), fallback)
    raise StudyError(
        f"strategy {study.strategy!r} is unknown; {suggestion(study.strategy, [*STRATEGIES])}"
    )


def _launcher(study: Study, recipe: Recipe) -> Launcher:
    if study.launch.launcher != "local":
        raise StudyError(f"[launch] launcher {study.launch.launcher!r} is unknown; known is local")
    environment = recipe.inherited(study, settings.trial_environment())
    return LocalLauncher(environment, study.launch.threads_per_rank)
