"""The search loop: propose, record as pending, run, record the result, until a limit is reached."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from evaluator.objective import Scoring
from records.codec import to_json, utc_now
from records.store.rows import PendingTrial
from records.store.store import Store
from records.study import Study
from records.trial import History, Policy
from search.loop.batch import Batch, Capacity
from search.loop.budget import exhausted_reason, launches_used, parallel_limit, stop_reason
from search.loop.finding import Finding, find
from search.loop.ports import Observer, Proposal, Proposer
from search.loop.races import ConfirmationPlan, RepeatRunner, in_contexts
from search.loop.trial import TrialRunner


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A running study; its whole state is in the store, so any process can resume it."""

    study_id: str
    study: Study
    seed: Policy
    proposer: Proposer
    scoring: Scoring
    store: Store
    trial_runner: TrialRunner
    observer: Observer
    clock: Callable[[], float] = time.monotonic
    capacity: Capacity = field(default_factory=Capacity)

    def run(self) -> Finding:
        """Run to the end of the budget; an interrupted study can be resumed."""
        with self.store.lock(self.study_id):
            self.trial_runner.clear()
            self.store.start_run(self.study_id, self.study)
            try:
                reason = self._search()
                launches = self._plan.conclude()
                held_out = self._plan.hold_out()
            except BaseException:
                self.store.update(self.study_id, status="interrupted")
                raise
            leader = self._plan.leader()
            scoring = self.scoring.over(leader.history)
            finding = find(leader, launches, scoring, self.study.measure, reason)
            if finding.winner is not None:
                each = in_contexts(self.study, launches, held_out, finding.winner, scoring)
                finding = replace(finding, contexts=each)
            self.store.update(self.study_id, status="finished", summary=to_json(finding))
        return finding

    def _search(self) -> str:
        """Propose and measure until a limit is reached; return the reason."""
        started = self.clock()
        self._run_pending()
        settled = self._plan.settled_count
        while True:
            history = self._plan.settle(settled).history
            settled, used = len(history), launches_used(history, self.store.repeats(self.study_id))
            reason = stop_reason(self.study.budget, history, used, self.clock() - started)
            if reason is not None:
                return reason
            batch = self._batch(history)
            most = parallel_limit(self.study, history, used)
            if not self._fill(batch, most, out_of_time=lambda: self._late(started)):
                return exhausted_reason(self.study)
            batch.run()

    def _run_pending(self) -> None:
        """Run the trials that an earlier process left pending."""
        intents = self.store.pending(self.study_id)
        if intents:
            batch = self._batch(self._plan.leader().history)
            for intent in intents:
                batch.add(intent)
            batch.run()

    def _fill(self, batch: Batch, most: int, out_of_time: Callable[[], bool]) -> int:
        """Add up to `most` trials while the batch has capacity; return how many."""
        count = 0
        while count < most and batch.has_room and not (count and out_of_time()):
            proposal = self._propose(batch.history)
            if proposal is None:
                break
            history = batch.history
            batch.add(self._begin(len(history) + len(history.pending), proposal))
            count += 1
        return count

    def _late(self, started: float) -> bool:
        limit_s = self.study.budget.max_wall_s
        return limit_s is not None and self.clock() - started >= limit_s

    def _batch(self, history: History) -> Batch:
        return Batch(
            study_id=self.study_id,
            history=history,
            capacity=self.capacity,
            trial_runner=self.trial_runner,
            store=self.store,
            observer=self.observer,
        )

    def _propose(self, history: History) -> Proposal | None:
        if not history:
            return Proposal(policy=self.seed)
        return self.proposer.propose(self.study, history)

    def _begin(self, ordinal: int, proposal: Proposal) -> PendingTrial:
        intent = PendingTrial(
            ordinal=ordinal, policy=proposal.policy, started_at=utc_now(), exchange=None
        )
        return self.store.begin(self.study_id, intent, proposal.exchange)

    @property
    def _plan(self) -> ConfirmationPlan:
        scoring = self.scoring.over(self.store.history(self.study_id))
        return ConfirmationPlan(
            study_id=self.study_id,
            measure=self.study.measure,
            scoring=scoring,
            store=self.store,
            runner=RepeatRunner(
                study_id=self.study_id,
                study=self.study,
                scoring=scoring,
                store=self.store,
                trial_runner=self.trial_runner,
                observer=self.observer,
            ),
            observer=self.observer,
        )
