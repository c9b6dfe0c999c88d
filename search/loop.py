"""The search: propose, record the intent, run the trial, record the result, until told to stop."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from evaluator.objective import Scoring
from records.codec import to_json
from records.rows import Intent
from records.store import Store, now
from records.study import Study
from records.trial import History, Policy
from search.budget import launches_used, stop_reason
from search.contest import Contest
from search.finding import Finding, find
from search.ports import Observer, Proposal, Proposer
from search.referee import Referee
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
                reason = self._search()
                launches = self._referee.conclude()
            except BaseException:
                self.store.update(self.study_id, status="interrupted")
                raise
            led = self._referee.standing()
            finding = find(led, launches, self.scoring, self.study.measure, reason)
            self.store.update(self.study_id, status="finished", summary=to_json(finding))
        return finding

    def _search(self) -> str:
        """Propose and try until something says stop, and give what it was."""
        started = self.clock()
        while True:
            history = self._referee.settle().history
            intent = self.store.pending(self.study_id)
            if intent is None:
                used = launches_used(history, self.store.repeats(self.study_id))
                reason = stop_reason(self.study.budget, history, used, self.clock() - started)
                if reason is not None:
                    return reason
                proposal = self._propose(history)
                if proposal is None:
                    return "every feasible configuration was tried"
                intent = self._begin(len(history), proposal)
            self.observer.trial_started(intent.ordinal, intent.policy)
            trial = self.turn.run(intent, history)
            self.store.finish(self.study_id, trial)
            self.observer.trial_finished(trial, history.append(trial))

    def _propose(self, history: History) -> Proposal | None:
        if not history:
            return Proposal(policy=self.seed)
        return self.proposer.propose(self.study, history)

    def _begin(self, ordinal: int, proposal: Proposal) -> Intent:
        intent = Intent(ordinal=ordinal, policy=proposal.policy, started_at=now(), exchange=None)
        return self.store.begin(self.study_id, intent, proposal.exchange)

    @property
    def _referee(self) -> Referee:
        return Referee(
            study_id=self.study_id,
            measure=self.study.measure,
            scoring=self.scoring,
            store=self.store,
            contest=Contest(
                study_id=self.study_id,
                study=self.study,
                scoring=self.scoring,
                store=self.store,
                turn=self.turn,
                observer=self.observer,
            ),
            observer=self.observer,
        )
