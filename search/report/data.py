"""Everything that the sections of a report need from the store, read once."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from evaluator.objective import Scoring, scoring_of
from evaluator.timing.decision import Spread
from policies.space import Space
from records.errors import StudyError
from records.machine import Machine
from records.store.rows import StudyRow
from records.store.store import Store
from records.study import Study
from records.trial import History, MetricValue, Repeat, Trial
from search.loop.leader import counted, study_leader
from search.loop.learned import LearnedConstraint, learned_constraints
from search.loop.study_result import StudyResult, final_result, find, trial_spread
from search.report.explored import (
    StudyFront,
    StudyHistory,
    StudyKnobs,
    study_front,
    study_history,
    study_knobs,
)
from search.report.summary import StudyRecord, report_lines
from search.settings import status
from search.study.spaces import space_of
from search.transfer.audit import Fault, audit
from search.views.machine import machine_of

UNFINISHED_REASONS = {
    "running": "the search is still running",
    "interrupted": "the search was interrupted and can be resumed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """A stored study with all that its report shows.

    `finding` is the final result, or the current one while the search runs. `space` is None where
    it cannot be built from the stored study.
    """

    record: StudyRecord
    explored: StudyHistory
    front: StudyFront
    knobs: StudyKnobs
    status: str
    finding: StudyResult
    scoring: Scoring
    repeats: tuple[Repeat, ...]
    space: Space | None
    learned: tuple[LearnedConstraint, ...]
    metrics: Mapping[int, tuple[MetricValue, ...]]
    machines: Mapping[str, Machine | None]
    faults: tuple[Fault, ...]
    store_flag: str
    summary: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The closing report that `cclsearch show` prints, by label."""

    @classmethod
    def of(cls, row: StudyRow, store: Store, store_flag: str) -> Self:
        """Read a study from the store; `store_flag` is what commands need to find it again."""
        record, repeats = StudyRecord.of(row.id, store), store.repeats(row.id)
        scoring = scoring_of(row.study).over(record.history)
        now = status(row, store)
        finding = final_result(row) or _current_finding(row, store, scoring, now)
        space = _space(row.study)
        summary: dict[str, tuple[str, ...]] = {}
        for label, words in report_lines(finding, record, store_flag):
            summary[label] = (*summary.get(label, ()), words)
        return cls(
            record=record,
            explored=study_history(row, store),
            front=study_front(row, store),
            knobs=study_knobs(row, store),
            status=now,
            finding=finding,
            scoring=scoring,
            repeats=repeats,
            space=space,
            learned=_learned(space, record.history, row.study.revoked),
            metrics=store.metric_values(row.id),
            machines=_machines(record.history, repeats, store),
            faults=audit(row.study, record.history, repeats) if len(record.history) else (),
            store_flag=store_flag,
            summary=summary,
        )

    @property
    def study_id(self) -> str:
        """Id of the study."""
        return self.record.row.id

    @property
    def study(self) -> Study:
        """The study itself."""
        return self.record.row.study

    @property
    def history(self) -> History:
        """All trials, and who leads."""
        return self.record.history

    @property
    def best(self) -> Trial | None:
        """The trial that won, or leads so far; None where none may."""
        winner = self.finding.winner
        return None if winner is None else self.history.find(winner)

    @property
    def seed(self) -> Trial | None:
        """The trial that all others are measured against."""
        return self.history.find(0)

    @property
    def is_finished(self) -> bool:
        """Whether the search came to its end."""
        return self.status == "finished"

    def reached(self, trial: Trial) -> Spread | None:
        """The number of a trial, over the launches that count; None where it has no score."""
        return trial_spread(trial, self.history)

    def lines(self, *labels: str) -> tuple[tuple[str, str], ...]:
        """What the closing report says under these labels."""
        return tuple((label, words) for label in labels for words in self.summary.get(label, ()))


def _current_finding(row: StudyRow, store: Store, scoring: Scoring, now: str) -> StudyResult:
    reason = UNFINISHED_REASONS.get(now, "the search did not finish")
    launches = counted(store.repeats(row.id), row.study.measure)
    return find(study_leader(row, store), launches, scoring, row.study.measure, reason)


def _machines(
    history: History, repeats: Sequence[Repeat], store: Store
) -> dict[str, Machine | None]:
    """What launches ran on, by digest; None for a description that cannot be read any more."""
    outcomes = [trial.outcome for trial in history] + [repeat.outcome for repeat in repeats]
    launched = {each.machine: each for one in outcomes if (each := one.launched) is not None}
    return {
        digest: machine_of(each, store) for digest, each in launched.items() if digest is not None
    }


def _space(study: Study) -> Space | None:
    """The space, if need be without what the study's recipe derives."""
    for build in (
        space_of,
        lambda study: Space(study.space, study.workload, study.usable_environment),
    ):
        with suppress(StudyError):  # a record from elsewhere may lack what the recipe needs
            return build(study)
    return None


def learned_for(study: Study, history: History) -> tuple[LearnedConstraint, ...]:
    """Return the constraints learned from failures; none where the space cannot be listed."""
    return _learned(_space(study), history, study.revoked)


def _learned(
    space: Space | None, history: History, revoked: Sequence[str]
) -> tuple[LearnedConstraint, ...]:
    if space is None:
        return ()
    try:
        return learned_constraints(space, history, revoked)
    except StudyError:  # too many configurations to be listed
        return ()
