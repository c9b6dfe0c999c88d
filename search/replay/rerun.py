"""Repeat a recorded search with its recorded LLM responses and launch results."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory

from records.errors import CclsearchError, StoreError, StudyError
from records.llm_exchange import LlmExchange
from records.store.rows import PendingTrial, SearchRun, StudyRow
from records.store.store import Store
from records.study import Study
from records.trial import (
    Config,
    Failed,
    FailureKind,
    History,
    Outcome,
    Policy,
    Purpose,
    Repeat,
    Stage,
    Trial,
)
from search.compose import Backend, compose_search
from search.llm.client import LlmClient
from search.llm.tools import TraceQuestion
from search.llm.transcripts import (
    Diverged,
    TranscriptTransport,
    recorded_turns,
    trace_answers,
)
from search.loop.batch import Capacity
from search.loop.budget import NO_TIME
from search.loop.leader import took_turns
from search.loop.loop import Search
from search.loop.ports import Proposal, Proposer
from search.loop.study_result import StudyResult, final_result
from search.settings import Secret, settings_of
from search.strategies.proposers import ReplayProposer, policies_again
from search.study.spaces import prepare

CLOSING = (Purpose.HALVING, Purpose.CONFIRM)
"""What is launched when a run ends by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """One run of the search, until these numbers of trials and further launches were recorded.

    `begun` trials were under way when it ended. A run that `concluded` proposed no more and went
    on to confirm the best; one that `finished` did that to its end, and is the last.
    """

    study: Study
    trials: int
    repeats: int
    begun: int
    concluded: bool
    finished: bool = False
    out_of_time: bool = False

    def may_lack_time(self, purpose: Purpose) -> bool:
        """Whether launches may have been left out for want of time; the final also at its end."""
        budget = self.study.budget
        is_limited = budget.max_wall_s is not None or budget.max_node_hours is not None
        return self.finished if purpose is Purpose.CONFIRM else is_limited or self.out_of_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A study with everything that was proposed, asked, launched and found; `begun` never ended."""

    row: StudyRow
    trials: tuple[Trial, ...]
    repeats: tuple[Repeat, ...]
    begun: tuple[PendingTrial, ...]
    exchanges: Mapping[int, LlmExchange]
    finding: StudyResult | None
    runs: tuple[SearchRun, ...]

    @property
    def proposed(self) -> tuple[Trial | PendingTrial, ...]:
        """Trials that ended, and those that never did."""
        return (*self.trials, *self.begun)

    @property
    def seed(self) -> Policy:
        """The policy of trial 0; raises `StudyError` where none was begun."""
        for proposed in self.proposed:
            if proposed.ordinal == 0:
                return proposed.policy
        raise StudyError(
            f"study {self.row.id} has no recorded trial, so there is nothing to replay; "
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
        """Whether no later trial was begun in parallel, before a launch of this batch ended."""
        following = next((p for p in self.proposed if p.ordinal == ordinal + 1), None)
        ended = (t.ended_at for t in self.trials if t.reached_launch and t.ordinal <= ordinal)
        started = next((p.started_at for p in self.proposed if p.ordinal == ordinal), "")
        return following is None or any(started < end < following.started_at for end in ended)

    @property
    def legs(self) -> tuple[Leg, ...]:
        """Its runs, oldest first; the last one continues to the end of the record."""
        starts = self.runs or (SearchRun(trials=0, repeats=0, begun=0, study=self.row.study),)
        ends = [(run.trials, run.repeats, run.begun) for run in starts[1:]]
        ends.append((len(self.trials), len(self.repeats), len(self.begun)))
        legs = [
            Leg(
                study=run.study,
                trials=trials,
                repeats=repeats,
                begun=begun,
                concluded=any(
                    r.series == trials and r.purpose in CLOSING for r in self.repeats[:repeats]
                ),
            )
            for run, (trials, repeats, begun) in zip(starts, ends, strict=True)
        ]
        if self.finding is not None:
            late = self.finding.stop_reason.endswith(NO_TIME)
            legs[-1] = replace(legs[-1], finished=True, out_of_time=late)
        return tuple(legs)


def recorded_study(study_id: str, store: Store) -> Recorded:
    """Read all of a study; raises `StoreError` where what a model said is missing or changed."""
    row = store.find(study_id)
    trials, begun = store.history(study_id).trials, store.pending(study_id)
    proposed: tuple[Trial | PendingTrial, ...] = (*trials, *begun)
    exchanges: dict[int, LlmExchange] = {}
    for each in proposed:
        try:
            if each.exchange is not None:
                exchanges[each.ordinal] = store.exchange(each.exchange)
        except StoreError as error:
            raise StoreError(
                f"what the model said for trial {each.ordinal} cannot be replayed: {error}"
            ) from error
    return Recorded(
        row=row,
        trials=trials,
        repeats=store.repeats(study_id),
        begun=begun,
        exchanges=exchanges,
        finding=final_result(row),
        runs=store.runs(study_id),
    )


_EARLIER_ATTEMPT = Failed(
    stage=Stage.LAUNCH,
    kind=FailureKind.INFRASTRUCTURE,
    message="an attempt of which only the number is recorded",
)


class OffRecord(CclsearchError):
    """The replayed search launches what the recorded one did not."""


class Progress:
    """An observer that knows how far a replay has come."""

    def __init__(self) -> None:
        self.trials = 0
        self.repeats = 0
        self.under_way: int | None = None
        self.begun = 0

    def trial_started(self, ordinal: int, policy: Policy) -> None:  # noqa: ARG002 - the port
        """Note it as the last that was begun."""
        self.begun = ordinal

    def config_decided(self, ordinal: int, config: Config) -> None:  # noqa: ARG002 - the port
        """Note that the next launches are those of this trial."""
        self.under_way = ordinal

    def trial_finished(self, trial: Trial, history: History) -> None:  # noqa: ARG002 - the port
        """Count it; the next launches are of earlier trials."""
        self.trials += 1
        self.under_way = None

    def repeat_finished(self, repeat: Repeat) -> None:  # noqa: ARG002 - the port
        """Count it."""
        self.repeats += 1

    def _ignore(self, *_: object, **__: object) -> None:
        """Count nothing."""

    study_started = phase = noise_measured = race_decided = nodes_held = notice = _ignore


class RecordedEvaluator:
    """Ends each launch as it ended in the record, in whose order launches have to come.

    Raises `OffRecord` for any other launch; `before_launch` may raise before each.
    """

    def __init__(
        self, record: Recorded, progress: Progress, before_launch: Callable[[], None]
    ) -> None:
        self._trials = {trial.ordinal: trial for trial in record.trials}
        self._repeats = record.repeats
        self._retries = record.row.study.measure.infrastructure_retries
        self._progress = progress
        self._before_launch = before_launch
        self._attempts = Counter[int]()

    def evaluate(self, study: Study, config: Config, workdir: Path) -> Outcome:  # noqa: ARG002 - the port
        """Return the outcome of the next launch; it leaves nothing in `workdir`."""
        self._before_launch()
        ordinal = self._progress.under_way
        return self._again(config, 0) if ordinal is None else self._own(ordinal, config)

    def evaluate_together(
        self,
        study: Study,  # noqa: ARG002 - the port
        configs: Sequence[Config],
        workdirs: Sequence[Path],  # noqa: ARG002 - the port
        seed: int,  # noqa: ARG002 - the port
    ) -> tuple[Outcome, ...]:
        """Return the outcomes of as many launches."""
        self._before_launch()
        return tuple(self._again(config, number) for number, config in enumerate(configs))

    def took_turns(self, study: Study, peak_memory_bytes: Sequence[tuple[int, ...]]) -> bool:  # noqa: ARG002 - as the machine is asked
        """Whether the next launches were interleaved on the machine."""
        first = self._progress.repeats
        return _took_turns(self._repeats[first : first + len(peak_memory_bytes)])

    def _own(self, ordinal: int, config: Config) -> Outcome:
        trial = self._trials.get(ordinal)
        if trial is None or trial.config != config or not trial.reached_launch:
            raise OffRecord(f"trial {ordinal} launches what it did not launch before: {config}")
        # Of its failed attempts a trial keeps only the number, which the budget counts, and how
        # the infrastructure ended them.
        number = self._attempts[ordinal]
        self._attempts[ordinal] += 1
        if number >= min(trial.attempts - 1, self._retries):
            return trial.outcome
        lost = trial.lost_launches[number:] or (FailureKind.INFRASTRUCTURE,)
        return replace(_EARLIER_ATTEMPT, kind=lost[0])

    def _again(self, config: Config, number: int) -> Outcome:
        place = self._progress.repeats + number
        repeat = self._repeats[place] if place < len(self._repeats) else None
        # In contexts that were held out, a policy decides again.
        is_held_out = repeat is not None and repeat.purpose is Purpose.HELD_OUT
        if repeat is None or not (is_held_out or self._trials[repeat.ordinal].config == config):
            raise OffRecord(
                f"after trial {self._progress.trials - 1} a configuration is launched again "
                f"that was not: {config}"
            )
        return repeat.outcome


def _took_turns(launched: Sequence[Repeat]) -> bool:
    """Whether these were interleaved: their steps show it, or that they have no order.

    Those of a self-test never have one; where none of them was measured it is the same either way.
    """
    if any(took_turns(repeat.outcome) for repeat in launched):
        return True
    in_order = any(repeat.position for repeat in launched)
    is_test = any(repeat.purpose is Purpose.SELF_TEST for repeat in launched)
    return len(launched) > 1 and not in_order and not is_test


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What came of a replay, as the store of a study would have it.

    `stopped` says why it could not follow the record to its end; None where it could.
    """

    again: Recorded
    stopped: str | None


