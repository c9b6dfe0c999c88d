"""Whole searches over a table for each context: real store, sandbox and proposers, no launches."""

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from policies.space import Space
from records.store.rows import StudyRow
from records.store.store import Store
from records.study import Budget, Command, Context, Dimension, Launch, SearchSpace, Study
from records.trial import Config, History, Outcome, Policy
from search.loop.loop import Search
from search.loop.ports import Proposer
from search.loop.study_result import StudyResult
from search.loop.trial import ContextEvaluator, TrialRunner
from search.strategies.offline import GridChooser
from search.strategies.proposers import OfflineProposer
from search.study.spaces import prepare
from search.views.terminal import PlainProgress
from tests.support import records as testing
from tests.support.evaluator import Ending, TabularEvaluator
from tests.support.search import CONFIRMED

ZERO = "def generate_config(workload, environment):\n    return {'n': 0}\n"


def context(name: str, *, held_out: bool = False, choices=None, **workload: int) -> Context:
    """A context whose work differs from the study's own; with choices, in its knob `n` too."""
    space = (
        None if choices is None else SearchSpace(dimensions=(Dimension(name="n", choices=choices),))
    )
    work = replace(testing.WORKLOAD, **workload)
    return Context(
        name=name, workload=work, environment=testing.ENVIRONMENT, held_out=held_out, space=space
    )


def study_with(*contexts: Context, choices=(0, 1, 2), **fields: object) -> Study:
    """A study `example` with one knob `n` and these contexts, whose script nobody starts."""
    return replace(
        testing.study(Dimension(name="n", choices=choices)),
        launch=Launch(recipe="command"),
        command=Command(run=("true",), rank_count="1"),
        measure=CONFIRMED,
        budget=Budget(trials=4, patience=10, max_failures=10),
        strategy="grid",
        contexts=contexts,
        **fields,
    )


class Tables:
    """Ends launches as the table of their context says, and lists them in order."""

    def __init__(self, endings: Mapping[str, Mapping[int, Ending]]) -> None:
        self._tables: dict[str, TabularEvaluator] = {}
        for name, table in endings.items():
            self.add(name, table)
        self.launches: list[tuple[str, object]] = []
        self.killed_at: int | None = None

    def add(self, name: str, table: Mapping[int, Ending]) -> None:
        endings = {Config({"n": n}): ending for n, ending in table.items()}
        self._tables[name] = TabularEvaluator(endings=endings)

    def evaluate(self, study: Study, config: Config, workdir: Path) -> Outcome:
        if len(self.launches) == self.killed_at:
            raise KeyboardInterrupt
        self.launches.append((study.name, config["n"]))
        return self._tables[study.name].evaluate(study, config, workdir)


@dataclass
class ContextSearch:
    """A search over tables, one for each context by its name."""

    root: Path
    study: Study
    endings: Mapping[str, Mapping[int, Ending]]
    seed: str = ZERO
    proposer: Callable[[Space], Proposer] = lambda space: OfflineProposer(GridChooser(space))
    study_id: str = "20260101-000000-aaaa"
    said: io.StringIO = field(default_factory=io.StringIO)

    def __post_init__(self) -> None:
        self.tables = Tables(self.endings)
        self.store = Store(self.root)
        self.store.create(self.study_id, self.study, "test")

    def run(self) -> StudyResult:
        prepared = prepare(self.study)
        trial_runner = TrialRunner(
            scrubber=None,
            study_id=self.study_id,
            prepared=prepared,
            store=self.store,
            observer=PlainProgress(self.said),
            evaluator=ContextEvaluator(self.tables),
        )
        return Search(
            trial_runner=trial_runner,
            seed=Policy(source=self.seed, author="seed"),
            proposer=self.proposer(prepared.space),
        ).run()

    @property
    def row(self) -> StudyRow:
        return self.store.find(self.study_id)

    @property
    def history(self) -> History:
        return self.store.history(self.study_id)


@pytest.fixture(scope="module")
def searched(tmp_path_factory) -> Iterator[Callable[..., ContextSearch]]:
    """Makes searches over tables, ready to run."""
    made: list[ContextSearch] = []

    def make(study: Study, endings: object, **fields: object) -> ContextSearch:
        made.append(ContextSearch(tmp_path_factory.mktemp("store"), study, endings, **fields))
        return made[-1]

    yield make
    for each in made:
        each.store.close()


@pytest.fixture(name="context", scope="module")
def _context() -> Callable[..., Context]:
    return context


@pytest.fixture(name="study_with", scope="module")
def _study_with() -> Callable[..., Study]:
    return study_with
