"""Launch recorded trials again, as a new study, until their claims are decided.

Every launch is recorded immediately and the source is only read: a killed replay can be resumed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import geometric_mean

from evaluator.objective import Scoring, scoring_of
from evaluator.timing.decision import (
    Comparison,
    DecisionRule,
    UnpairedComparison,
    Verdict,
    compare_unpaired,
    decide,
)
from records.codec import utc_now
from records.errors import StudyError
from records.store.rows import PendingTrial, StudyRow
from records.store.store import Store
from records.study import MEASURE, Study
from records.trial import (
    Failed,
    FailureKind,
    History,
    Measured,
    Outcome,
    Purpose,
    Repeat,
    Score,
    Trial,
)
from search.compose import Backend
from search.loop.leader import (
    MOST_RUN_AGAIN,
    claim_rule,
    counted,
    launch_of,
    rounds_between,
    took_turns,
)
from search.loop.ports import Observer
from search.loop.races import RepeatRunner
from search.loop.study_result import StudyResult, final_result, leader_of, trials_named
from search.loop.trial import Phases, other_work_anywhere
from search.study.spaces import PreparedStudy
from search.views.format import REASONS, comparison_words, format_count, format_number, one_line

SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A recorded study with its trials and the launches that count."""

    row: StudyRow
    history: History
    repeats: tuple[Repeat, ...]
    best: Trial | None

    @property
    def scoring(self) -> Scoring:
        """Its objective, with the recorded seed as the seed."""
        return scoring_of(self.row.study).over(self.history)

    @property
    def finding(self) -> StudyResult | None:
        """What the study announced; None where it did not end."""
        return final_result(self.row)

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
        """Return the trials of `trials_named` with a result; of `all`, best and seed first.

        Raises `StudyError` if no trial has one.
        """
        named = trials_named(which, self.history, self.best, self.row.id)
        found = [trial for trial in named if _has_result(trial)]
        if not found:
            raise StudyError(
                f"trial {named[0].ordinal} claims nothing: {named[0].outcome}; see "
                f"`cclsearch show {self.row.id}`"
            )
        first = (self.best, self.seed) if which == "all" else ()
        return tuple({trial.ordinal: trial for trial in (*first, *found) if trial}.values())


def require_search(row: StudyRow) -> None:
    """Raise `StudyError` where the record does not say how the study was searched."""
    if row.strategy == MEASURE:
        raise StudyError(
            f"study {row.id} is a replay, not a search; "
            f"replay {row.study.replay_of}, or resume it with --mode measure"
        )
    if row.study.searched_elsewhere:
        raise StudyError(
            f"study {row.id} was imported, and its record does not say how it was searched; "
            "use --mode policy or --mode score"
        )


def source_of(row: StudyRow, store: Store) -> Source:
    """Read a study that can be launched again; raises `StudyError` where it cannot be."""
    if row.study.searched_elsewhere:
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
    if not isinstance(outcome, Failed):
        return True
    return outcome.kind is not FailureKind.DUPLICATE and not outcome.kind.is_infrastructure


class Holds(StrEnum):
    """Whether a claim, or a whole result, holds here."""

    CONFIRMED = "confirmed"
    NOT_CONFIRMED = "not confirmed"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim with its verdict; `why` gives the numbers, `decides` what would settle it.

    `ratio` is here over then, or the candidate over the seed, lower is better, with its interval;
    None where nothing could be compared.
    """

    name: str
    holds: Holds
    why: str
    decides: str | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The outcome of one recorded trial; `again` is how its first launch here ended."""

    trial: Trial
    again: Outcome
    claims: tuple[Claim, ...]
    launch_count: int

    @property
    def holds(self) -> Holds:
        """Confirmed where every claim holds, not confirmed where one surely does not."""
        return all_hold(claim.holds for claim in self.claims)


def all_hold(each: Iterable[Holds]) -> Holds:
    """Confirmed where all are, not confirmed where one is not; nothing decides nothing."""
    found = set(each)
    if Holds.NOT_CONFIRMED in found:
        return Holds.NOT_CONFIRMED
    return Holds.CONFIRMED if found == {Holds.CONFIRMED} else Holds.UNDECIDED


CAUSE_CHARS = 300
LEAST_ALIKE = 3
MORE_ROUNDS = "more rounds (--rounds), or a quieter machine"
LAUNCH_AGAIN = "another launch; this one failed by its surroundings"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedLaunches:
    """All repeated launches of one trial, and of the seed next to it."""

    trial: Trial
    """As it is recorded."""
    again: Trial
    """The first launch here."""
    repeats: tuple[Repeat, ...]

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """How every launch of the trial ended here."""
        return (self.again.outcome, *self.of(self.trial.ordinal))

    def of(self, ordinal: int) -> tuple[Outcome, ...]:
        """How the launches of one side ended in the rounds."""
        return tuple(r.outcome for r in self.repeats if r.ordinal == ordinal)