class RecordEnds(CclsearchError):
    """The record of a run ends here: it was interrupted."""


def replay_study(record: Recorded, source: Store) -> Replayed:
    """Run a search again from its record, without a launch and without a request.

    `source` has the study whose policies it launches, where that is its strategy.
    """
    first, *_ = record.legs
    is_replay = record.row.strategy == ReplayProposer.name
    policies = policies_again(record.row.study, source) if is_replay else ()
    with (
        TemporaryDirectory(prefix="cclsearch-replay-") as folder,
        closing(Store(Path(folder))) as store,
    ):
        store.create(record.row.id, first.study, "replay")
        stopped = _follow(record, policies, store)
        return Replayed(again=recorded_study(record.row.id, store), stopped=stopped)


def _follow(record: Recorded, policies: tuple[Policy, ...], store: Store) -> str | None:
    """Run every leg; return why that ended early, if it did."""
    progress = Progress()
    transcripts = [
        said for ordinal, talk in record.exchanges.items() for said in recorded_turns(talk, ordinal)
    ]
    transport = TranscriptTransport(transcripts)
    for leg in record.legs:
        with _leg(record, leg, policies, transport, progress, store) as search:
            try:
                search.run()
            except RecordEnds:
                pass
            except (Diverged, OffRecord) as error:
                return str(error)
        if (progress.trials, progress.repeats) != (leg.trials, leg.repeats):
            return (
                f"a run with {leg.trials} recorded trials and {leg.repeats} further launches "
                f"ends with {progress.trials} and {progress.repeats}"
            )
    return None


