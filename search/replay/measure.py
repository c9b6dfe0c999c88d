"""Launch recorded trials again, as a new study, until their claims are decided.

Every launch is recorded immediately and the source is only read: a killed replay can be resumed.
"""

from dataclasses import dataclass, replace

from evaluator.timing.decision import DecisionRule
from records.codec import utc_now
from records.store.rows import PendingTrial
from records.store.store import Store
from records.study import MEASURE, Study
from records.trial import History, Measured, Purpose, Trial
from search.compose import Backend
from search.loop.leader import MOST_RUN_AGAIN, claim_rule
from search.loop.ports import Observer
from search.loop.races import RepeatRunner
from search.loop.trial import Phases
from search.replay.claims import Decision, Holds, RepeatedLaunches, Source, judge_claims
from search.study.spaces import PreparedStudy

LEAST_ROUNDS, MOST_ROUNDS = 3, 12


def measuring_study(source: Study, source_id: str, count: int, rounds: int | None) -> Study:
    """Return the study that repeats `count` trials, in at most `rounds` rounds each."""
    most = rounds or max(MOST_ROUNDS, source.measure.max_confirm_rounds)
    measure = replace(
        source.measure,
        # Trials that are slower here than recorded are measured in full.
        race_ratio=1.0,
        confirm_rounds=min(most, max(LEAST_ROUNDS, source.measure.confirm_rounds)),
        max_confirm_rounds=most,
    )
    each = 1 + measure.infrastructure_retries + 2 * (most + MOST_RUN_AGAIN)
    budget = replace(source.budget, trials=count, launches=count * each, max_wall_s=None)
    return replace(
        source, strategy=MEASURE, replay_of=source_id, parallel=1, measure=measure, budget=budget
    )


def begin(study_id: str, trials: tuple[Trial, ...], store: Store) -> None:
    """Record which trials are to be launched again, before any of them is."""
    for trial in trials:
        intent = PendingTrial(
            ordinal=trial.ordinal, policy=trial.policy, started_at=utc_now(), exchange=None
        )
        store.begin(study_id, intent, None)


def measuring(
    study_id: str,
    prepared: PreparedStudy,
    source: Source,
    store: Store,
    backend: Backend,
    observer: Observer,
    *,
    within: float,
) -> "Measuring":
    """Return a recorded replay, ready to run with this backend."""
    trial_runner = backend.runner(
        study_id, replace(prepared, scoring=source.scoring), store, observer
    )
    runner = RepeatRunner(trial_runner, prepared.study, source.scoring)
    return Measuring(source=source, runner=runner, phases=backend.capacity.phases, within=within)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """A replay under way; everything it knows is in the store, so any run can continue it.

    `within` is the share by which a value may be worse than recorded.
    """

    source: Source
    runner: RepeatRunner
    phases: Phases
    within: float

    def run(self) -> tuple[Decision, ...]:
        """Launch until every claim is decided, or all rounds were run; the best and seed first."""
        store, study_id = self.runner.trial_runner.store, self.runner.trial_runner.study_id
        with store.lock(study_id):
            self.runner.trial_runner.clear()
            store.start_run(study_id, self.runner.study)
            chosen = {each.ordinal for each in (*self.runner.history, *self._begun)}
            trials = [t for t in self.source.chosen("all") if t.ordinal in chosen]
            try:
                decisions = tuple(map(self._decision, trials))
            except BaseException:
                store.update(study_id, status="interrupted")
                raise
            store.update(study_id, status="finished")
        return decisions

    def _decision(self, trial: Trial) -> Decision:
        again = self.runner.history.find(trial.ordinal) or self._launch(trial)
        entrants = self._entrants(trial, again)
        decision = self._judged(trial, again)
        for count in range(1, self._rule.max_rounds + 1 if entrants else 1):
            if decision.holds is not Holds.UNDECIDED:
                break
            fits = self.runner.run_until(count, Purpose.CONFIRM, trial.ordinal + 1, entrants)
            decision = self._judged(trial, again)
            if not fits:
                break
        return decision

    def _judged(self, trial: Trial, again: Trial) -> Decision:
        repeats = self.runner.repeats(Purpose.CONFIRM, trial.ordinal + 1)
        launched = RepeatedLaunches(trial=trial, again=again, repeats=repeats)
        return Decision(
            trial=trial,
            again=again.outcome,
            claims=judge_claims(self.source, launched, self._rule, self.within),
            launch_count=again.attempts + len(repeats),
        )

    def _entrants(self, trial: Trial, again: Trial) -> tuple[Trial, ...]:
        """Return the trials to launch in rounds: this one, and the seed if this one led."""
        if not isinstance(trial.outcome, Measured) or not isinstance(again.outcome, Measured):
            return ()
        seed = self.source.seed if self.source.lead(trial) is not None else None
        return (again,) if seed is None else (seed, again)

    def _launch(self, trial: Trial) -> Trial:
        """Launch what the record says, or ask the policy again where it came to no launch."""
        runner, source = self.runner.trial_runner, self.source
        observer = runner.observer
        intent = next(each for each in self._begun if each.ordinal == trial.ordinal)
        observer.trial_started(trial.ordinal, trial.policy)
        answer = trial.config or runner.decide(intent, History())
        if isinstance(answer, Trial):
            ended = answer
        else:
            observer.config_decided(trial.ordinal, answer)
            # What a measured one is checked against is its own record: the same work and losses.
            measured = isinstance(trial.outcome, Measured)
            reference = History((trial,) if measured else source.history.measured[:1])
            with self.phases.listen_with(lambda name: observer.phase(name, trial.ordinal)):
                ended = runner.run(intent, answer, reference)
        # As the seed counts who was measured first here.
        ended = source.scoring.over(self.runner.history.append(ended)).scored(ended)
        runner.store.finish(runner.study_id, ended)
        observer.trial_finished(ended, self.runner.history)
        return ended

    @property
    def _begun(self) -> tuple[PendingTrial, ...]:
        return self.runner.trial_runner.store.pending(self.runner.trial_runner.study_id)

    @property
    def _rule(self) -> DecisionRule:
        return claim_rule(self.runner.study.measure)