def judge_claims(
    source: Source, launched: RepeatedLaunches, rule: DecisionRule, within: float
) -> tuple[Claim, ...]:
    """Judge every claim that was made of a trial by what was launched here so far.

    `rule` is how the lead is decided; a value may be worse than recorded by the share `within`.
    """
    recorded = launched.trial.outcome
    if isinstance(recorded, Failed):
        return (_failure(recorded, launched.again.outcome),)
    broken = _broken(launched.outcomes)
    if broken is not None:
        return (broken,)
    claims = [_work(source, recorded, launched), _value(source, launched, rule, within)]
    lead = source.lead(launched.trial)
    if lead is not None:
        claims.append(_lead(source, launched, lead, rule, within))
    return tuple(claims)


def _failure(recorded: Failed, again: Outcome) -> Claim:
    """Whether what failed fails again, in the same way."""
    then, here = (one_line(str(each), CAUSE_CHARS) for each in (recorded, again))
    holds, decides = Holds.NOT_CONFIRMED, None
    if isinstance(again, Measured):
        why = f"it was measured here, but recorded as failed with {then}"
    elif again.kind.is_infrastructure:
        holds, why, decides = Holds.UNDECIDED, here, LAUNCH_AGAIN
    elif again.kind is not recorded.kind:
        why = f"it fails here with {here}; recorded with {then}"
    else:
        holds, why = Holds.CONFIRMED, f"it fails again with {here}"
    return Claim(name="failure", holds=holds, why=why, decides=decides)


def _broken(outcomes: Sequence[Outcome]) -> Claim | None:
    """That a launch failed here although the trial was measured before; None if none did."""
    failed = [outcome for outcome in outcomes if isinstance(outcome, Failed)]
    own = [outcome for outcome in failed if not outcome.kind.is_infrastructure]
    if own:
        count = f"{len(own)} of {len(outcomes)} launches failed here"
        why = f"{count}: {one_line(str(own[0]), CAUSE_CHARS)}"
        return Claim(name="launch", holds=Holds.NOT_CONFIRMED, why=why)
    if len(failed) == len(outcomes):
        why = one_line(str(failed[0]), CAUSE_CHARS)
        return Claim(name="launch", holds=Holds.UNDECIDED, why=why, decides=LAUNCH_AGAIN)
    return None


def _work(source: Source, recorded: Measured, launched: RepeatedLaunches) -> Claim:
    """Whether every launch did the work of the record: tokens of a step, and losses."""
    expected = recorded.measurement.tokens_per_step
    here = [outcome for outcome in launched.outcomes if isinstance(outcome, Measured)]
    for outcome in here:
        tokens = outcome.measurement.tokens_per_step
        other = other_work_anywhere(outcome, recorded, source.row.study)
        if tokens != expected or other is not None:
            why = f"a step processed {tokens} tokens here, {expected} in the record"
            if tokens == expected and other is not None:
                why = one_line(other.message, CAUSE_CHARS)
            return Claim(name="work", holds=Holds.NOT_CONFIRMED, why=why)
    count = len(recorded.measurement.losses)
    losses = f", the {count} recorded losses" if count else ", and no recorded losses"
    why = f"{expected} tokens a step{losses}"
    return Claim(name="work", holds=Holds.CONFIRMED, why=why)


def _value(source: Source, launched: RepeatedLaunches, rule: DecisionRule, within: float) -> Claim:
    """Whether the recorded value of the objective is reached here, except for a share of it.

    As for a lead, the careful end of the recorded interval counts: the value of one lucky launch
    was not shown.
    """
    ordinal, scoring = launched.trial.ordinal, _scoring_here(source, launched)
    own = [r.outcome for r in source.repeats if r.ordinal == ordinal]
    then, now = _alike([launched.trial.outcome, *own], launched.outcomes)
    found = compare_unpaired(
        _burdens(now, scoring),
        _burdens(then, source.scoring),
        rule,
        _equal_launches(source, ordinal),
    )
    holds, why = _reached(found, within, rule.alpha)
    values = (
        f"{source.row.study.objective.expression} {_centre(now, scoring)} in "
        f"{format_count(len(now), 'launch', 'launches')} here, {_centre(then, source.scoring)} in "
        f"{format_count(len(then), 'recorded launch', 'recorded launches')}"
    )
    return _claim("value", holds, f"{values}: {why}", found)


def _claim(name: str, holds: Holds, why: str, found: Comparison | UnpairedComparison) -> Claim:
    return Claim(
        name=name,
        holds=holds,
        why=why,
        decides=MORE_ROUNDS if holds is Holds.UNDECIDED else None,
        ratio=found.ratio,
        ratio_low=found.ratio_low,
        ratio_high=found.ratio_high,
    )