@contextmanager
def _leg(
    record: Recorded,
    leg: Leg,
    policies: tuple[Policy, ...],
    transport: TranscriptTransport,
    progress: Progress,
    store: Store,
) -> Iterator[Search]:
    """The search as one run had it, with the record in the place of all that it met."""

    def before_launch() -> None:
        if not leg.finished and (progress.trials, progress.repeats) == (leg.trials, leg.repeats):
            raise RecordEnds

    talks = (talk for n, talk in sorted(record.exchanges.items()) if n >= progress.trials)
    host = next((talk.host for talk in talks if talk.host), None)
    evaluator = RecordedEvaluator(record, progress, before_launch)
    answers = {ordinal: trace_answers(talk) for ordinal, talk in record.exchanges.items()}

    def trace_answer(question: TraceQuestion, history: History) -> str:
        """Return the recorded answer: the traces themselves may be gone."""
        turn = len(history) + len(history.pending)
        return answers.get(turn, {}).get(question, "")

    backend = Backend(
        scrubber=None,
        evaluator=evaluator,
        model=lambda study, _notice: LlmClient(
            # No text holds this key by chance: taking it out changes nothing recorded.
            settings_of(study.llm, Secret(token_hex(32)), host and f"https://{host}"),
            transport,
        ),
        seed=record.seed,
        trace_answer=trace_answer,
        again=policies,
        fits=evaluator.took_turns,
        capacity=Capacity(
            trial_count=leg.study.parallel,
            place_count=1,
            places_of=lambda _config: int(record.fills_batch(progress.begun)),
            share_memory=False,
            order=record.ended_at,
        ),
        sleep=lambda _seconds: None,
        clock=lambda: record.started_s(progress.begun + 1),
    )
    with compose_search(record.row.id, prepare(leg.study), store, progress, backend) as search:
        yield replace(
            search,
            proposer=_Bounded(search.proposer, leg),
            # Time stands still, and is up where the record says that it was.
            clock=lambda: 0.0,
            out_of_time=lambda: (
                record.finding.stop_reason
                if record.finding and leg.out_of_time and progress.trials >= leg.trials
                else None
            ),
            has_time=lambda purpose, series, _seconds: (
                not leg.may_lack_time(purpose)
                or any(
                    (repeat.purpose, repeat.series) == (purpose, series)
                    for repeat in record.repeats[progress.repeats : leg.repeats]
                )
            ),
        )


class _Bounded:
    """A proposer that goes as far as one run went: then it has no more, or the record ends."""

    def __init__(self, proposer: Proposer, leg: Leg) -> None:
        self._proposer = proposer
        self._leg = leg

    @property
    def name(self) -> str:
        """That of the proposer behind it."""
        return self._proposer.name

    def propose(self, study: Study, history: History) -> Proposal | None:
        """Return what the proposer returns, as long as the run proposed."""
        leg = self._leg
        by_itself = leg.finished and not leg.out_of_time
        if by_itself or len(history) + len(history.pending) < leg.trials + leg.begun:
            return self._proposer.propose(study, history)
        if leg.concluded or leg.out_of_time:
            return None
        raise RecordEnds
