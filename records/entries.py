"""What can change in the records of a study: every change is one value, and one line of a journal.

An entry holds all that its rows need, so that a journal alone tells a study.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias, get_args

from records.computed import ComputedMetric
from records.exchange import Paid
from records.rows import Run
from records.study import Study
from records.trial import Policy, Repeat, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyCreated:
    """A study came on record; `version` is that of the cclsearch that recorded it."""

    kind: ClassVar[str] = "study_created"

    study: Study
    version: str
    created_at: str
    status: str = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyChanged:
    """How far a study is, its closing summary, or what it asks; None is what stays as it was."""

    kind: ClassVar[str] = "study_changed"

    status: str | None = None
    summary: str | None = None
    study: Study | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBegan:
    """A search began or went on, from where `run` says; the study is running from then on."""

    kind: ClassVar[str] = "run_began"

    run: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialBegun:
    """A trial was proposed and is about to be launched.

    `exchange` is the digest of the conversation that proposed it, `paid` what that conversation
    cost, where it was held for this trial.
    """

    kind: ClassVar[str] = "trial_begun"

    ordinal: int
    policy: Policy
    started_at: str
    exchange: str | None = None
    paid: Paid | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFinished:
    """A trial ended, however it did, and is under way no more."""

    kind: ClassVar[str] = "trial_finished"

    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchesRepeated:
    """Launches of earlier trials' configurations that ran together."""

    kind: ClassVar[str] = "launches_repeated"

    repeats: tuple[Repeat, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesRemoved:
    """Kept files that the study cites were removed for their space, by a rule in words."""

    kind: ClassVar[str] = "files_removed"

    removed_at: str
    rule: str
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsComputed:
    """Metrics of finished trials that were computed long after them, by the ordinal of each."""

    kind: ClassVar[str] = "metrics_computed"

    metrics: Mapping[int, tuple[ComputedMetric, ...]]


Entry: TypeAlias = (
    StudyCreated
    | StudyChanged
    | RunBegan
    | TrialBegun
    | TrialFinished
    | LaunchesRepeated
    | FilesRemoved
    | MetricsComputed
)

KINDS: dict[str, type[Entry]] = {kind.kind: kind for kind in get_args(Entry)}
"""Every kind of entry by the name under which journals hold it, which never changes."""


def with_study(entry: Entry, change: Callable[[Study], Study]) -> Entry:
    """The entry with a change made to the study in it, if it holds one."""
    match entry:
        case StudyCreated(study=study):
            return replace(entry, study=change(study))
        case StudyChanged(study=Study() as study):
            return replace(entry, study=change(study))
        case RunBegan(run=run):
            return replace(entry, run=replace(run, study=change(run.study)))
        case _:
            return entry
