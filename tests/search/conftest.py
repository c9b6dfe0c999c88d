"""Whole searches over a table: real store, sandbox and proposers, no launches."""

import io
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

import policies.sandbox
from evaluator.evaluate import diagnose
from evaluator.metrics.base import Evidence
from evaluator.traces.analysis.breakdown import breakdown
from evaluator.traces.readers.read import read_traces
from policies.space import Space
from records.machine import NodeRecord
from records.store.store import Store
from records.study import Budget, Dimension, Measure, Objective, Study
from records.trial import Config, History, Policy
from search.cli.main import main
from search.llm.proposer import LlmProposer
from search.loop.batch import Capacity
from search.loop.loop import Search
from search.loop.ports import Proposer
from search.loop.study_result import StudyResult
from search.loop.trial import TrialRunner
from search.strategies.base import Chooser
from search.strategies.offline import CoordinateChooser
from search.strategies.proposers import FrontProposer, OfflineProposer
from search.study.spaces import prepare
from search.views.terminal import PlainProgress
from tests.support import records as testing
from tests.support.evaluator import Ending, TabularEvaluator
from tests.support.search import CONFIRMED, Script, connected
from tests.support.search import ScriptedMessagesServer as Server


@pytest.fixture(scope="session", autouse=True)
def sandbox_once() -> Iterator[None]:
    """Runs each policy once on equal inputs: tests/policies prove that it answers the same again.

    A sandbox takes longer than the rest of a trial that is not launched.
    """
    answers: dict[str, object] = {}
    run_policy = policies.sandbox.run_policy

    def remembered(source: str, *inputs: Mapping[str, object]) -> object:
        asked = json.dumps([source, *map(dict, inputs)])
        if asked not in answers:
            answers[asked] = run_policy(source, *inputs)
        found = answers[asked]
        return dict(found) if isinstance(found, dict) else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policies.sandbox, "run_policy", remembered)
        yield


GLOO = Path(__file__).parents[1] / "data" / "traces" / "gloo_ddp_2rank"
SEED = "def generate_config(workload, environment):\n    return {'n': 0}\n"


@dataclass
class TabularStudy:
    """A study with one knob `n`, whose configurations end as a table says, one row for each."""

    root: Path
    endings: Mapping[int, Ending]
    objective: str = "step_time"
    direction: str | None = None
    more: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    seed: str = SEED
    budget: Budget = field(default_factory=lambda: Budget(trials=10, patience=10, max_failures=10))
    measure: Measure = CONFIRMED
    proposer: Callable[[Space], Proposer] = lambda space: OfflineProposer(CoordinateChooser(space))
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    noise_seed: int = 0
    capacity: Capacity = field(default_factory=Capacity)
    study_id: str = "20260101-000000-aaaa"
    nodes: tuple[NodeRecord, ...] = ()
    replay_of: str | None = None

    def __post_init__(self) -> None:
        self.evaluator = TabularEvaluator(
            endings={Config({"n": n}): ending for n, ending in self.endings.items()},
            seed=self.noise_seed,
        )
        self.store = Store(self.root)
        self.said = io.StringIO()
        self.store.create(self.study_id, self.study, "test")

    @property
    def study(self) -> Study:
        return replace(
            testing.study(Dimension(name="n", choices=tuple(self.endings))),
            objective=Objective(expression=self.objective, direction=self.direction),
            more_objectives=tuple(Objective(expression=text) for text in self.more),
            limits=self.limits,
            budget=self.budget,
            measure=self.measure,
            strategy="coordinate",
            replay_of=self.replay_of,
        )

    def run(self) -> StudyResult:
        study = self.study
        prepared = prepare(study, Space(study.space, study.workload, study.environment))
        proposer = self.proposer(prepared.space)
        trial_runner = TrialRunner(
            scrubber=None,
            study_id=self.study_id,
            prepared=prepared,
            store=self.store,
            observer=PlainProgress(self.said),
            evaluator=self.evaluator,
            sleep=self.sleep,
        )
        return Search(
            trial_runner=trial_runner,
            seed=Policy(source=self.seed, author="seed"),
            proposer=FrontProposer(proposer, prepared.scoring)
            if prepared.scoring.more
            else proposer,
            capacity=self.capacity,
            clock=self.clock,
            nodes=lambda _on_phase: self.nodes,
        ).run()

    @property
    def history(self) -> History:
        return self.store.history(self.study_id)

    @property
    def launched(self) -> list[object]:
        """The knob of every launch, in order."""
        return [config["n"] for config in self.evaluator.launches]


@pytest.fixture
def tabular(tmp_path) -> Iterator[Callable[..., TabularStudy]]:
    """Makes studies over a table; gives the study, ready to run."""
    made: list[TabularStudy] = []

    def make(endings: Mapping[int, Ending], **fields: object) -> TabularStudy:
        made.append(TabularStudy(tmp_path / f"store{len(made)}", endings, **fields))
        return made[-1]

    yield make
    for study in made:
        study.store.close()


@pytest.fixture
def proposing() -> Callable[..., AbstractContextManager[tuple[Server, LlmProposer]]]:
    """Opens a scripted model and a proposer that asks it; `fields` are those of the proposer."""

    @contextmanager
    def opened(
        study: Study, script: Script, offline: Chooser | None = None, **fields: object
    ) -> Iterator[tuple[Server, LlmProposer]]:
        prepared = prepare(study, Space(study.space, study.workload, study.environment))
        with connected(script, attempts=2) as (server, client):
            chooser = offline or CoordinateChooser(prepared.space)
            yield server, LlmProposer(client, prepared, chooser, **{"turns": "every", **fields})

    return opened


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture
def cclsearch(monkeypatch, capsys, tmp_path) -> Callable[..., Ended]:
    """Runs a command in this process, in an empty folder and without a key."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CCLSEARCH_STORE"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["cclsearch", *map(str, arguments)])
        with pytest.raises(SystemExit) as leaving:
            main()
        printed = capsys.readouterr()
        return Ended(int(leaving.value.code or 0), printed.out, printed.err)

    return run


@pytest.fixture
def traced_store(tmp_path) -> Callable[..., Path]:
    """Makes a store: trial 0 left the traces of two gloo ranks, trial 1 failed; gives its root.

    `folder` is where the files of the trial lay in its own folder.
    """

    def make(study: Study | None = None, folder: str = "") -> Path:
        paths = sorted(GLOO.glob("*.gz"))
        seen = Evidence(traces=read_traces(paths))
        read = {"breakdown": breakdown(seen.split), "diagnosis": diagnose(seen)}
        with closing(Store(tmp_path / "traced")) as store:
            kept = tuple(store.artifacts.keep(path, f"{folder}{path.name}") for path in paths)
            traced = replace(testing.measured(), **read, artifacts=kept)
            trials = testing.history(traced, testing.failed()).trials
            store.add_study("20260101-000000-aaaa", study or testing.study(), "test", trials)
        return store.root

    return make
