"""A study whose results are to be measured again: what it recorded, and what it announced."""

from dataclasses import dataclass

from evaluator.objective import Scoring, scoring_of
from evaluator.timing.paired import Comparison
from evaluator.timing.verdict import Verdict
from records.errors import StudyError
from records.history import History
from records.rows import StudyRow
from records.store import Store
from records.study import MEASURE, Study
from records.trial import Failed, FailureKind, Repeat, Trial
from search.disturbed import counted
from search.finding import Finding, ended_with, leader_of

SEED = 0
LAUNCHABLE_ORIGINS = ("bundle",)
"""Imports that carry what it takes to launch their trials."""
NO_RESULT = (FailureKind.DUPLICATE, FailureKind.INFRASTRUCTURE)
"""Failures that say nothing of a configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A study on record with its trials and the launches that count."""

    row: StudyRow
    history: History
    repeats: tuple[Repeat, ...]
    best: Trial | None

    @property
    def scoring(self) -> Scoring:
        """Its objective, with the seed on record as the seed."""
        return scoring_of(self.row.study).over(self.history)

    @property
    def finding(self) -> Finding | None:
        """What the study announced; None where it did not end."""
        return ended_with(self.row)

    def lead(self, trial: Trial) -> Comparison | None:
        """By how much this trial was announced to lead over the seed; None where it was not."""
        finding = self.finding
        if finding is None or finding.winner != trial.ordinal or finding.against_seed is None:
            return None
        shown = finding.against_seed.verdict is Verdict.FAST
        return finding.against_seed if shown and self.seed is not None else None

    @property
    def seed(self) -> Trial | None:
        """The first trial, where it was measured."""
        first = self.history.find(SEED)
        return first if first is not None and first.score is not None else None

    def chosen(self, which: str) -> tuple[Trial, ...]:
        """The trials that `best`, `seed`, `all` or an ordinal mean, the best and the seed first.

        Raises `StudyError` where there is none, or it claims nothing that could be measured again.
        """
        if which == "all":
            first = [trial for trial in (self.best, self.seed) if trial is not None]
            others = [trial for trial in self.history if _has_result(trial)]
            if not others:
                raise StudyError(f"study {self.row.id} has no trial with a result; {self._see}")
            return tuple({trial.ordinal: trial for trial in (*first, *others)}.values())
        return (self._one(which),)

    def _one(self, which: str) -> Trial:
        if which == "best":
            if self.best is None:
                raise StudyError(f"study {self.row.id} has no measured trial; {self._see}")
            return self.best
        if which != "seed" and not (which.isascii() and which.isdecimal()):
            raise StudyError(f"--trial {which!r} is no trial; write best, seed, all or a number")
        ordinal = SEED if which == "seed" else int(which)
        trial = self.history.find(ordinal)
        if trial is None:
            raise StudyError(f"study {self.row.id} has no trial {ordinal}; {self._see}")
        if not _has_result(trial):
            raise StudyError(f"trial {ordinal} claims nothing: {trial.outcome}; {self._see}")
        return trial

    @property
    def _see(self) -> str:
        return f"see `cclsearch show {self.row.id}`"


def require_search(row: StudyRow) -> None:
    """Raise `StudyError` where the record does not say how the study was searched."""
    if row.strategy == MEASURE:
        raise StudyError(
            f"study {row.id} holds launches of a replay, and no search; "
            f"replay {row.study.replay_of}, or go on with --mode measure"
        )
    if _is_foreign(row.study):
        raise StudyError(
            f"study {row.id} was imported, and its record does not say how it was searched; "
            "use --mode policy or --mode score"
        )


def _is_foreign(study: Study) -> bool:
    return study.origin is not None and study.origin.kind not in LAUNCHABLE_ORIGINS


def source_of(row: StudyRow, store: Store) -> Source:
    """Read a study that can be launched again; raises `StudyError` where it cannot be."""
    if _is_foreign(row.study):
        raise StudyError(
            f"study {row.id} was imported, and its record does not say how its trials are "
            f"launched; `cclsearch show {row.id}` has their results"
        )
    return Source(
        row=row,
        history=store.history(row.id),
        repeats=counted(store.repeats(row.id), row.study.measure),
        best=leader_of(row, store),
    )


def _has_result(trial: Trial) -> bool:
    outcome = trial.outcome
    return not (isinstance(outcome, Failed) and outcome.kind in NO_RESULT)
