"""Conducts a search for `run` and `resume`: progress, interruption, and the report at its end."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self, TypeVar

import typer

from records.codec import to_json
from records.errors import CclsearchError, StudyError
from records.history import History
from records.rows import StudyRow
from records.store import Store
from records.study import MEASURE, Study
from search.commands.options import store_flag, with_model
from search.compose import new_study_id, resolved_strategy, search_of
from search.errors import Interrupted
from search.extending import extended
from search.finding import Finding
from search.live import LiveProgress
from search.llm.prices import priced
from search.loop import Search
from search.ports import Observer
from search.progress import JsonProgress, PlainProgress
from search.proposers.replay import ReplayProposer, study_again
from search.reading import recorded
from search.replay.source import LAUNCHABLE_ORIGINS
from search.report import Record, print_report
from search.scrubbed import scrubbed_study
from search.settings import scrubber, store_root
from search.standing import standing_of
from search.terminal import Terminal, on_terminal
from search.trust import require_trust, trust
from search.version import installed_version

INTERRUPTED_TWICE = 130
Found = TypeVar("Found")


def begin(study: Study, strategy: str, store: Path | None, *, as_json: bool) -> Finding:
    """Record a new study and search it to its end."""
    chosen, why = resolved_strategy(strategy)
    # The price goes on record too: the known one may be another tomorrow.
    study = replace(study, strategy=chosen, llm=priced(study.llm))
    study = scrubbed_study(study, scrubber())
    study_id = new_study_id()
    with closing(Store(store_root(store))) as records:
        with (
            face(as_json, History()) as observer,
            Stop(_resume(study_id, records)) as stop,
            search_of(study_id, study, records, observer) as search,
        ):
            records.create(study_id, study, installed_version())
            finding = _searched(search, why, stop)
        _report(finding, study_id, records, as_json)
    return finding


def go_on(
    study_id: str,
    more: int | None,
    store: Path | None,
    *,
    model: str | None = None,
    trusted: bool = False,
    as_json: bool,
) -> Finding:
    """Search a study on record to its end, with `more` launches from here if they are given.

    Another `model` is asked from here, if it is given.

    An imported one has to be `trusted` once.
    """
    with recorded(store) as records:
        row = records.find(study_id)
        if row.strategy == MEASURE:
            raise StudyError(
                f"study {row.id} holds launches of a replay, and no search; "
                f"go on with `cclsearch replay {row.id} --mode measure`"
            )
        _refuse_import(row)
        if trusted:
            trust(row.study, records)
        require_trust(row.study, records)
        before = _launches_on_record(row.id, records)
        study = row.study if more is None else extended(row.id, more, records)
        if model is not None:
            study = _asking(model, study, row.id, records)
        with (
            face(as_json, standing_of(row, records).history) as observer,
            Stop(_resume(row.id, records)) as stop,
            search_of(row.id, study, records, observer) as search,
        ):
            words = f"strategy {study.strategy}"
            words += f"; resumed with {before[0]} trials on record" if any(before) else ""
            finding = _searched(search, words, stop)
        if _launches_on_record(row.id, records) == before:
            typer.echo(f"nothing was left to launch: {finding.stop_reason}", err=True)
        _report(finding, row.id, records, as_json)
    return finding


def _asking(model: str, study: Study, study_id: str, records: Store) -> Study:
    """The study with another model to ask, as it is now recorded."""
    study = with_model(study, model)
    study = replace(study, llm=priced(study.llm))
    with records.lock(study_id):
        records.replace_study(study_id, study)
    return study


def _refuse_import(row: StudyRow) -> None:
    origin = row.study.origin
    if origin is not None and origin.kind not in LAUNCHABLE_ORIGINS:
        raise StudyError(
            f"study {row.id} was imported from {origin.source} and cannot go on, as nothing here "
            f"launches its trials; see `cclsearch show {row.id}`"
        )


def launched_again(
    study_id: str, strategy: str | None, store: Path | None, *, trusted: bool
) -> Study:
    """A new study that launches the policies of one on record."""
    if strategy not in {None, ReplayProposer.name}:
        raise StudyError(
            f"--from launches what is on record, and strategy {strategy!r} proposes anew; "
            "leave out one of them"
        )
    with recorded(store) as records:
        row = records.find(study_id)
        _refuse_import(row)
        if trusted:
            trust(row.study, records)
        require_trust(row.study, records)
        return study_again(row, records)


def _launches_on_record(study_id: str, records: Store) -> tuple[int, int]:
    return len(records.history(study_id)), len(records.repeats(study_id))


@contextmanager
def face(as_json: bool, history: History) -> Iterator[Observer]:
    """The face that fits whoever looks: JSON on request, a live view on a terminal, else lines."""
    if as_json:
        yield JsonProgress(sys.stdout)
    elif on_terminal():
        with LiveProgress(Terminal(), history) as live:
            yield live
    else:
        yield PlainProgress(sys.stdout)


def _searched(search: Search, strategy: str, stop: "Stop") -> Finding:
    """Search to the end; an interruption or a fault of the surroundings says how to go on."""

    def work() -> Finding:
        search.observer.study_started(search.study_id, search.study, strategy)
        return search.run()

    return stop.heard(work)


def _resume(study_id: str, records: Store) -> str:
    return f"cclsearch resume {study_id}{store_flag(records.root)}"


def _give_up_closed_output() -> None:
    """Point standard output elsewhere if nobody reads it, or leaving would fail to flush it."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Stop:
    """Ctrl-C, termination and a closed terminal end the search in order, and the second at once.

    `command` is how to go on after it.
    """

    def __init__(self, command: str) -> None:
        self.again = f"next: {command}"
        self._was_asked = False
        self._previous: dict[int, signal.Handlers | int | Callable[..., object] | None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def heard(self, work: Callable[[], Found]) -> Found:
        """Hear while this works; an interruption or a fault outside of it says how to go on."""
        try:
            self._listen()
            return work()
        except KeyboardInterrupt:
            _give_up_closed_output()
            what = "interrupted; every finished trial is on record"
            raise Interrupted(f"{what}\n{self.again}") from None
        except CclsearchError as error:
            raise type(error)(f"{error}\n{self.again}") from error

    def _listen(self) -> None:
        """Hear to the end of the context, except what this process ignores."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._ask)

    def _ask(self, _signal: int, _frame: object) -> NoReturn:
        if self._was_asked:
            # No cleaning up: ranks end with their parent, and the store holds what is finished.
            Terminal(stderr=True).show_cursor()
            os.write(sys.stderr.fileno(), f"\n{self.again}\n".encode())
            os._exit(INTERRUPTED_TWICE)
        self._was_asked = True
        raise KeyboardInterrupt


def _report(finding: Finding, study_id: str, records: Store, as_json: bool) -> None:
    if as_json:
        event = {"event": "finished", "study_id": study_id, **json.loads(to_json(finding))}
        typer.echo(json.dumps(event, allow_nan=False))
    else:
        print_report(finding, Record.of(study_id, records), store_flag(records.root))
