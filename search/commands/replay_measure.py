"""`replay --mode measure`: trials on record launched again, and whether their results hold here."""

from dataclasses import dataclass, replace
from pathlib import Path

from records.errors import StudyError
from records.rows import StudyRow
from records.store import Store
from records.study import MEASURE, Study
from records.trial import Config
from search.commands.conduct import Stop, face
from search.commands.measure_views import print_decisions
from search.commands.options import store_flag
from search.compose import check_here, here, new_study_id
from search.contexts import parts
from search.reading import recorded
from search.replay.claim import Decision, Holds, all_hold
from search.replay.measuring import begin, measuring, measuring_study
from search.replay.source import Source, source_of
from search.spaces import space_of
from search.trust import require_trust, trust
from search.version import installed_version


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is launched again, in how many rounds at most, and what a value may be worse by."""

    trial: str | None
    rounds: int | None
    within: float
    trusted: bool = False
    """Whether an imported study may launch what it names, now and later."""


WITHIN = 0.10
"""Launches months apart meet another machine, even where it is the same one."""


def print_measured_again(study_id: str, asked: Asked, store: Path | None, *, as_json: bool) -> bool:
    """Launch trials again and print what holds; gives whether all was confirmed.

    A study that holds an unfinished replay is gone on with.
    """
    with recorded(store) as records:
        row = records.find(study_id)
        if asked.trusted:
            trust(row.study, records)
        require_trust(row.study, records)
        if row.strategy == MEASURE:
            decisions = _gone_on(row, asked, records, as_json=as_json)
        else:
            decisions = _begun(row, asked, records, as_json=as_json)
    return all_hold(decision.holds for decision in decisions) is Holds.CONFIRMED


def _begun(row: StudyRow, asked: Asked, records: Store, *, as_json: bool) -> tuple[Decision, ...]:
    source = source_of(row, records)
    trials = source.chosen(asked.trial or "best")
    study = measuring_study(row.study, row.id, len(trials), asked.rounds)
    check_here(study)
    study_id = new_study_id()
    records.create(study_id, study, installed_version())
    begin(study_id, trials, records)
    return _measured(study_id, study, source, asked, records, as_json=as_json)


def _gone_on(row: StudyRow, asked: Asked, records: Store, *, as_json: bool) -> tuple[Decision, ...]:
    """Go on with a replay; with more rounds where they are asked for."""
    if asked.trial is not None:
        raise StudyError(
            f"study {row.id} is a replay with its own trials; leave out --trial to go on with it, "
            f"or replay {row.study.replay_of}"
        )
    source = source_of(records.find(row.study.replay_of or ""), records)
    study = row.study
    if asked.rounds is not None:
        again = measuring_study(source.row.study, source.row.id, study.budget.trials, asked.rounds)
        study = replace(study, measure=again.measure, budget=again.budget)
        records.replace_study(row.id, study)
    check_here(study)
    return _measured(row.id, study, source, asked, records, as_json=as_json)


def _measured(
    study_id: str, study: Study, source: Source, asked: Asked, records: Store, *, as_json: bool
) -> tuple[Decision, ...]:
    words = "" if asked.within == WITHIN else f" --within {100 * asked.within:g}%"
    command = f"cclsearch replay {study_id} --mode measure{words}{store_flag(records.root)}"
    with (
        face(as_json, records.history(study_id)) as observer,
        Stop(command) as stop,
        here(study, records, _first(study, source), source.history.trials[0].policy) as around,
    ):
        replay = measuring(study_id, study, source, records, around, observer, within=asked.within)

        def work() -> tuple[Decision, ...]:
            what = f"launches of study {source.row.id} again"
            observer.study_started(study_id, study, what)
            return replay.run()

        decisions = stop.heard(work)
    print_decisions(study_id, study, source, decisions, records, command, as_json=as_json)
    return decisions


def _first(study: Study, source: Source) -> Config:
    """A configuration that the launchers can be made ready for."""
    known = (trial.config for trial in source.history if trial.config is not None)
    config = next(known, None) or space_of(study).feasible[0]
    return next(parts(study, config)).config
