"""What `store_crashes.py` kills: kinds of work on a store, and what must hold after a kill."""

import random
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from records.errors import StoreError
from records.store.journal import unfinished_journals
from records.store.rows import PendingTrial
from records.store.store import Store
from records.store.writer import rebuild
from records.trial import Measured, Repeat, Trial
from search.storage import Rules, collect, plan_removal
from tests.support.records import EXCHANGE, failed, intent, measured, study, trial

Tell = Callable[[str], object]

STUDY = "one"
IMPORTED_TRIALS = 60
REBUILT_STUDIES = 3
TRACES = ("rank0_trace.json", "rank1_trace.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One kind of work: `do` goes on until it is killed and tells of every change that is done.

    `check` raises `ValueError` where something is lost, torn or there twice. `longest_s` is how
    long it may go on; after so many `rounds` it begins with a store that `prepare` makes.
    """

    name: str
    do: Callable[[Path, Tell], None]
    check: Callable[[Path, Sequence[str]], None]
    prepare: Callable[[Path, random.Random], None] = lambda _root, _chance: None
    longest_s: float
    rounds: int = 6


def append(root: Path, tell: Tell) -> None:
    """Append trials as a search does, now and then with a launch made again."""
    store = Store(root)
    if not store.studies():
        store.create(STUDY, study(), "1")
        store.start_run(STUDY, study())
        tell("created")
    for ordinal in count(len(store.history(STUDY))):
        begun = begin(store, ordinal)
        store.finish(STUDY, replace(appended(ordinal), exchange=begun.exchange))
        tell(f"trial {ordinal}")
        if ordinal % 3 == 0:
            store.repeat(STUDY, repeated(ordinal, 0), repeated(ordinal, 1))
            tell(f"repeats {ordinal}")


def begin(store: Store, ordinal: int) -> PendingTrial:
    pending = store.pending(STUDY)
    if pending:
        return pending[0]
    return store.begin(STUDY, intent(ordinal), EXCHANGE if ordinal % 2 else None)


def appended(ordinal: int) -> Trial:
    return trial(ordinal, failed() if ordinal % 5 == 4 else 1 / (1 + ordinal), {"n": ordinal})


def repeated(ordinal: int, position: int) -> Repeat:
    outcome = measured(0.25)
    return Repeat(series=ordinal + 1, round=position, ordinal=ordinal, outcome=outcome)


def check_appended(root: Path, told: Sequence[str]) -> None:
    with closing(Store(root)) as store:
        must(bool(store.studies()) or not told, "the study is lost")
        trials, repeats = store.history(STUDY).trials, store.repeats(STUDY)
        whole = tuple(appended(ordinal) for ordinal in range(len(trials)))
        must(tuple(replace(each, exchange=None) for each in trials) == whole, "trials are torn")
        pending = store.pending(STUDY)
        must([each.ordinal for each in pending] in ([], [len(trials)]), "pending trials are torn")
        for exchange in (each.exchange for kind in (trials, pending) for each in kind):
            if exchange is not None:
                must(store.exchange(exchange) == EXCHANGE, "an exchange is torn")
    series = [repeat.series - 1 for repeat in repeats]
    must(len(set(series)) * 2 == len(series), "repeats are torn or there twice")
    for words in told:
        kind, _, number = words.partition(" ")
        found = {"trial": range(len(trials)), "repeats": series}.get(kind, [0])
        must(int(number or 0) in found, f"{words} is lost")


def imported(root: Path, tell: Tell) -> None:
    """Import one study after the other."""
    store = Store(root)
    for number in count(store.study_count()):
        trials = (appended(ordinal) for ordinal in range(IMPORTED_TRIALS))
        repeats = (repeated(0, 0), repeated(0, 1))
        store.add_study(f"import-{number}", study(), "1", trials, repeats, summary="{}")
        tell(f"import-{number}")


def check_imported(root: Path, told: Sequence[str]) -> None:
    whole = tuple(appended(ordinal) for ordinal in range(IMPORTED_TRIALS))
    with closing(Store(root)) as store:
        rows = {row.id: row for row in store.studies()}
        must(rows.keys() >= set(told), "an import is lost")
        must(len(rows) <= len(told) + 2, "there are studies that nobody imported")
        for study_id, row in rows.items():
            must((row.status, row.summary) == ("finished", "{}"), f"{study_id} is torn")
            must(store.history(study_id).trials == whole, f"{study_id} has torn trials")
            must(len(store.repeats(study_id)) == 2, f"{study_id} has torn repeats")
    must(not unfinished_journals(root), "half a journal is left")


def prepare_rebuilt(root: Path, _chance: random.Random) -> None:
    with closing(Store(root)) as store:
        for number in range(REBUILT_STUDIES):
            store.add_study(f"study-{number}", study(), "1", map(appended, range(IMPORTED_TRIALS)))


def rebuilt(root: Path, tell: Tell) -> None:
    """Build the database again from the journals."""
    for number in count():
        rebuild(root, lambda _study: None)
        tell(f"rebuilt {number}")


def check_rebuilt(root: Path, _told: Sequence[str]) -> None:
    whole = tuple(appended(ordinal) for ordinal in range(IMPORTED_TRIALS))
    with closing(Store(root)) as store:
        studies = store.studies()
        must(len(studies) == REBUILT_STUDIES, "a study is lost")
        must(all(store.history(row.id).trials == whole for row in studies), "trials are torn")


def gc(root: Path, tell: Tell) -> None:
    """Append trials with traces, and remove those of all but the best after each."""
    store = Store(root)
    if not store.studies():
        store.create(STUDY, study(), "1")
    rules = Rules(keep_best=1, words="traces of all but the best")
    for ordinal in count(len(store.history(STUDY))):
        files = tuple(
            store.artifacts.keep_text(f"{name} of {ordinal}" * 200, name) for name in TRACES
        )
        outcome = replace(measured(1 / (1 + ordinal)), artifacts=files)
        store.finish(STUDY, trial(ordinal, outcome))
        tell(f"trial {ordinal}")
        removed, _ = collect(store, plan_removal(store, rules, safe_age_s=0), safe_age_s=0)
        tell(f"removed {removed}")


def check_gc(root: Path, told: Sequence[str]) -> None:
    with closing(Store(root)) as store:
        trials = store.history(STUDY).trials if store.studies() else ()
        finished = [int(words.split()[1]) for words in told if words.startswith("trial ")]
        must({each.ordinal for each in trials} >= set(finished), "a trial is lost")
        for each in trials:
            must(isinstance(each.outcome, Measured), "a trial is torn")
            for artifact in each.outcome.artifacts:
                removed = store.citations.removal(STUDY, artifact.digest) is not None
                must(not removed or each is not trials[-1], "a trace of the best is removed")
                must(removed or is_whole(store, artifact.digest), "a cited file is lost")


def is_whole(store: Store, digest: str) -> bool:
    try:
        store.artifacts.check(digest)
    except StoreError:
        return False
    return True


def must(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)


WORKS = {
    work.name: work
    for work in (
        Work(name="append", do=append, check=check_appended, longest_s=0.5),
        Work(name="gc", do=gc, check=check_gc, longest_s=0.6),
        Work(name="import", do=imported, check=check_imported, longest_s=0.4, rounds=2),
        Work(
            name="rebuild",
            do=rebuilt,
            check=check_rebuilt,
            prepare=prepare_rebuilt,
            longest_s=0.4,
        ),
    )
}
