"""Puts the parts of a search together from a study; the only place that knows all of them."""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from evaluator.evaluate import Site, TrialEvaluator
from evaluator.host import describe_machine
from evaluator.job import Launcher, Recipe
from evaluator.launchers.interleaved import (
    VISIBLE_DEVICES,
    DeviceSlots,
    device_slots,
    fits_together,
)
from evaluator.launchers.local import LocalLauncher
from evaluator.objective import Scoring, scoring_of
from evaluator.recipes.catalog import recipe_of
from policies.contract import seed_names, seed_policy
from policies.space import Space
from records.errors import StudyError
from records.scrub import Scrubber, expanded
from records.store.store import Store
from records.study import Study
from records.trial import Config, Policy
from search import settings
from search.llm.client import Allowance
from search.llm.prompt import PromptWriter
from search.loop.batch import Capacity
from search.loop.budget import with_price, without_patience
from search.loop.loop import Search
from search.loop.ports import (
    Evaluator,
    Observer,
    Proposer,
    ScrubbedEvaluator,
    ScrubbedProposer,
    scrubbed_policy,
)
from search.loop.trial import ContextEvaluator, Fits, Phases, PolicyPrecheck, TrialRunner
from search.strategies.catalog import CHOOSERS, chooser_named
from search.strategies.proposers import (
    FrontProposer,
    OfflineProposer,
    ReplayProposer,
    policies_again,
)
from search.study.spaces import estimate, parts, space_of, study_in
from search.study.study_file import suggestion
from search.transfer.trust import is_foreign, require_trust

if TYPE_CHECKING:
    from search.llm.client import LlmClient
    from search.llm.proposer import Turns


