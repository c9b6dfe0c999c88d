"""What pages and the API read of whole studies: disturbances, comparisons, exports and caches."""

import shutil
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import BinaryIO, Concatenate, Generic, Literal, ParamSpec, TypeAlias, TypeVar

from evaluator.metrics.base import Metric
from evaluator.traces.readers.files import STANDARD_LIMITS
from records.errors import StudyError
from records.store.rows import StudyRow
from records.store.store import Store
from records.trial import Trial
from search.compare.compare import Comparisons, Terms, compare_trials
from search.compare.sides import TrialSide
from search.leaderboard.ranking import (
    Leaderboard,
    gather_submissions,
    leaderboard,
    study_submission,
)
from search.leaderboard.submission import Submission
from search.loop.learned import LearnedConstraint
from search.loop.running import TimeLeft, time_left
from search.report.analysis import study_analysis
from search.report.data import learned_for
from search.report.explored import (
    MOST_REPEATS,
    draw_history,
    repeats_of,
    study_front,
    study_history,
    study_knobs,
)
from search.report.report import study_report
from search.service.auth import TooManyError
from search.storage import is_trace
from search.traces.merge import write_merged
from search.traces.open import trial_traces
from search.traces.view import trial_timeline
from search.transfer.export import ExportRequest, Omissions, export, suffix_of
from search.views.charts import sparkline
from search.views.document import Block, Section
from search.views.html import render_html
from search.views.machine import Disturbed, disturbed_among

MOST_DRAWN = 16
MOST_STUDIES = 5000
MOST_BOARDS = 8
MOST_TIMELINES = 64
MOST_MARKS = 600
MOST_TRIALS = 20_000
MOST_FILE_BYTES = 4 << 30
"""Size of the files that a bundle may hold."""
MOST_MERGED_BYTES = 256 << 20
"""Size of the stored traces that are merged for a request."""
WAIT_S = 20.0
MOST_WAITING = 2
"""Each takes one of the few threads meanwhile."""

T = TypeVar("T")
Form: TypeAlias = Literal["jsonl", "csv", "parquet", "bundle"]


def disturbed_study(row: StudyRow, store: Store) -> Disturbed | None:
    """Count the disturbed launches of a study; None for none, or for too many launches."""
    counts = store.counts(row.id)
    if counts.trials + counts.repeats > MOST_REPEATS:
        return None
    launches = (*store.history(row.id), *store.repeats(row.id))
    return disturbed_among(launch.outcome for launch in launches)


def study_time_left(row: StudyRow, store: Store) -> TimeLeft | None:
    """Return what a search may still launch; None where unknown, or for too many launches."""
    counts = store.counts(row.id)
    if counts.trials + counts.repeats > MOST_REPEATS:
        return None
    return time_left(row.study, store.history(row.id), store.repeats(row.id))


def disturbed_trials(
    trials: Iterable[Trial], row: StudyRow, store: Store
) -> Mapping[int, Disturbed]:
    """Count the disturbed launches of each of these trials that has any."""
    launches = {trial.ordinal: [trial.outcome] for trial in trials}
    for repeat in repeats_of(row, store):
        if repeat.ordinal in launches:
            launches[repeat.ordinal].append(repeat.outcome)
    found = {ordinal: disturbed_among(outcomes) for ordinal, outcomes in launches.items()}
    return {ordinal: each for ordinal, each in found.items() if each is not None}


def compare_recorded(a: TrialSide, b: TrialSide) -> Comparisons:
    """Judge trial B against trial A; raise `StudyError` where they are one trial."""
    return compare_trials(a, b, Terms())


