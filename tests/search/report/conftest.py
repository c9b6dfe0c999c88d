"""Studies of every kind on record."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from records.store.store import Store
from records.study import Dimension, Study
from records.trial import (
    Breakdown,
    Config,
    FailureKind,
    MetricValue,
    Outcome,
    Policy,
    Repeat,
    Trial,
)
from search.report.report import study_report
from search.views.document import Document
from tests.support import records as testing

KNOBS = (
    Dimension(name="tp", choices=(1, 2, 4)),
    Dimension(name="batch", choices=(1, 2, 4, 8)),
    Dimension(name="ac", choices=("none", "full")),
)


def step_s(ordinal: int, tp: int, batch: int, ac: str) -> float:
    """A step time in which `tp` matters most and the ordinal hardly."""
    return 0.1 * tp * (1 + 1 / batch) * (1.2 if ac == "full" else 1.0) * (1 + ordinal % 7 / 1000)


def made_trial(ordinal: int, words: str = "because") -> Trial:
    """A trial that is measured, or every ninth of which fails."""
    tp, batch, ac = (1, 2, 4)[ordinal % 3], (1, 2, 4, 8)[ordinal // 3 % 4], ("none", "full")
    values = {"tp": tp, "batch": batch, "ac": ac[ordinal // 12 % 2]}
    policy = Policy(source=f"# {words}\n{values!r}\n", author=words, rationale=words)
    if ordinal % 9 == 4:
        outcome = testing.failed(FailureKind.OUT_OF_MEMORY, message=words)
        return replace(testing.trial(ordinal, outcome), config=Config(values), policy=policy)
    time_s = step_s(ordinal, **values)
    memory = MetricValue(
        name="peak_memory", value=2.0**30 * batch / tp, unit="bytes", better="lower", version=1
    )
    plain = testing.measured(time_s)
    parts = Breakdown(
        compute_s=time_s / 2,
        exposed_communication_s=time_s / 4,
        hidden_communication_s=time_s / 8,
        other_s=0.0,
        idle_s=time_s / 4,
    )
    outcome = replace(plain, metrics=(*plain.metrics, memory), breakdown=parts)
    return replace(testing.trial(ordinal, outcome), config=Config(values), policy=policy)


def again(trials: Sequence[Trial]) -> tuple[Repeat, ...]:
    """Four rounds of the best against the first, each a little slower than the one before."""
    measured = [trial for trial in trials if trial.score is not None]
    best = min(measured, key=lambda trial: trial.score.cost)
    sides = dict.fromkeys((best.ordinal, measured[0].ordinal))
    return tuple(
        Repeat(
            series=len(trials),
            round=number,
            ordinal=ordinal,
            position=position,
            outcome=slower(trials[ordinal].outcome, 1 + number / 100),
        )
        for number in range(4)
        for position, ordinal in enumerate(sides)
    )


def slower(outcome: Outcome, factor: float) -> Outcome:
    """The same outcome, with all its metrics this many times as large."""
    larger = (replace(metric, value=metric.value * factor) for metric in outcome.metrics)
    return replace(outcome, metrics=tuple(larger))


@pytest.fixture
def store(tmp_path) -> Iterator[Store]:
    """An empty store."""
    made = Store(tmp_path / "store")
    yield made
    made.close()


@pytest.fixture
def reported(store) -> Callable[..., Document]:
    """Puts a study of so many trials on record and gives its report."""

    def report(count: int, words: str = "because", **fields: object) -> Document:
        study: Study = replace(testing.study(*KNOBS), strategy="offline", **fields)
        trials = tuple(made_trial(ordinal, words) for ordinal in range(count))
        study_id = f"study-{len(store.studies())}"
        store.add_study(study_id, study, "test", trials, again(trials) if count else ())
        return study_report(store.find(study_id), store, "")

    return report
