"""One search as `cclsearch run` makes it, with launches that a landscape answers.

The loop, its stop rules, races, self-test and final are those of every search, and so are requests
to a model and the sandbox for its policies. Replaced are the launches and the store; policies of
ours are read instead of run.
"""

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Final, cast

from evaluator.metrics.base import PUBLISHED_SCORE
from evaluator.ports import Recipe
from records.errors import StudyError
from records.llm_exchange import SUBMITTED, LlmExchange, TokenUsage
from records.machine import NodeRecord
from records.store.rows import PendingTrial
from records.store.store import Store
from records.study import Objective, Study
from records.trial import (
    Config,
    Failed,
    FailureKind,
    History,
    Measured,
    Measurement,
    MetricValue,
    Outcome,
    Policy,
    Repeat,
    Stage,
    Trial,
)
from search.compose import MODEL_TURNS, Backend, compose_search
from search.loop.budget import launches_used
from search.loop.leader import counted, find_leader
from search.loop.loop import never
from search.loop.ports import Evaluator, Observer
from search.loop.races import CONCLUDING
from search.loop.study_result import StudyResult
from search.loop.trial import TrialRunner
from search.strategies.base import Chooser
from search.strategies.proposers import OfflineProposer, as_policy
from search.strategy_bench.landscape import Ground
from search.study.spaces import PreparedStudy, prepare

if TYPE_CHECKING:
    from search.llm.client import LlmClient