class VersionedCache(Generic[T]):
    """The most recently used values by key; each is computed by one thread while others wait."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self._entries: OrderedDict[Hashable, _Entry[T]] = OrderedDict()

    def get(self, key: Hashable, version: Hashable, compute: Callable[[], T]) -> T:
        """Return the value of this version, computed now unless it is cached."""
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            while len(self._entries) > self._most:
                self._entries.popitem(last=False)
        with entry.lock:
            if entry.cached is None or entry.cached[0] != version:
                entry.cached = version, compute()
            return entry.cached[1]


@dataclass(slots=True)
class _Entry(Generic[T]):
    lock: Lock = field(default_factory=Lock)
    cached: tuple[Hashable, T] | None = None


P = ParamSpec("P")


class StudyCache(Generic[P, T]):
    """What `compute` returns for a study, computed again where its records have changed."""

    def __init__(
        self, compute: Callable[Concatenate[StudyRow, Store, P], T], most: int = MOST_STUDIES
    ) -> None:
        self._compute = compute
        self._found = VersionedCache[T](most)

    def __call__(self, row: StudyRow, records: Store, *more: P.args, **named: P.kwargs) -> T:
        """Return the value for a study, and for what else distinguishes it."""
        key, stamp = (row.id, more, *named.items()), records.stamp(row.id)
        return self._found.get(key, stamp, lambda: self._compute(row, records, *more, **named))


class ChartData:
    """The data of charts, made once for each state of the records."""

    def __init__(self) -> None:
        self.history = StudyCache(study_history, MOST_DRAWN)
        self.front = StudyCache(study_front, MOST_DRAWN)
        self.knobs = StudyCache(study_knobs, MOST_DRAWN)
        self.drawing = StudyCache(_history_drawing, MOST_DRAWN)
        self.analysis = StudyCache(_analysis, MOST_DRAWN)
        self.spark = StudyCache(_spark)


def _history_drawing(row: StudyRow, records: Store) -> str:
    """Draw what every trial reached, in order."""
    return draw_history(study_history(row, records), MOST_MARKS, f"/studies/{row.id}/trials/")


def _analysis(row: StudyRow, records: Store) -> tuple[Section, ...]:
    return study_analysis(row, records, f"/studies/{row.id}/trials/")


def _spark(row: StudyRow, records: Store) -> str:
    """Draw the best so far in the height of a line; empty where that is unknown."""
    try:
        history = study_history(row, records)
    except StudyError:  # an imported record may name metrics that are unknown here
        return ""
    steps = [(each.ordinal, each.value) for each in history.best_so_far]
    return sparkline(steps, history.total - 1, lower_is_better=history.axis.lower_is_better)


class LeaderboardCache:
    """Leaderboards, made again where a study has changed."""

    def __init__(self) -> None:
        self._submissions = VersionedCache[Submission | None](MOST_STUDIES)
        self._boards = VersionedCache[Leaderboard](MOST_BOARDS)

    def board(
        self,
        records: Store,
        *,
        by: str | None = None,
        workload: str | None = None,
        metrics: Sequence[str] = (),
    ) -> Leaderboard:
        """Rank all studies, or those of a workload, `by` a metric, with these metrics or all.

        Raise `StudyError` for a metric that no study has.
        """

        def made() -> Leaderboard:
            found, notes = gather_submissions(
                records, (), workload, lambda _count: None, self._submission
            )
            return leaderboard(found, by, metrics, notes)

        asked = (by, workload, tuple(metrics))
        return self._boards.get(asked, records.stamp_of_all(), made)

    def _submission(
        self, row: StudyRow, records: Store, known: Mapping[str, Metric]
    ) -> Submission | None:
        return self._submissions.get(
            row.id, records.stamp(row.id), lambda: study_submission(row, records, known)
        )


class StudyWriter:
    """Reads whole studies for exports and reports, one at a time; few requests may wait."""

    def __init__(self) -> None:
        self._timelines = VersionedCache[Sequence[Block]](MOST_TIMELINES)
        self._turns = BoundedSemaphore(1)
        self._room = BoundedSemaphore(1 + MOST_WAITING)

    def exported(self, root: Path, row: StudyRow, form: Form, leaving: Omissions) -> BinaryIO:
        """Return an export as an unnamed open file; raise as `export` does."""
        with self._records(root, row) as records:
            if form == "bundle" and not leaving.all_but_metrics:
                size = records.file_bytes(row.id)
                if size > MOST_FILE_BYTES:
                    raise StudyError(
                        f"study {row.id} has {size} bytes of files, too many for one request; "
                        f"`cclsearch export {row.id} --format bundle` has no limit"
                    )
            path = _empty_folder(root) / f"study{suffix_of(form)}"
            request = ExportRequest(form=form, to=path, leaving=leaving, allow_missing=True)
            export(row, records, request, None)
            file = path.open("rb")
            path.unlink()
            return file

    def reported(self, root: Path, row: StudyRow) -> str:
        """Return the report of a study as one HTML page."""
        with self._records(root, row) as records:
            return render_html(study_report(row, records, ""))

    def merged(self, root: Path, row: StudyRow, ordinal: int) -> BinaryIO:
        """Return all traces of a trial as one Chrome trace, an unnamed open gzip file."""
        with self._turn(), closing(Store(root)) as records:
            trial = _trial(row, ordinal, records)
            size = sum(a.size_bytes for a in trial.outcome.artifacts if is_trace(a.name, row.study))
            if size > MOST_MERGED_BYTES:
                raise StudyError(
                    f"the traces of trial {ordinal} have {size} bytes, too many for one request; "
                    f"`cclsearch trace merge trial:{row.id}:{ordinal}` has no limit"
                )
            found = trial_traces(row, trial, records)
            path = _empty_folder(root) / "merged.json.gz"
            write_merged(found.traces, path, STANDARD_LIMITS, packed=True)
            file = path.open("rb")
            path.unlink()
            return file

    def timeline(self, root: Path, row: StudyRow, ordinal: int) -> Sequence[Block]:
        """Return what each rank did in one step of a trial, as `trial_timeline` does."""

        def made() -> Sequence[Block]:
            with self._turn(), closing(Store(root)) as records:
                return trial_timeline(row, _trial(row, ordinal, records), records)

        return self._timelines.get((row.id, ordinal), None, made)

    def learned(self, root: Path, row: StudyRow) -> tuple[LearnedConstraint, ...]:
        """Return the constraints that the failures of a study show."""
        with self._records(root, row) as records:
            return learned_for(row.study, records.history(row.id))

    @contextmanager
    def _records(self, root: Path, row: StudyRow) -> Iterator[Store]:
        """Open separate records, so that what is read is not cached."""
        with self._turn(), closing(Store(root)) as records:
            count = records.counts(row.id).trials
            if count > MOST_TRIALS:
                raise StudyError(
                    f"study {row.id} has {count} trials, more than {MOST_TRIALS}; use "
                    "`cclsearch export` or `cclsearch report` where its records are"
                )
            yield records

    @contextmanager
    def _turn(self) -> Iterator[None]:
        with ExitStack() as held:
            for lock, wait_s in ((self._room, 0.0), (self._turns, WAIT_S)):
                if not lock.acquire(timeout=wait_s):
                    raise TooManyError(
                        "other exports, reports or traces are being made; try again later"
                    )
                held.callback(lock.release)
            yield


def _trial(row: StudyRow, ordinal: int, records: Store) -> Trial:
    found = records.trial(row.id, ordinal)
    if found is None:
        raise StudyError(f"study {row.id} has no trial {ordinal}")
    return found


def _empty_folder(root: Path) -> Path:
    """Return the folder of exports, without what a killed process left there."""
    folder = root / "service" / "exports"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
