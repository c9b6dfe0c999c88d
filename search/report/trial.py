"""One trial with everything that its document shows, read from the store."""

from collections.abc import Iterator

from records.store.rows import StudyRow
from records.store.store import Store
from records.trial import History, Trial
from search.loop.leader import study_leader
from search.loop.study_result import StudyResult, final_result
from search.report.explored import are_too_many, repeat_spreads, repeats_of, spread_of_trial
from search.storage import absence
from search.views.machine import disturbed_among, machine_of
from search.views.study import race_words, results_in_contexts
from search.views.trial import Line, TrialRecord

MOST_SIBLINGS = 100


def trial_record(row: StudyRow, trial: Trial, best: Trial | None, store: Store) -> TrialRecord:
    """Read what the document of a trial shows; `best` is the trial that leads."""
    ordinal, artifacts = trial.ordinal, trial.outcome.artifacts
    again = [each.outcome for each in repeats_of(row, store) if each.ordinal == ordinal]
    outcomes = [trial.outcome, *(one.outcome for one in trial.outcome.contexts)]
    launches = [one.launched for one in outcomes if one.launched is not None]
    both = (store.trial(row.id, 0), store.first_measured(row.id))
    beginning = {each.ordinal: each for each in both if each is not None}
    return TrialRecord(
        study_id=row.id,
        study=row.study,
        trial=trial,
        reached=spread_of_trial(trial, repeat_spreads(row, store)),
        best=best,
        parent=_parent(row, trial, store),
        decisions=tuple(_decision_lines(row, trial, store)),
        disturbed=disturbed_among([trial.outcome, *again]),
        contexts=results_in_contexts(trial, History(tuple(beginning.values())), row.study)
        if trial.outcome.contexts
        else (),
        metrics=store.metric_values(row.id, ordinal).get(ordinal, ()),
        computed=store.computed_metrics(row.id, ordinal).get(ordinal, ()),
        machines={one.machine: machine_of(one, store) for one in launches if one.machine},
        places={
            each.name: absence(row.id, each.digest, store) or str(store.artifacts.path(each.digest))
            for each in artifacts
        },
    )


def _parent(row: StudyRow, trial: Trial, store: Store) -> Trial | None:
    """Return the trial before this one that had the parent of its policy."""
    parent = trial.policy.parent
    if parent is None:
        return None
    tried = store.policy_results(row.id, [parent], MOST_SIBLINGS).get(parent, ())
    before = [result.ordinal for result in tried if result.ordinal < trial.ordinal]
    return store.trial(row.id, before[-1]) if before else None


def _decision_lines(row: StudyRow, trial: Trial, store: Store) -> Iterator[Line]:
    """Yield what its repeats showed, and what was decided."""
    finding = final_result(row)
    if are_too_many(row, store):
        words = f"too many in this study to be shown here; see `cclsearch show {row.id}`"
        yield "repeats", words
    elif store.counts(row.id).repeats:
        for race in study_leader(row, store).races if finding is None else finding.races:
            if trial.ordinal in (race.challenger, race.incumbent):
                yield "compared", race_words(race)
    if finding is not None:
        yield from _verdict_lines(finding, trial)


def _verdict_lines(finding: StudyResult, trial: Trial) -> Iterator[Line]:
    if finding.winner == trial.ordinal:
        yield "verdict", "the best of the study"
    elif trial.ordinal in finding.ties:
        yield "verdict", f"not distinguishable from the best, trial {finding.winner}"
    elif finding.winner is not None:
        yield "verdict", f"trial {finding.winner} is the best of the study"
    if trial.ordinal in finding.unreliable:
        yield "unreliable", "it failed by itself when its launch was repeated to confirm it"
    if any(member.ordinal == trial.ordinal for member in finding.front):
        yield "front", "no other trial beats it in all objectives"
