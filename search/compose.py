"""Put the parts of a search together; the only module that imports all of them."""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from evaluator.evaluate import Site, TrialEvaluator
from evaluator.launchers.cluster.launcher import ClusterLauncher, open_launchers
from evaluator.launchers.cluster.nodes import NodeSlots, check_launcher, nodes_of, switch_of_nodes
from evaluator.launchers.cluster.schedulers.catalog import IN_OUR_JOB
from evaluator.launchers.cluster.slow_nodes import tested_nodes
from evaluator.launchers.interleaved import (
    VISIBLE_DEVICES,
    DeviceSlots,
    Slots,
    device_slots,
    fits_together,
)
from evaluator.machine import describe_machine
from evaluator.ports import Launcher, PhaseListener
from evaluator.recipes.knobs import rank_python
from policies.contract import FIRST, is_feasible_seed, seed_names, seed_policy
from policies.space import Space
from records.errors import StudyError, suggestion
from records.machine import NodeRecord
from records.scrub import Scrubber, expanded
from records.store.store import Store
from records.study import Study
from records.trial import Config, Policy
from search import settings
from search.llm.client import Allowance
from search.loop.batch import Capacity
from search.loop.budget import HeldNodes, with_price
from search.loop.loop import Search, never
from search.loop.ports import (
    Evaluator,
    Observer,
    Proposer,
)
from search.loop.running import check_allocation
from search.loop.trial import ContextEvaluator, Fits, Phases, TrialRunner
from search.strategies.base import Chooser
from search.strategies.catalog import CHOOSERS, chooser_named
from search.strategies.proposers import (
    FrontProposer,
    OfflineProposer,
    ReplayProposer,
    policies_again,
)
from search.study.spaces import PreparedStudy, estimate, parts
from search.transfer.trust import require_trust

if TYPE_CHECKING:
    from search.llm.client import LlmClient
    from search.llm.proposer import TraceAnswer, Turns


