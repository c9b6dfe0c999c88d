"""Searches over a table that a real store records, to be replayed."""

from collections.abc import Callable, Mapping
from contextlib import closing
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import copytree
from typing import TypeAlias

import pytest

from records.store.store import Store
from records.study import Budget, Command, Dimension, Launch, Measure, Study
from records.trial import Config, Policy
from search.compose import Backend, compose_search
from search.llm.client import LlmClient
from search.llm.proposer import TraceAnswer
from search.loop.batch import Capacity
from search.loop.study_result import StudyResult
from search.loop.trial import ContextEvaluator
from search.replay.measure import Decision, begin, measuring, measuring_study, source_of
from search.replay.rerun import recorded_study, replay_study
from search.replay.scores import Checks, compare_replay
from search.settings import LlmSettings, Secret
from search.strategies.proposers import ReplayProposer, policies_again
from search.study.spaces import prepare
from search.views.terminal import PlainProgress
from tests.support import records as testing
from tests.support.evaluator import Ending, TabularEvaluator
from tests.support.search import ScriptedMessagesServer, client_of

SEED = "def generate_config(workload, environment):\n    return {'n': 0}\n"
KEY = "sk-ant-loopback-0123456789abcdef"
BUDGET = Budget(trials=8, patience=8, max_failures=8)
MEASURE = Measure(
    infrastructure_retries=1,
    self_test_rounds=0,
    race_rounds=0,
    confirm_top=2,
    confirm_rounds=1,
    max_confirm_rounds=1,
    profiled_steps=0,
)
SCRIPT = {"launch": Launch(recipe="command"), "command": Command(run=("true",), rank_count="1")}
"""A recipe that knows nothing of the knobs."""


@dataclass
class Recording:
    """A search over one knob `n` whose configurations end as a table says."""

    root: Path
    endings: Mapping[int, Ending]
    study: Study
    clock: Callable[[], float] | None = None
    study_id: str = "20260101-000000-aaaa"
    trace_answer: TraceAnswer | None = None
    evaluator: TabularEvaluator = field(init=False)

    def __post_init__(self) -> None:
        rows = {Config({"n": n}): ending for n, ending in self.endings.items()}
        self.evaluator = TabularEvaluator(endings=rows)
        with closing(Store(self.root)) as store:
            store.create(self.study_id, self.study, "test")

    def copied(self, folder: Path) -> "Recording":
        """The same with a store of its own."""
        copytree(self.root, folder)
        other = copy(self)
        other.root = folder
        return other

    def run(self, server: ScriptedMessagesServer | None = None) -> StudyResult:
        """Run, or go on, with the study as it is on record."""
        with closing(Store(self.root)) as store:
            study = store.find(self.study_id).study
            again = policies_again(study, store) if study.strategy == ReplayProposer.name else ()
            around = Backend(
                scrubber=None,
                evaluator=ContextEvaluator(self.evaluator),
                model=lambda study, _notice: _client(study, server),
                seed=Policy(source=SEED, author="seed"),
                trace_answer=self.trace_answer,
                again=again,
                fits=lambda study, _: study.measure.together == "auto" and not study.contexts,
                capacity=Capacity(trial_count=study.parallel, place_count=study.parallel),
                sleep=lambda _: None,
            )
            with compose_search(
                self.study_id, prepare(study), store, PlainProgress(), around
            ) as search:
                return replace(search, clock=self.clock or search.clock).run()

    def extend(self, more: int) -> None:
        """Add trials to the budget, as resume does."""
        with closing(Store(self.root)) as store:
            study = store.find(self.study_id).study
            trials = store.history(self.study_id).launched_count + more
            extended = replace(study, budget=replace(study.budget, trials=trials))
            store.replace_study(self.study_id, extended)

    def checks(self) -> Checks:
        """What a replay does otherwise; it has to follow the record to its end."""
        with closing(Store(self.root)) as store:
            record = recorded_study(self.study_id, store)
            replay = replay_study(record, store)
            assert replay.stopped is None
            return compare_replay(record, replay.again)


def _client(study: Study, server: ScriptedMessagesServer | None) -> LlmClient:
    assert server is not None
    settings = LlmSettings(
        api_key=Secret(KEY), model=study.llm.model, base_url=server.url, retry_wait_s=0.001
    )
    return client_of(settings)


@dataclass
class Replay:
    """A replay of a search in the same store, whose launches end as another table says."""

    searched: Recording
    endings: Mapping[int, Ending]
    which: str = "best"
    rounds: int = 12
    within: float = 0.1
    study_id: str = "20260102-000000-cccc"

    def __post_init__(self) -> None:
        rows = {**self.searched.endings, **self.endings}
        self.evaluator = TabularEvaluator(endings={Config({"n": n}): e for n, e in rows.items()})
        with closing(Store(self.searched.root)) as store:
            source = source_of(store.find(self.searched.study_id), store)
            trials = source.chosen(self.which)
            study = measuring_study(source.row.study, source.row.id, len(trials), self.rounds)
            store.create(self.study_id, study, "test")
            begin(self.study_id, trials, store)

    def run(self) -> tuple[Decision, ...]:
        """Run, or go on."""
        with closing(Store(self.searched.root)) as store:
            around = Backend(
                scrubber=None,
                evaluator=ContextEvaluator(self.evaluator),
                model=lambda *_: None,
                seed=store.history(self.searched.study_id).trials[0].policy,
                fits=lambda study, _: study.measure.together == "auto",
                capacity=Capacity(),
                sleep=lambda _: None,
            )
            return measuring(
                self.study_id,
                prepare(store.find(self.study_id).study),
                source_of(store.find(self.searched.study_id), store),
                store,
                around,
                PlainProgress(),
                within=self.within,
            ).run()


@pytest.fixture
def replaying() -> type[Replay]:
    """Makes replays, begun on record and ready to run."""
    return Replay


Maker: TypeAlias = Callable[..., Recording]


def _maker(root: Path) -> Maker:
    """Makes studies over a table, ready to run; budget and measure are given as changes."""

    def make(
        endings: Mapping[int, Ending],
        *,
        clock: Callable[[], float] | None = None,
        budget: Mapping[str, object] | None = None,
        measure: Mapping[str, object] | None = None,
        study_id: str = "20260101-000000-aaaa",
        **changes: object,
    ) -> Recording:
        study = replace(
            testing.study(Dimension(name="n", choices=tuple(endings))),
            budget=replace(BUDGET, **budget or {}),
            measure=replace(MEASURE, **measure or {}),
            **{"strategy": "grid", **SCRIPT, **changes},
        )
        return Recording(root / study_id, endings, study, clock=clock, study_id=study_id)

    return make


@pytest.fixture
def record(tmp_path) -> Maker:
    """Makes studies in a folder of the test."""
    return _maker(tmp_path)


@pytest.fixture(scope="module")
def record_once(tmp_path_factory) -> Maker:
    """Makes studies that the tests of a module share, and must not change."""
    return _maker(tmp_path_factory.mktemp("recorded"))