STUDY_ID: Final = "simulated"
STEPS: Final = 5
"""Steps of a launch; all take the time that was drawn for it."""
FINALISTS, FINAL_LAUNCHES = 4, 4
"""Of a final that is thought of after each trial, and launches of each."""
FIRST_FINAL: Final = 1_000_000
"""Those launches are numbered from here: the search never makes them."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """A search that ended: every trial, every repeat launch, and what was announced.

    `exchanges` are those with a model.
    """

    trials: Sequence[Trial]
    repeats: Sequence[Repeat]
    result: StudyResult
    exchanges: Sequence[LlmExchange] = ()

    @property
    def launch_count(self) -> int:
        """Launches of trials, of the self-test, of races and of the final."""
        return launches_used(History(tuple(self.trials)), self.repeats)

    @property
    def winner(self) -> Config | None:
        """The configuration that was announced; None where nothing was measured."""
        ordinal = self.result.winner
        return None if ordinal is None else self.trials[ordinal].config


def simulate(
    ground: Ground,
    study: Study,
    start: Config,
    chooser: Chooser | None = None,
    *,
    client: "LlmClient | None" = None,
    for_all_trials: bool = False,
) -> Simulated:
    """Search a landscape from `start`; `chooser` takes the place of the study's strategy.

    With `for_all_trials` a search continues even when no further gain is expected. A strategy that
    asks a model takes a `client`.
    """

    def model(study: Study, _notice: Callable[[str], None]) -> "LlmClient":
        if client is None:
            raise StudyError(
                f"strategy {study.strategy} of {study.name} asks a model; give a client"
            )
        return client

    store, prepared = MemoryStore(), _prepared(ground, study)
    backend = _Backend(
        evaluator=cast(Evaluator, None),  # its runner answers in its place
        model=model,
        trace_answer=lambda _question, _history: "launches of this benchmark have no traces",
        seed=as_policy(start, "seed", "where the search starts"),
        sleep=lambda _seconds: None,
        scrubber=None,
        ground=ground,
    )
    with compose_search(STUDY_ID, prepared, store, cast(Observer, _Silent()), backend) as search:
        if chooser is not None:
            search = replace(search, proposer=OfflineProposer(chooser), no_gain=chooser.no_gain)
        if for_all_trials:
            search = replace(search, no_gain=never)
        result = search.run()
    return Simulated(store.trials, store.launched, result, tuple(store.exchanges.values()))


def winners(found: Simulated, study: Study, ground: Ground) -> Iterator[tuple[Config | None, int]]:
    """Yield who would win a final after each trial with its race, and the launches up to then.

    Not all who are best have won a race: a final tells those apart that launches so far do not.
    """
    scoring = _prepared(ground, study).scoring
    for count in range(1, len(found.trials) + 1):
        history = History(tuple(found.trials[:count]))
        repeats = [r for r in found.repeats if r.series <= count and r.purpose not in CONCLUDING]
        usable = counted(repeats, study.measure)
        known = find_leader(history, usable, scoring, study.measure).history
        best = sorted(known.admissible, key=known.cost)[:FINALISTS]
        finalists = [trial.config for trial in best if trial.config is not None]
        winner = min(finalists, key=lambda c: _final_cost(ground, c, study), default=None)
        yield winner, launches_used(history, repeats)


def _final_cost(ground: Ground, config: Config, study: Study) -> float:
    numbers = range(FIRST_FINAL, FIRST_FINAL + FINAL_LAUNCHES)
    values = [ground.launch(config, number, study.random_seed) for number in numbers]
    return ground.cost(fmean(value for value in values if not isinstance(value, Failed)))


def simulated_study(ground: Ground, strategy: str, seed: int) -> Study:
    """Return the study of a landscape; its objective is one number that each launch reports."""
    objective = ground.landscape.objective
    if not objective.expression.strip().isidentifier():
        objective = Objective(expression=PUBLISHED_SCORE, direction=objective.direction)
    return replace(ground.study, objective=objective, strategy=strategy, random_seed=seed)


class _Prepared(PreparedStudy):
    """A study whose policies are read and not run, but for those of a model."""

    def decide(self, policy: Policy) -> Config | Failed:
        """Return the configuration that the policy returns."""
        if policy.author in MODEL_TURNS:
            return super().decide(policy)
        values = policy.source.partition("environment):\n    return ")[2]
        config = self.space.check(ast.literal_eval(values.strip()))
        if isinstance(config, Config):
            return config
        return Failed(stage=Stage.CHECK, kind=FailureKind.INVALID_CONFIG, message="; ".join(config))


def _prepared(ground: Ground, study: Study) -> PreparedStudy:
    whole = prepare(study, ground.space)
    parts = {each.name: getattr(whole, each.name) for each in fields(whole)}
    return _Prepared(**{**parts, "recipe": cast(Recipe, _Estimates(whole.recipe, ground))})


class _Estimates:
    """The recipe of a study with the estimates of a landscape."""

    def __init__(self, recipe: Recipe, ground: Ground) -> None:
        self._recipe, self._ground = recipe, ground

    def __getattr__(self, name: str) -> object:
        return getattr(self._recipe, name)

    def estimate(self, _study: Study, config: Config) -> Mapping[str, float] | None:
        return self._ground.estimate(config)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Backend(Backend):
    ground: Ground

    def runner(
        self, study_id: str, prepared: PreparedStudy, store: Store, observer: Observer
    ) -> TrialRunner:
        return _Runner(
            study_id=study_id,
            prepared=prepared,
            store=store,
            observer=observer,
            evaluator=self.evaluator,
            fits=lambda *_: False,
            sleep=self.sleep,
            scrubber=None,
            ground=self.ground,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runner(TrialRunner):
    ground: Ground
    numbers: Counter[Config] = field(default_factory=Counter)
    """Launches of each configuration so far."""

    def clear(self) -> None:
        """Nothing lies anywhere."""

    def launch_once(self, study: Study, config: Config, folder: str = "") -> Outcome:
        number = self.numbers[config]
        self.numbers[config] += 1
        value = self.ground.launch(config, number, self.study.random_seed)
        return value if isinstance(value, Failed) else _measured(self.ground, study, config, value)


def _measured(ground: Ground, study: Study, config: Config, value: float) -> Measured:
    peak = ground.peak_memory_bytes(config)
    measurement = Measurement(
        step_times_s=((value if ground.landscape.unit == "s" else 1.0,) * STEPS,),
        warmup_times_s=(),
        losses=(),
        tokens_per_step=ground.landscape.workload.tokens_per_step,
        peak_memory_bytes=() if peak is None else (peak,),
        wall_s=None,
        device=ground.landscape.environment.device,
        torch_version=None,
        profiled=True,  # then no launch is read for traces
    )
    metric = MetricValue(
        name=study.objective.expression.strip(),
        value=value,
        unit=ground.landscape.unit,
        better="lower" if ground.lower_is_better else "higher",
        version=1,
    )
    return Measured(measurement=measurement, metrics=(metric,))


class MemoryStore(Store):
    """What a search asks of a store, without a disk."""

    def __init__(self) -> None:
        self.trials: list[Trial] = []
        self.launched: list[Repeat] = []
        self.exchanges: dict[int, LlmExchange] = {}

    @contextmanager
    def lock(self, study_id: str) -> Iterator[None]:
        """Hold the study."""
        yield

    def workdir(self, study_id: str) -> Path:
        """Return a folder that is not used."""
        return Path(study_id)

    def start_run(
        self,
        study_id: str,
        study: Study,
        nodes: tuple[NodeRecord, ...] = (),
        job_id: str | None = None,
    ) -> None:
        """Record nothing."""

    def update(self, study_id: str, *, status: str, summary: str | None = None) -> None:
        """Record nothing."""

    def node_s(self, study_id: str) -> float | None:
        """Return None."""
        return None

    def pending(self, study_id: str) -> tuple[PendingTrial, ...]:
        """Return nothing: no process was killed."""
        return ()

    def begin(
        self, study_id: str, pending: PendingTrial, exchange: LlmExchange | None
    ) -> PendingTrial:
        """Keep what was said; return the trial as it is."""
        if exchange is not None:
            self.exchanges[pending.ordinal] = exchange
        return pending

    def turn_usages(self, study_id: str) -> tuple[TokenUsage, ...]:
        """Return what each turn of a model used."""
        return tuple(exchange.usage for exchange in self.exchanges.values())

    def last_submission(self, study_id: str) -> tuple[int, str] | None:
        """Return the last trial that a model proposed, twice."""
        said = [n for n, exchange in self.exchanges.items() if exchange.result == SUBMITTED]
        return (said[-1], str(said[-1])) if said else None

    def exchange(self, digest: str) -> LlmExchange:
        """Return what was said before a trial."""
        return self.exchanges[int(digest)]

    def finish(self, study_id: str, trial: Trial) -> None:
        """Keep a trial."""
        self.trials.append(trial)

    def repeat(self, study_id: str, *repeats: Repeat) -> None:
        """Keep repeat launches."""
        self.launched += repeats

    def history(self, study_id: str) -> History:
        """Return every trial so far."""
        return History(tuple(self.trials))

    def repeats(self, study_id: str) -> tuple[Repeat, ...]:
        """Return every repeat launch so far."""
        return tuple(self.launched)


class _Silent:
    """An observer of everything that says nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None