MODEL_TURNS: Mapping[str, "Turns"] = {"hybrid": "seldom", "llm": "every"}
"""Strategies that use a model, and how often they ask it."""
OFFLINE = "offline"
"""What stands behind a model: it proposes where the model does not, and says when to stop."""
STRATEGIES = ("auto", *MODEL_TURNS, *CHOOSERS, ReplayProposer.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What a search uses outside of itself; a replay substitutes a record for all of it."""

    evaluator: Evaluator
    model: "Callable[[Study, Callable[[str], None]], LlmClient]"
    """Makes the client of a study's model; the second argument receives notices for the user."""
    seed: Policy
    trace_answer: "TraceAnswer | None" = None
    """Answers the model's questions about traces; by default from those in the store."""
    again: tuple[Policy, ...] = ()
    """Policies that the strategy `replay` proposes, including the seed."""
    fits: Fits = fits_together
    capacity: Capacity = field(default_factory=Capacity)
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    held: HeldNodes | None = None
    nodes: Callable[[PhaseListener], tuple[NodeRecord, ...]] = lambda _on_phase: ()
    job_id: str | None = None
    scrubber: Scrubber | None
    """Removes secrets from all that is recorded; None where it was recorded before."""

    def runner(
        self, study_id: str, prepared: PreparedStudy, store: Store, observer: Observer
    ) -> TrialRunner:
        """Return what runs the trials of a study with this backend."""
        return TrialRunner(
            study_id=study_id,
            prepared=prepared,
            store=store,
            observer=observer,
            evaluator=self.evaluator,
            fits=self.fits,
            sleep=self.sleep,
            scrubber=self.scrubber,
        )


def new_study_id() -> str:
    """Return a name for a new study: its start time, and four characters against collisions."""
    letters = "".join(secrets.choice("0123456789abcdefghjkmnpqrstvwxyz") for _ in range(4))
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{letters}"


def resolve_strategy(strategy: str) -> tuple[str, str]:
    """Return the strategy, which `auto` depends on the environment for, and the reason."""
    if strategy not in STRATEGIES:
        raise StudyError(f"strategy {strategy!r} is unknown; {suggestion(strategy, [*STRATEGIES])}")
    if strategy != "auto":
        return strategy, f"strategy {strategy}"
    variable = settings.key_variable()
    if variable is not None:
        return "hybrid", f"strategy hybrid: {variable} is set"
    return "offline", "strategy offline: no ANTHROPIC_API_KEY, so no model is asked"


@contextmanager
def open_search(
    study_id: str, prepared: PreparedStudy, store: Store, observer: Observer
) -> Iterator[Search]:
    """Open a search that is ready to run; raise before anything is launched."""
    study, own = prepared.study, prepared.contexts[0].space
    check_environment(prepared)
    left_s = _known_left_s(study)
    check_allocation(left_s, study, store.history(study_id), store.repeats(study_id))
    require_feasible(own)
    if study.strategy in CHOOSERS:
        require_feasible(prepared.space)
    if study.strategy in MODEL_TURNS:
        settings.llm_settings(study.llm)  # report a missing key before anything starts
    again = policies_again(study, store) if study.strategy == ReplayProposer.name else ()
    seed = again[0] if again else _seed(study_id, prepared, store)
    with (
        live_backend(study_id, prepared, store, own.candidates[0], seed, again) as backend,
        compose_search(study_id, prepared, store, observer, backend) as search,
    ):
        yield search


def _known_left_s(study: Study) -> float | None:
    """Return how long the nodes of a study will be its own, where that is known already."""
    if study.launch.launcher in IN_OUR_JOB:
        return settings.allocation_left_s()
    return None if study.cluster is None else study.cluster.time_limit_s


def _seed(study_id: str, prepared: PreparedStudy, store: Store) -> Policy:
    """Return the seed; the file that an imported study names belongs to another machine.

    The first feasible configuration takes the place of a built-in seed that a rule excludes, as
    shards are on CPU ranks of older torch.
    """
    study, name = prepared.study, prepared.study.seed_policy
    if name in seed_names():
        own = prepared.contexts[0].space
        if not is_feasible_seed(name, study.workload, study.usable_environment, own):
            name = FIRST
        return seed_policy(name, prepared.space)
    if not study.is_from_bundle:
        return seed_policy(name, prepared.space)
    first = store.trial(study_id, 0)
    if first is None:
        raise StudyError(
            f"study {study_id} was imported without its first trial, and the seed policy that it "
            "names is a file of another machine, which is not read here"
        )
    return first.policy


def check_environment(prepared: PreparedStudy) -> None:
    """Raise `StudyError` or `EnvironmentFault` where the study cannot be launched from here."""
    check_launcher(prepared.study)
    for context in prepared.contexts:
        prepared.recipe.check(context.study)


def require_feasible(space: Space) -> None:
    """Raise `StudyError` where no configuration satisfies the constraints."""
    if not space.candidates:
        why = "; ".join(space.obstacles()) or "several exclude each other"
        raise StudyError(f"[space] no configuration satisfies the constraints; relax one: {why}")


@contextmanager
def live_backend(
    study_id: str,
    prepared: PreparedStudy,
    store: Store,
    first: Config,
    seed: Policy,
    again: tuple[Policy, ...] = (),
) -> Iterator[Backend]:
    """Open what a study uses to launch for real, with its launchers ready.

    `first` is a configuration in the study's own context.
    """
    study, recipe, scrubber = prepared.study, prepared.recipe, settings.scrubber()
    require_trust(study, store)
    job = recipe.job(study, first)
    ours = settings.trial_environment()
    environment = recipe.inherited(study, ours)

    def slot_count(config: Config) -> int:
        """Return the most slots that a configuration needs in any of its contexts."""
        if study.parallel == 1:
            return 1
        return max(slots.needed(recipe.job(p.study, p.config)) for p in parts(study, config))

    with ExitStack() as opened:
        launcher = opened.enter_context(
            open_launchers(study, study_id, store.root, environment, ours=ours)
        )
        own_launcher = launcher()
        opened.callback(own_launcher.close)
        phases, slots = Phases(), _slots(study)
        site = opened.enter_context(_site(study, store, scrubber, environment))
        evaluator = TrialEvaluator(recipe, own_launcher, phases, launcher, slots, site)
        opened.callback(evaluator.close)
        evaluator.prepare(job, max(1, min(study.parallel, slots.count)))
        yield Backend(
            evaluator=ContextEvaluator(evaluator),
            model=_live_model,
            seed=seed,
            scrubber=scrubber,
            again=again,
            held=_held(own_launcher, study),
            nodes=partial(_nodes, own_launcher, study, store.workdir(study_id), ours),
            job_id=settings.scheduler_job(),
            capacity=Capacity(
                trial_count=study.parallel,
                place_count=slots.count,
                places_of=slot_count,
                share_memory=study.is_local and study.environment.device == "cpu",
                stop=evaluator.stop,
                phases=phases,
            ),
        )


def _held(launcher: Launcher, study: Study) -> HeldNodes | None:
    """Return how long nodes are held; None where this machine is, without an end."""
    if isinstance(launcher, ClusterLauncher):
        allocation = launcher.allocation
        return HeldNodes(
            node_count=allocation.nodes.count,
            held_s=lambda: allocation.held_s,
            left_s=lambda: allocation.left_s,
        )
    if settings.allocation_left_s() is None:
        return None
    started_s = time.monotonic()
    return HeldNodes(
        node_count=study.environment.node_count,
        held_s=lambda: time.monotonic() - started_s,
        left_s=settings.allocation_left_s,
    )


def _nodes(
    launcher: Launcher,
    study: Study,
    workdir: Path,
    ours: Mapping[str, str],
    on_phase: PhaseListener,
) -> tuple[NodeRecord, ...]:
    """Wait for the nodes of a cluster and test them; return none for this machine."""
    if not isinstance(launcher, ClusterLauncher):
        return ()
    switches = switch_of_nodes(study.launch.launcher, ours)
    needed = study.parallel * study.environment.node_count
    workdir.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=workdir) as folder:
        return tested_nodes(launcher, Path(folder), needed, switches, on_phase)


