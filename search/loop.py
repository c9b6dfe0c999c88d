"""The search: propose, record the intent, run the trial, record the result, until told to stop."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from evaluator.evaluate import evidence
from evaluator.metrics.registry import measure_all
from evaluator.objective import Scoring
from records.codec import to_json
from records.rows import Intent
from records.store import Store, now
from records.study import Study
from records.trial import Confirmation, History, Measured, Policy, Score
from search.budget import stop_reason
from search.confirm import launch_order, untraced
from search.finding import Finding, find, remeasured_costs
from search.ports import Observer, Proposal, Proposer
from search.trial import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """One study under way; everything it knows is in the store, so any run can continue it."""

    study_id: str
    study: Study
    seed: Policy
    proposer: Proposer
    scoring: Scoring
    store: Store
    turn: Turn
    observer: Observer
    clock: Callable[[], float] = time.monotonic

    def run(self) -> Finding:
        """Run to the end of the budget; an interruption leaves the study ready to resume."""
        with self.store.lock(self.study_id):
            self.store.update(self.study_id, status="running")
            try:
                history, reason = self._search()
                confirmations = self._confirm(history)
            except BaseException:
                self.store.update(self.study_id, status="interrupted")
                raise
            finding = find(history, confirmations, self.scoring, reason)
            self.store.update(self.study_id, status="finished", summary=to_json(finding))
        return finding

    def _search(self) -> tuple[History, str]:
        started = self.clock()
        history = self.store.history(self.study_id)
        while True:
            intent = self.store.pending(self.study_id)
            if intent is None:
                reason = stop_reason(self.study.budget, history, self.clock() - started)
                if reason is not None:
                    return history, reason
                proposal = self._propose(history)
                if proposal is None:
                    return history, "every feasible configuration was tried"
                intent = self._begin(len(history), proposal)
            self.observer.trial_started(intent.ordinal, intent.policy)
            trial = self.turn.run(intent, history)
            self.store.finish(self.study_id, trial)
            history = history.append(trial)
            self.observer.trial_finished(trial, history)

    def _propose(self, history: History) -> Proposal | None:
        if not history:
            return Proposal(policy=self.seed)
        return self.proposer.propose(self.study, history)

    def _begin(self, ordinal: int, proposal: Proposal) -> Intent:
        intent = Intent(ordinal=ordinal, policy=proposal.policy, started_at=now(), exchange=None)
        return self.store.begin(self.study_id, intent, proposal.exchange)

    def _confirm(self, history: History) -> tuple[Confirmation, ...]:
        """Re-measure the finalists, skipping launches that are on record from before a kill."""
        series = len(history)
        stored = self.store.confirmations(self.study_id)
        done = {(c.round, c.ordinal): c for c in stored if c.series == series}
        earlier = [c for c in stored if c.series != series]
        order = launch_order(self.study, history, remeasured_costs(earlier, self.scoring))
        study = untraced(self.study) if self._needs_no_trace(history) else self.study
        for number, trial in order:
            if (number, trial.ordinal) in done or trial.config is None:
                continue
            outcome = self.turn.launch_once(study, trial.config)
            confirmation = Confirmation(
                series=series, round=number, ordinal=trial.ordinal, outcome=outcome
            )
            self.store.confirm(self.study_id, confirmation)
            done[number, trial.ordinal] = confirmation
            self.observer.confirmation_finished(confirmation, len(order))
        return tuple(done.values())

    def _needs_no_trace(self, history: History) -> bool:
        """Whether timing samples alone answer the objective."""
        best = history.best
        if best is None or not isinstance(best.outcome, Measured):
            return False
        if best.outcome.measurement.profiled:
            return False
        seen = evidence(self.study, best.outcome.measurement, traces=None)
        return isinstance(self.scoring.score(measure_all(seen).values), Score)
