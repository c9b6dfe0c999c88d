"""All that is on record of one study, run by run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf

from records.errors import StoreError, StudyError
from records.exchange import Exchange
from records.history import History
from records.rows import Intent, Run, StudyRow
from records.store import Store
from records.study import Study
from records.trial import Policy, Purpose, Repeat, Trial
from search.budget import stop_reason
from search.finding import Finding, ended_with

CLOSING = (Purpose.HALVING, Purpose.CONFIRM)
"""What is launched when a run ends by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """One run of the search: it went on until so many trials and further launches were on record.

    `begun` trials were under way when it ended. A run that `concluded` proposed no more and went
    on to confirm the best; one that `finished` did that to its end, and is the last.
    """

    study: Study
    trials: int
    repeats: int
    begun: int
    concluded: bool
    finished: bool
    out_of_time: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A study with everything that was proposed, asked, launched and found; `begun` never ended."""

    row: StudyRow
    trials: tuple[Trial, ...]
    repeats: tuple[Repeat, ...]
    begun: tuple[Intent, ...]
    exchanges: Mapping[int, Exchange]
    finding: Finding | None
    runs: tuple[Run, ...]

    @property
    def proposed(self) -> tuple[Trial | Intent, ...]:
        """Trials that ended, and those that never did."""
        return (*self.trials, *self.begun)

    @property
    def seed(self) -> Policy:
        """The policy of trial 0; raises `StudyError` where none was begun."""
        for proposed in self.proposed:
            if proposed.ordinal == 0:
                return proposed.policy
        raise StudyError(
            f"study {self.row.id} has no trial on record, so there is nothing to replay; "
            "see `cclsearch list`"
        )

    def ended_at(self, ordinal: int) -> str:
        """When a trial ended, as text that sorts; after all others where it never did."""
        return next((t.ended_at for t in self.trials if t.ordinal == ordinal), "~")

    def started_s(self, ordinal: int) -> float:
        """When a trial was begun, in seconds of the clock; the last one's time after the last."""
        begun = [p.started_at for p in self.proposed if p.ordinal <= ordinal]
        return datetime.fromisoformat(max(begun)).timestamp() if begun else 0.0

    def fills_batch(self, ordinal: int) -> bool:
        """Whether no trial was begun beside this one after it, before a launch of theirs ended."""
        following = next((p for p in self.proposed if p.ordinal == ordinal + 1), None)
        ended = (t.ended_at for t in self.trials if t.reached_launch and t.ordinal <= ordinal)
        started = next((p.started_at for p in self.proposed if p.ordinal == ordinal), "")
        return following is None or any(started < end < following.started_at for end in ended)

    @property
    def legs(self) -> tuple[Leg, ...]:
        """Its runs, oldest first; the last one goes on to the end of the record."""
        starts = self._starts()
        ends = [(run.trials, run.repeats, run.begun) for run in starts[1:]]
        ends.append((len(self.trials), len(self.repeats), len(self.begun)))
        legs = [
            Leg(
                study=run.study,
                trials=trials,
                repeats=repeats,
                begun=begun,
                concluded=any(_closes(r, trials) for r in self.repeats[:repeats]),
                finished=False,
                out_of_time=False,
            )
            for run, (trials, repeats, begun) in zip(starts, ends, strict=True)
        ]
        if self.finding is not None:
            out_of_time = stop_reason(legs[-1].study.budget, History(), 0, inf)
            late = self.finding.stop_reason == out_of_time
            legs[-1] = replace(legs[-1], finished=True, out_of_time=late)
        return tuple(legs)

    def _starts(self) -> Sequence[Run]:
        """Where runs began; one that nobody noted began after the launches that closed another."""
        noted = {run.trials for run in self.runs}
        first = self.runs[0].study if self.runs else self.row.study
        starts = [*self.runs]
        if 0 not in noted:
            starts.append(Run(trials=0, repeats=0, begun=0, study=first))
        for series in sorted({r.series for r in self.repeats if r.purpose in CLOSING}):
            if series < len(self.trials) and series not in noted:
                closed = sum(repeat.series <= series for repeat in self.repeats)
                starts.append(Run(trials=series, repeats=closed, begun=0, study=first))
        return sorted(starts, key=lambda run: (run.trials, run.repeats))


def recorded_study(study_id: str, store: Store) -> Recorded:
    """Read all of a study; raises `StoreError` where what a model said is missing or changed."""
    row = store.find(study_id)
    history = store.history(study_id)
    begun = store.pending(study_id)
    proposed: tuple[Trial | Intent, ...] = (*history.trials, *begun)
    return Recorded(
        row=row,
        trials=history.trials,
        repeats=store.repeats(study_id),
        begun=begun,
        exchanges={
            each.ordinal: _exchange(each.exchange, each.ordinal, store)
            for each in proposed
            if each.exchange is not None
        },
        finding=ended_with(row),
        runs=store.runs(study_id),
    )


def _exchange(digest: str, ordinal: int, store: Store) -> Exchange:
    try:
        return store.exchange(digest)
    except StoreError as error:
        raise StoreError(
            f"what the model said for trial {ordinal} cannot be replayed: {error}"
        ) from error


def _closes(repeat: Repeat, series: int) -> bool:
    return repeat.series == series and repeat.purpose in CLOSING