def _slots(study: Study) -> Slots:
    """Return what trials that run in parallel share out; nothing where they run one by one."""
    if study.parallel == 1:
        return DeviceSlots()
    if not study.is_local:
        return NodeSlots(nodes=nodes_of(study))
    return device_slots(study, settings.trial_environment().get(VISIBLE_DEVICES))


@contextmanager
def compose_search(
    study_id: str, prepared: PreparedStudy, store: Store, observer: Observer, backend: Backend
) -> Iterator[Search]:
    """Open a search that is ready to run with this backend."""
    runner = backend.runner(study_id, prepared, store, observer)
    study, space = prepared.study, prepared.space

    def estimates(config: Config) -> Mapping[str, float] | None:
        return estimate(prepared.recipe, study, config)

    with ExitStack() as opened:
        named = study.strategy if study.strategy in CHOOSERS else OFFLINE
        chooser = chooser_named(named, space, estimates)
        proposer = _proposer(runner, backend, chooser, opened)
        if prepared.scoring.more:
            proposer = FrontProposer(proposer, prepared.scoring)
        yield Search(
            trial_runner=runner,
            seed=backend.seed,
            proposer=proposer,
            no_gain=chooser.no_gain if study.strategy != ReplayProposer.name else never,
            capacity=backend.capacity,
            held=backend.held,
            nodes=backend.nodes,
            job_id=backend.job_id,
        )


def _proposer(
    runner: TrialRunner, backend: Backend, chooser: Chooser, opened: ExitStack
) -> Proposer:
    study = runner.study
    if study.strategy in CHOOSERS:
        return OfflineProposer(chooser)
    if study.strategy == ReplayProposer.name:
        return ReplayProposer(backend.again[: study.budget.trials])
    if study.strategy not in MODEL_TURNS:
        raise StudyError(
            f"strategy {study.strategy!r} is unknown; {suggestion(study.strategy, [*STRATEGIES])}"
        )
    # Imported here: the SDK takes seconds to load and the other strategies do without.
    from search.llm.proposer import LlmProposer
    from search.llm.traces import TraceReader
    from search.llm.transcripts import last_submission

    llm = with_price(study.llm)
    turns = partial(runner.store.turn_usages, runner.study_id)
    notice = runner.observer.notice
    client = backend.model(study, notice)
    opened.callback(client.close)
    return LlmProposer(
        client,
        runner.prepared,
        chooser,
        turns=MODEL_TURNS[study.strategy],
        allowance=Allowance(study.budget, llm.model, llm.price, turns),
        trace_answer=backend.trace_answer or TraceReader(runner.study_id, runner.store).answer,
        last_submission=partial(last_submission, runner.study_id, runner.store),
        notice=notice,
        clock=backend.clock,
    )


def _live_model(study: Study, notice: Callable[[str], None]) -> "LlmClient":
    """Return a client of the study's model over the network."""
    from search.llm.client import LlmClient
    from search.llm.transport import AnthropicTransport

    llm = settings.llm_settings(study.llm)
    return LlmClient(llm, AnthropicTransport(llm, notice))


@contextmanager
def _site(
    study: Study, store: Store, scrubber: Scrubber, environment: Mapping[str, str]
) -> Iterator[Site]:
    """Describe this machine in parallel with the start of launchers; store it at first use."""
    scripts = [expanded(path) for path in (study.command.file_digests if study.command else ())]
    folder = Path(scripts[0]).parent if scripts else Path.cwd()
    with ThreadPoolExecutor(max_workers=1) as pool:
        found = pool.submit(
            describe_machine,
            folder,
            environment,
            settings.container_image(),
            python=rank_python(study),
        )
        yield Site(
            job_id=settings.scheduler_job(),
            machine=cache(lambda: store.keep_machine(scrubber.value(found.result()))),
        )
