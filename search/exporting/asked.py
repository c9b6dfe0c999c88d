"""What an export takes out of a record, and what it leaves out."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from records.entries import Entry, LaunchesRepeated, TrialBegun, TrialFinished, with_study
from records.rows import StudyRow
from records.store import Store
from records.trial import InContext, Measured, MetricValue, Outcome, Policy, Repeat, Trial
from search.trust import plain_study


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """What stays at home: files with traces, or everything but configurations and results."""

    traces: bool = False
    all_but_metrics: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A study as it is exported: some or all of its trials, less what was to be left out.

    `metrics` are the newest values of each trial, those that were computed later included.
    """

    row: StudyRow
    trials: tuple[Trial, ...]
    repeats: tuple[Repeat, ...]
    metrics: Mapping[int, tuple[MetricValue, ...]]
    entries: tuple[Entry, ...] = ()
    """All changes that make up its records, where they are asked for."""


def exported(
    row: StudyRow,
    store: Store,
    leaving: Leaving,
    ordinals: frozenset[int] | None = None,
    *,
    entries: bool = False,
) -> Exported:
    """All of a study, or these trials of it with their further launches."""

    def is_asked(ordinal: int) -> bool:
        return ordinals is None or ordinal in ordinals

    trials = tuple(trial for trial in store.history(row.id) if is_asked(trial.ordinal))
    later = store.metric_values(row.id)
    return Exported(
        row=row,
        trials=tuple(_lean_trial(trial, leaving) for trial in trials),
        repeats=tuple(
            _lean_repeat(repeat, leaving)
            for repeat in store.repeats(row.id)
            if is_asked(repeat.ordinal)
        ),
        metrics={trial.ordinal: later.get(trial.ordinal, _own(trial)) for trial in trials},
        entries=tuple(_entries(row.id, store, leaving)) if entries else (),
    )


def _entries(study_id: str, store: Store, leaving: Leaving) -> Iterator[Entry]:
    for entry in store.entries(study_id):
        yield with_study(_lean(entry, leaving), plain_study)


def _lean(entry: Entry, leaving: Leaving) -> Entry:
    match entry:
        case TrialFinished(trial=trial):
            return TrialFinished(trial=_lean_trial(trial, leaving))
        case TrialBegun() if leaving.all_but_metrics:
            return replace(entry, policy=_lean_policy(entry.policy), exchange=None, paid=None)
        case LaunchesRepeated(repeats=repeats):
            return LaunchesRepeated(repeats=tuple(_lean_repeat(r, leaving) for r in repeats))
        case _:
            return entry


def _lean_trial(trial: Trial, leaving: Leaving) -> Trial:
    outcome = _lean_outcome(trial.outcome, leaving)
    if not leaving.all_but_metrics:
        return replace(trial, outcome=outcome)
    return replace(trial, outcome=outcome, policy=_lean_policy(trial.policy), exchange=None)


def _lean_policy(policy: Policy) -> Policy:
    """Of the text only its digest stays, in a comment: so that policies differ as they did."""
    source = f"# This policy was left out. Its SHA-256 is {policy.digest}.\n"
    return replace(policy, source=source, parent=None, rationale="", prediction=None)


def _lean_repeat(repeat: Repeat, leaving: Leaving) -> Repeat:
    return replace(repeat, outcome=_lean_outcome(repeat.outcome, leaving))


def _lean_outcome(outcome: Outcome, leaving: Leaving) -> Outcome:
    if not (leaving.traces or leaving.all_but_metrics):
        return outcome
    kept = tuple(each for each in outcome.artifacts if not is_trace(each.name))
    contexts = tuple(
        InContext(name=one.name, outcome=_lean_outcome(one.outcome, leaving))
        for one in outcome.contexts
    )
    if leaving.all_but_metrics:
        return replace(outcome, artifacts=(), launched=None, contexts=contexts)
    return replace(outcome, artifacts=kept, contexts=contexts)


def is_trace(name: str) -> bool:
    """Whether a file of a trial is what a profiler wrote, by its name."""
    if name.endswith(("steps.json", "progress.jsonl", "job.json", "launch.json")):
        return False
    return name.endswith((".json", ".json.gz", ".json.zst", ".sqlite", ".nsys-rep", ".pb"))


def _own(trial: Trial) -> tuple[MetricValue, ...]:
    return trial.outcome.metrics if isinstance(trial.outcome, Measured) else ()
