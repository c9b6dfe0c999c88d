"""The search loop: propose, record as pending, run, record the result, until a limit is reached."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from evaluator.launchers.cluster.nodes import slow_node_words, topology_words
from evaluator.ports import PhaseListener
from records.codec import to_json
from records.machine import NodeRecord
from records.study import Study
from records.trial import History, Policy
from search.loop.batch import Batch, Capacity
from search.loop.budget import (
    HeldNodes,
    TimeLimit,
    check_first_trial,
    counts_nodes,
    exhausted_reason,
    launches_used,
    parallel_limit,
    script_fault,
    stop_reason,
)
from search.loop.ports import Proposal, Proposer
from search.loop.races import LEAST_ENTRANTS, ConfirmationPlan, RepeatRunner, in_contexts
from search.loop.running import check_allocation
from search.loop.study_result import StudyResult, find
from search.loop.trial import HasTime, TrialRunner


def never(study: Study, history: History) -> str | None:  # noqa: ARG001 - as a strategy is asked
    """Return no reason to stop."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A running study; its whole state is in the store, so any process can resume it."""

    trial_runner: TrialRunner
    seed: Policy
    proposer: Proposer
    no_gain: Callable[[Study, History], str | None] = never
    """Why no further launch is worth it; None where one may be."""
    clock: Callable[[], float] = time.monotonic
    capacity: Capacity = field(default_factory=Capacity)
    held: HeldNodes | None = None
    """Nodes that a scheduler gave; None for this machine, which is held throughout the run."""
    nodes: Callable[[PhaseListener], tuple[NodeRecord, ...]] = lambda _on_phase: ()
    """Waits for the nodes of a cluster and tests them; returns none for this machine."""
    job_id: str | None = None
    """The scheduler's job that this process runs in, if any."""
    has_time: HasTime | None = None
    """Whether launches may be repeated; a replay answers as its record shows."""
    out_of_time: Callable[[], str | None] | None = None
    """Why the recorded search that is replayed had no more time here, if that was so."""

    def run(self) -> StudyResult:
        """Run to the end of the budget; an interrupted study can be resumed."""
        limit, runner = self._time_limit(), self.trial_runner
        store, study_id = runner.store, runner.study_id
        with store.lock(study_id):
            runner.clear()
            try:
                nodes = self.nodes(lambda phase: runner.observer.notice(f"nodes: {phase}"))
                search = self._placed(nodes, limit)
                store.start_run(study_id, search.trial_runner.study, nodes, self.job_id)
                try:
                    finding = search._finding(limit)
                finally:
                    self._record_nodes(limit)
            except BaseException:
                store.update(study_id, status="interrupted")
                raise
            store.update(study_id, status="finished", summary=to_json(finding))
        return finding

    def _placed(self, nodes: Sequence[NodeRecord], limit: TimeLimit) -> "Search":
        """Return the search with what is known of its nodes, which launches within the limit."""
        runner = self.trial_runner
        study = runner.study
        for words in slow_node_words(nodes):
            runner.observer.notice(words)
        topology = study.environment.topology or topology_words(nodes)
        study = replace(study, environment=replace(study.environment, topology=topology))
        prepared = replace(runner.prepared, study=study)
        has_time = self.has_time or (lambda _purpose, _series, seconds: limit.has_time(seconds))
        own = replace(runner, prepared=prepared, left_s=limit.left_s, has_time=has_time)
        return replace(self, trial_runner=own)

    def _finding(self, limit: TimeLimit) -> StudyResult:
        """Search, conclude, and return what was found."""
        runner, study = self.trial_runner, self.trial_runner.study
        recorded = self._plan.runner
        left_s = None if self.held is None else self.held.left_s()
        check_allocation(left_s, study, recorded.history, recorded.recorded)
        reason = self._search(limit)
        launches = self._plan.conclude(has_time=lambda: self._has_time(limit))
        held_out = self._plan.hold_out()
        leader = self._plan.leader()
        scoring = runner.prepared.scoring.over(leader.history)
        finding = find(leader, launches, scoring, study.measure, reason)
        if finding.winner is None:
            return finding
        each = in_contexts(study, launches, held_out, finding.winner, scoring)
        return replace(finding, contexts=each)

    def _time_limit(self) -> TimeLimit:
        runner, study, started_s = self._plan.runner, self.trial_runner.study, self.clock()
        this_machine = HeldNodes(
            node_count=study.environment.node_count, held_s=lambda: self.clock() - started_s
        )
        return TimeLimit(
            budget=study.budget,
            held=self.held or this_machine,
            clock=self.clock,
            started_s=started_s,
            launched_before=launches_used(runner.history, runner.recorded),
            node_s_before=self.trial_runner.store.node_s(self.trial_runner.study_id) or 0.0,
        )

    def _record_nodes(self, limit: TimeLimit) -> None:
        """Record and show how long nodes were held, where the study counts it."""
        runner = self.trial_runner
        if counts_nodes(runner.study):
            runner.store.hold_nodes(runner.study_id, limit.node_s)
            runner.observer.nodes_held(limit.node_s_before + limit.node_s)

    def _has_time(self, limit: TimeLimit) -> bool:
        """Whether another round of the final would end in time."""
        self._record_nodes(limit)
        if self.has_time is not None:
            return True
        runner = self._plan.runner
        used = launches_used(runner.history, runner.recorded)
        return limit.out_of_time(used, LEAST_ENTRANTS) is None

    def _search(self, limit: TimeLimit) -> str:
        """Propose and measure until a limit is reached; return the reason."""
        study = self.trial_runner.study
        self._run_pending()
        settled = self._plan.settled_count
        while True:
            plan = self._plan
            history = plan.settle(settled).history
            settled, used = len(history), launches_used(history, plan.runner.recorded)
            self._record_nodes(limit)
            late = self.out_of_time or partial(limit.out_of_time, used, 1 + plan.closing_count)
            reason = (
                script_fault(study, history)
                or stop_reason(study.budget, history, used, late())
                or self.no_gain(study, history)
            )
            if reason is not None:
                check_first_trial(history, limit.out_of_time)
                return reason
            batch = Batch(self.trial_runner, history, self.capacity)
            most = parallel_limit(study, history, used)
            if not self._fill(batch, most, out_of_time=lambda: limit.out_of_time() is not None):
                return exhausted_reason(study)
            batch.run()

    def _run_pending(self) -> None:
        """Run the trials that an earlier process left pending."""
        left_pending = self.trial_runner.store.pending(self.trial_runner.study_id)
        if left_pending:
            batch = Batch(self.trial_runner, self._plan.leader().history, self.capacity)
            for pending in left_pending:
                batch.add(pending)
            batch.run()

    def _fill(self, batch: Batch, most: int, out_of_time: Callable[[], bool]) -> int:
        """Add up to `most` trials while the batch has capacity; return how many."""
        count = 0
        while count < most and batch.has_room and not (count and out_of_time()):
            proposal = self._propose(batch.history)
            if proposal is None:
                break
            begun = len(batch.history) + len(batch.history.pending)
            batch.add(self.trial_runner.begin(begun, proposal.policy, proposal.exchange))
            count += 1
        return count

    def _propose(self, history: History) -> Proposal | None:
        if not history:
            return Proposal(policy=self.seed)
        return self.proposer.propose(self.trial_runner.study, history)

    @property
    def _plan(self) -> ConfirmationPlan:
        runner = self.trial_runner
        scoring = runner.prepared.scoring.over(runner.store.history(runner.study_id))
        return ConfirmationPlan(RepeatRunner(runner, runner.study, scoring))