MODEL_TURNS: Mapping[str, "Turns"] = {"hybrid": "seldom", "llm": "every"}
"""Strategies that ask a model, and how often."""
STRATEGIES = ("auto", *MODEL_TURNS, *CHOOSERS, ReplayProposer.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What a search meets outside of itself; a replay puts a record in the place of all of it."""

    evaluator: Evaluator
    model: "Callable[[Study, Callable[[str], None]], LlmClient]"
    """Makes what is asked in a study; what a person should know of it meanwhile is passed on."""
    seed: Policy
    again: tuple[Policy, ...] = ()
    """Policies that the strategy `replay` proposes, the seed among them."""
    fits: Fits = fits_together
    capacity: Capacity = field(default_factory=Capacity)
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    scrubber: Scrubber | None = None
    """Takes secrets out of what is proposed; None where all of it was recorded before."""


def new_study_id() -> str:
    """A name for a new study: when it began, and four letters against collisions."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def resolve_strategy(strategy: str) -> tuple[str, str]:
    """The strategy that `auto` stands for here, and one line that says why."""
    if strategy not in STRATEGIES:
        raise StudyError(f"strategy {strategy!r} is unknown; {suggestion(strategy, [*STRATEGIES])}")
    if strategy != "auto":
        return strategy, f"strategy {strategy}"
    variable = settings.key_variable()
    if variable is not None:
        return "hybrid", f"strategy hybrid: {variable} is set"
    return "offline", "strategy offline: no ANTHROPIC_API_KEY, so no model is asked"


@contextmanager
def open_search(study_id: str, study: Study, store: Store, observer: Observer) -> Iterator[Search]:
    """A search ready to run; its launcher is closed at the end. Raises before anything starts."""
    require_trust(study, store)
    check_environment(study)
    space = space_of(study)
    own = space_of(replace(study, contexts=())) if study.contexts else space
    _require_feasible(own)
    if study.strategy in CHOOSERS:
        _require_feasible(space)
    if study.strategy in MODEL_TURNS:
        settings.llm_settings(study.llm)  # a missing key is told before anything starts
    again = policies_again(study, store) if study.strategy == ReplayProposer.name else ()
    seed = again[0] if again else _seed(study_id, study, space, store)
    with (
        local_backend(study, store, own.feasible[0], seed, again) as around,
        compose_search(study_id, study, space, store, observer, around) as search,
    ):
        yield search


def _seed(study_id: str, study: Study, space: Space, store: Store) -> Policy:
    """The seed of a study; the file that an imported one names is not read: it is another's."""
    if not is_foreign(study) or study.seed_policy in seed_names():
        return seed_policy(study.seed_policy, space)
    first = store.trial(study_id, 0)
    if first is None:
        raise StudyError(
            f"study {study_id} was imported without its first trial, and the seed policy that it "
            "names is a file of another machine, which is not read here"
        )
    return first.policy


def check_environment(study: Study) -> None:
    """Raise `StudyError` or `EnvironmentFault` where this machine cannot launch the study."""
    recipe = recipe_of(study)
    for inside in (study, *(study_in(study, context) for context in study.contexts)):
        recipe.check(inside)


@contextmanager
def local_backend(
    study: Study, store: Store, first: Config, seed: Policy, again: tuple[Policy, ...] = ()
) -> Iterator[Backend]:
    """What a study meets on this machine; its launchers are made ready, and closed at the end.

    `first` is a configuration, not joined with those of contexts.
    """
    require_trust(study, store)
    recipe, scrubber = recipe_of(study), settings.scrubber()
    job = recipe.job(study, first)
    with ExitStack() as opened:
        launcher = _launcher(study, recipe)
        opened.callback(launcher.close)
        phases, places = Phases(), _places(study)
        evaluator = TrialEvaluator(
            recipe,
            launcher,
            phases,
            lambda: _launcher(study, recipe),
            places,
            opened.enter_context(_site(study, store, scrubber)),
        )
        opened.callback(evaluator.close)
        evaluator.prepare(job, max(1, min(study.parallel, places.count)))
        yield Backend(
            evaluator=ScrubbedEvaluator(ContextEvaluator(evaluator), scrubber),
            model=_live_model,
            seed=scrubbed_policy(seed, scrubber),
            scrubber=scrubber,
            again=again,
            capacity=Capacity(
                trial_count=study.parallel,
                place_count=places.count,
                places_of=lambda config: _place_count(study, recipe, places, config),
                share_memory=study.environment.device == "cpu",
                stop=evaluator.stop,
                phases=phases,
            ),
        )


def _require_feasible(space: Space) -> None:
    if not space.feasible:
        why = "; ".join(space.obstacles()) or "several exclude each other"
        raise StudyError(f"[space] no configuration satisfies the constraints; relax one: {why}")


@contextmanager
def compose_search(
    study_id: str,
    study: Study,
    space: Space,
    store: Store,
    observer: Observer,
    around: Backend,
) -> Iterator[Search]:
    """A search in these surroundings, ready to run; what it asks is closed at the end."""
    study = without_patience(study, space)
    objective = scoring_of(study)
    trial_runner = TrialRunner(
        study=study,
        space=space,
        scoring=objective,
        evaluator=around.evaluator,
        artifacts=store.artifacts,
        workdir=store.workdir(study_id),
        fits=around.fits,
        sleep=around.sleep,
    )
    with ExitStack() as opened:
        proposer = _proposer(study_id, study, space, objective, store, observer, around, opened)
        if around.scrubber is not None:
            proposer = ScrubbedProposer(proposer, around.scrubber)
        yield Search(
            study_id=study_id,
            study=study,
            seed=around.seed,
            proposer=FrontProposer(proposer, objective) if objective.more else proposer,
            scoring=objective,
            store=store,
            trial_runner=trial_runner,
            observer=observer,
            capacity=around.capacity,
        )


def _proposer(
    study_id: str,
    study: Study,
    space: Space,
    objective: Scoring,
    store: Store,
    observer: Observer,
    around: Backend,
    opened: ExitStack,
) -> Proposer:
    recipe = recipe_of(study)

    def estimates(config: Config) -> Mapping[str, float] | None:
        return estimate(recipe, study, config)

    if study.strategy in CHOOSERS:
        return OfflineProposer(chooser_named(study.strategy, space, estimates))
    if study.strategy == ReplayProposer.name:
        return ReplayProposer(around.again)
    if study.strategy in MODEL_TURNS:
        # Imported here: the SDK takes seconds to load and the other strategies do without.
        from search.llm.proposer import LlmProposer

        llm = with_price(study.llm)
        turns = partial(store.turn_usages, study_id)
        allowance = Allowance(study.budget, llm.model, llm.price, turns)
        client = around.model(study, observer.notice)
        opened.callback(client.close)
        return LlmProposer(
            client,
            space,
            PromptWriter(space, objective),
            chooser_named("offline", space, estimates),
            PolicyPrecheck(study, space),
            turns=MODEL_TURNS[study.strategy],
            allowance=allowance,
            notice=observer.notice,
            clock=around.clock,
        )
    raise StudyError(
        f"strategy {study.strategy!r} is unknown; {suggestion(study.strategy, [*STRATEGIES])}"
    )


def _live_model(study: Study, notice: Callable[[str], None]) -> "LlmClient":
    """The model of a study, over the network."""
    from search.llm.client import LlmClient
    from search.llm.transport import AnthropicTransport

    llm = settings.llm_settings(study.llm)
    return LlmClient(llm, AnthropicTransport(llm, notice))


def _places(study: Study) -> DeviceSlots:
    """Where trials that are measured at once may be; none where they are measured one by one."""
    if study.parallel == 1:
        return DeviceSlots()
    return device_slots(study, settings.trial_environment().get(VISIBLE_DEVICES))


def _place_count(study: Study, recipe: Recipe, places: DeviceSlots, config: Config) -> int:
    """The most places that a configuration takes in any of its contexts."""
    return max(places.needed(recipe.job(p.study, p.config)) for p in parts(study, config))


def _launcher(study: Study, recipe: Recipe) -> Launcher:
    if study.launch.launcher != "local":
        raise StudyError(f"[launch] launcher {study.launch.launcher!r} is unknown; known is local")
    environment = recipe.inherited(study, settings.trial_environment())
    return LocalLauncher(environment, study.launch.threads_per_rank)


@contextmanager
def _site(study: Study, store: Store, scrubber: Scrubber) -> Iterator[Site]:
    """Where we are, described while launchers get warm, and kept once something is launched."""
    scripts = [expanded(path) for path in (study.command.file_digests if study.command else ())]
    folder = Path(scripts[0]).parent if scripts else Path.cwd()
    seen = recipe_of(study).inherited(study, settings.trial_environment())
    with ThreadPoolExecutor(max_workers=1) as beside:
        described = beside.submit(describe_machine, folder, seen, settings.container_image())
        yield Site(
            job_id=settings.scheduler_job(),
            machine=cache(lambda: store.keep_machine(scrubber.value(described.result()))),
        )
