"""Runs a recorded search again, run by run, in a store of its own."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory

from records.errors import CclsearchError
from records.history import History
from records.store import Store
from records.study import Study
from records.trial import Policy
from search.batch import Room
from search.compose import Surroundings, composed
from search.llm.client import LlmClient
from search.llm.settings import Secret
from search.llm.transcripts import Diverged, TranscriptTransport, said_in
from search.loop import Search
from search.ports import Proposal, Proposer
from search.proposers.replay import ReplayProposer, policies_again
from search.replay.launches import OffRecord, Progress, RecordedEvaluator
from search.replay.recorded import Leg, Recorded, recorded_study
from search.settings import reached
from search.spaces import space_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What came of a replay, as the store of a study would have it.

    `stopped` says why it could not follow the record to its end; None where it could.
    """

    again: Recorded
    stopped: str | None


class RecordEnds(CclsearchError):
    """The record of a run ends here: it was interrupted."""


def replayed(record: Recorded, source: Store) -> Replayed:
    """Run a search again from its record, without a launch and without a request.

    `source` has the study whose policies it launches, where that is its strategy.
    """
    first, *_ = record.legs
    policies = _policies(record, source)
    with (
        TemporaryDirectory(prefix="cclsearch-replay-") as folder,
        closing(Store(Path(folder))) as store,
    ):
        store.create(record.row.id, first.study, "replay")
        stopped = _follow(record, policies, store)
        return Replayed(again=recorded_study(record.row.id, store), stopped=stopped)


def _policies(record: Recorded, source: Store) -> tuple[Policy, ...]:
    is_replay = record.row.strategy == ReplayProposer.name
    return policies_again(record.row.study, source) if is_replay else ()


def _follow(record: Recorded, policies: tuple[Policy, ...], store: Store) -> str | None:
    """Run every leg; gives why that ended early, where it did."""
    progress = Progress()
    transcripts = [
        said for ordinal, talk in record.exchanges.items() for said in said_in(talk, ordinal)
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
                f"a run that ended with {leg.trials} trials and {leg.repeats} further launches "
                f"on record ends with {progress.trials} and {progress.repeats}"
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
    around = Surroundings(
        evaluator=evaluator,
        model=lambda study, _notice: _model(study, host, transport),
        seed=record.seed,
        again=policies,
        fits=evaluator.took_turns,
        room=Room(
            trial_count=leg.study.parallel,
            place_count=1,
            places_of=lambda _config: int(record.fills_batch(progress.begun)),
            share_memory=False,
            order=record.ended_at,
        ),
        sleep=lambda _seconds: None,
        clock=lambda: record.started_s(progress.begun + 1),
    )
    with composed(record.row.id, leg.study, space_of(leg.study), store, progress, around) as search:
        yield replace(
            search,
            proposer=_Bounded(search.proposer, leg),
            # Time stands still, and is up where the record says that it was.
            clock=lambda: inf if leg.out_of_time and progress.trials >= leg.trials else 0.0,
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
        """Give what the proposer gives, as long as the run proposed."""
        leg = self._leg
        by_itself = leg.finished and not leg.out_of_time
        if by_itself or len(history) + len(history.pending) < leg.trials + leg.begun:
            return self._proposer.propose(study, history)
        if leg.concluded or leg.out_of_time:
            return None
        raise RecordEnds


def _model(study: Study, host: str | None, transport: TranscriptTransport) -> LlmClient:
    # No text holds this key by chance: what is recorded is not changed by taking it out.
    key = Secret(token_hex(32))
    return LlmClient(reached(study.llm, key, host and f"https://{host}"), transport)