def _reached(found: UnpairedComparison, within: float, alpha: float) -> tuple[Holds, str]:
    """Whether what is needed here is at most so much more than the record is sure of."""
    if found.ratio is None:
        return Holds.UNDECIDED, REASONS.get(found.reason, found.reason)
    low, high, record_high = found.ratio_low, found.ratio_high, found.recorded_high
    if low is None or high is None or record_high is None:
        return Holds.UNDECIDED, f"{_change(found.ratio)}, from too few launches"
    limit, sure = record_high * (1 + within), f"{100 * (1 - alpha):g} %"
    why = (
        f"{_change(found.ratio)} ({sure} interval {_change(low)} to {_change(high)}); at most "
        f"{_change(limit)} was to be shown: the record is sure to {100 * (record_high - 1):.1f} %, "
        f"and {100 * within:g} % are for the time between"
    )
    if high <= limit:
        return Holds.CONFIRMED, why
    return (Holds.NOT_CONFIRMED if low > limit else Holds.UNDECIDED), why


def _lead(
    source: Source,
    launched: RepeatedLaunches,
    announced: Comparison,
    rule: DecisionRule,
    within: float,
) -> Claim:
    """Whether the trial leads over the seed here, by as much as was announced but for a share."""
    scoring = _scoring_here(source, launched)
    rounds = rounds_between(launched.repeats, launched.trial.ordinal, SEED, scoring)
    found = decide(rounds, rule)
    limit = min((announced.ratio_high or announced.ratio or 1.0) * (1 + within), 1.0)
    holds, remark = _leads(found, limit)
    why = f"{comparison_words(found)}; announced was {comparison_words(announced)}{remark}"
    failed = [o for o in launched.of(SEED) if isinstance(o, Failed)]
    if failed and not rounds:
        why = f"trial {SEED} fails here: {one_line(str(failed[0]), CAUSE_CHARS)}"
    return _claim(f"lead over trial {SEED}", holds, why, found)


def _leads(found: Comparison, limit: float) -> tuple[Holds, str]:
    """Whether a lead was shown and is large enough, and what to add where it is not."""
    too_small = f", so at least {1 / limit:.2f}x was to be shown"
    if found.verdict in (Verdict.SLOW, Verdict.SAME):
        return Holds.NOT_CONFIRMED, ""
    if found.ratio_low is None or found.ratio_high is None:
        return Holds.UNDECIDED, ""
    if found.ratio_low > limit:
        return Holds.NOT_CONFIRMED, too_small
    if found.verdict is not Verdict.FAST:
        return Holds.UNDECIDED, ""
    return (Holds.CONFIRMED, "") if found.ratio_high <= limit else (Holds.UNDECIDED, too_small)


def _scoring_here(source: Source, launched: RepeatedLaunches) -> Scoring:
    """The objective with the seed as it was measured here, where it was."""
    seeds = [o for o in launched.of(SEED) if isinstance(o, Measured)]
    return source.scoring.against(seeds) if seeds else source.scoring


def _alike(
    then: Iterable[Outcome], now: Iterable[Outcome]
) -> tuple[Sequence[Measured], Sequence[Measured]]:
    """The launches that can be compared: those that took turns on both days, or on neither.

    Of both kinds the one with more launches on its smaller side; where those are too few to tell
    anything, all of both.
    """
    sides = [[o for o in side if isinstance(o, Measured)] for side in (then, now)]
    kinds = [
        [[o for o in side if took_turns(o) is turns] for side in sides] for turns in (True, False)
    ]
    before, here = max(kinds, key=lambda kind: min(map(len, kind)))
    few = min(len(before), len(here)) < LEAST_ALIKE
    return (sides[0], sides[1]) if few else (before, here)


def _equal_launches(source: Source, apart_from: int) -> list[list[float]]:
    """Recorded launches of each other trial, in groups launched alike: how noisy launches are."""
    groups: dict[tuple[int, bool], list[Outcome]] = {}
    launches: tuple[Trial | Repeat, ...] = (*source.history.measured, *source.repeats)
    for each in launches:
        if each.ordinal != apart_from:
            kind = each.ordinal, took_turns(each.outcome)
            groups.setdefault(kind, []).append(each.outcome)
    values = (_burdens(group, source.scoring) for group in groups.values())
    return [group for group in values if len(group) > 1]


def _burdens(outcomes: Iterable[Outcome], scoring: Scoring) -> list[float]:
    launches = (launch_of(outcome, scoring) for outcome in outcomes)
    return [launch.value for launch in launches if launch is not None]


def _centre(outcomes: Sequence[Measured], scoring: Scoring) -> str:
    """Geometric mean of the values, so that two of them give the ratio."""
    scores = (scoring.score(outcome.metrics, outcome.absent) for outcome in outcomes)
    values = [score.value for score in scores if isinstance(score, Score)]
    if not values or min(values) <= 0:
        return "nothing above 0"
    return f"{format_number(geometric_mean(values))} {scoring.unit}".rstrip()


def _change(ratio: float) -> str:
    """Return how much more is needed than recorded, in percent."""
    return f"{100 * abs(ratio - 1):.1f} % {'worse' if ratio >= 1 else 'better'}"


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
