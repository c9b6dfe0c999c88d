"""The store: journals, one SQLite database that indexes them, and one folder of files.

A trial is recorded before its launch, and its result after it. A kill at any point loses no
finished trial; only pending trials have to be repeated.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path

from records.codec import to_json, utc_now
from records.errors import StoreError
from records.llm_exchange import ExchangeSummary, LlmExchange
from records.machine import Machine, NodeRecord
from records.store.artifacts import Artifacts, FileReferences
from records.store.database import open_database, rebuild_command, store_errors
from records.store.journal import (
    DamagedLine,
    Entry,
    FilesRemoved,
    JournalPosition,
    MetricsComputed,
    NodesHeld,
    RepeatsFinished,
    RunBegan,
    StudyChanged,
    StudyCreated,
    StudyLabelled,
    TrialFinished,
    fsync_path,
    journal_path,
    keep_private,
    read_journal,
)
from records.store.locks import WAIT_S, hold_study, study_holder
from records.store.queries import ParseCache, StoredRecords
from records.store.rows import ComputedMetric, Labels, PendingTrial, SearchRun
from records.store.writer import StoreWriter
from records.study import Study
from records.trial import Repeat, Trial


class Store(StoredRecords):
    """Open or create the store in `root`; raises `StoreError` when it cannot be used.

    A write that raises has recorded nothing, unless only the database could not follow the journal;
    it does so when the store is used next.
    """

    def __init__(
        self, root: Path, *, wait_s: float = WAIT_S, most_parsed: int | None = None
    ) -> None:
        self.root = root = root.absolute()
        self.artifacts = Artifacts(root / "artifacts")
        self._parsed, self._most_parsed = ParseCache(), most_parsed
        with store_errors(root, "open"):
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            keep_private(root)
            self._db = open_database(root)
            self._writer = StoreWriter(root, self._db, wait_s)
            self.citations = FileReferences(root, self._db)
            try:
                self._writer.recover()
            except BaseException:
                self._db.close()
                raise

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def workdir(self, study_id: str) -> Path:
        """Folder for the running launches of one study; emptied after each."""
        return self.root / "work" / study_id

    @contextmanager
    def lock(self, study_id: str) -> Iterator[None]:
        """Hold the study for this process; raises `StoreBusy` when another process holds it.

        The lock is released when the process ends, however it ends.
        """
        journal_path(self.root, study_id)
        with ExitStack() as held:
            with store_errors(self.root, "lock"):
                held.enter_context(hold_study(self.root, study_id))
                self._writer.catch_up(study_id)
            yield

    def holder(self, study_id: str) -> int | None:
        """The process that holds a study; None if none does, 0 if its id is not written yet."""
        journal_path(self.root, study_id)
        with store_errors(self.root, "lock"):
            return study_holder(self.root, study_id)

    def trust(self, digest: str) -> None:
        """Record that commands of the imported bundle with this digest may run here."""
        path = self._trusted(digest)
        with store_errors(self.root, "write to"):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            path.touch()
            fsync_path(path.parent)

    def is_trusted(self, digest: str) -> bool:
        """Whether `trust` was called for this digest, by any process."""
        return self._trusted(digest).is_file()

    def _trusted(self, digest: str) -> Path:
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise StoreError(f"{digest[:80]!r} is not a bundle's digest; the record was changed")
        return self.root / "trusted" / digest

    def keep_machine(self, machine: Machine) -> str:
        """Store a machine, to which launches refer by its digest; any thread may call it."""
        return self.artifacts.keep_text(to_json(machine), "machine.json").digest

    def create(self, study_id: str, study: Study, version: str, *, status: str = "running") -> None:
        """Record a new study."""
        created = StudyCreated(study=study, version=version, created_at=utc_now(), status=status)
        self._write(study_id, created)

    def add_study(
        self,
        study_id: str,
        study: Study,
        version: str,
        trials: Iterable[Trial],
        repeats: Sequence[Repeat] = (),
        summary: str | None = None,
    ) -> None:
        """Record a study that ended elsewhere, with all its trials, all or nothing.

        Trials may come from a generator: there may be more of them than memory holds.
        """
        entries: Iterable[Entry] = chain(
            [StudyCreated(study=study, version=version, created_at=utc_now())],
            (TrialFinished(trial=trial) for trial in trials),
            [RepeatsFinished(repeats=tuple(repeats))] if repeats else [],
            [StudyChanged(status="finished", summary=summary)],
        )
        self.restore(study_id, entries)

    def restore(self, study_id: str, entries: Iterable[Entry]) -> None:
        """Record a study with the entries of another store, all or nothing."""
        with store_errors(self.root, "write to"):
            self._writer.add(study_id, entries)

    def entries(self, study_id: str) -> Iterator[Entry]:
        """Every change of a study's records, oldest first; raises `StoreError` for damage."""
        path = journal_path(self.root, study_id)
        with store_errors(self.root, "read"):
            self._writer.catch_up(study_id)
            for line in read_journal(path, JournalPosition()):
                if isinstance(line, DamagedLine):
                    raise StoreError(
                        f"{path}, line {line.line}: {line.why}; restore the file, or drop the "
                        f"line: `{rebuild_command(self.root)}`"
                    )
                yield line.entry

    def update(self, study_id: str, *, status: str, summary: str | None = None) -> None:
        """Record the status of a study, and its closing summary if it has one."""
        self._write(study_id, StudyChanged(status=status, summary=summary))

    def label(self, study_id: str, labels: Labels) -> None:
        """Record the tags, notes and archive mark of a study; it may be running."""
        self._write(study_id, StudyLabelled(labels=labels))

    def replace_study(self, study_id: str, study: Study) -> None:
        """Record a study whose budget was extended."""
        self._write(study_id, StudyChanged(study=study))

    def start_run(
        self,
        study_id: str,
        study: Study,
        nodes: tuple[NodeRecord, ...] = (),
        job_id: str | None = None,
    ) -> None:
        """Record that the search starts or resumes, from where, and on which nodes of a cluster."""
        counts = self.counts(study_id)
        run = SearchRun(
            trials=counts.trials,
            repeats=counts.repeats,
            begun=len(self.pending(study_id)),
            study=study,
            nodes=nodes,
            job_id=job_id,
        )
        self._write(study_id, RunBegan(run=run))

    def hold_nodes(self, study_id: str, node_s: float) -> None:
        """Record how long the last run has held nodes so far, in seconds times nodes."""
        self._write(study_id, NodesHeld(node_s=node_s))

    def begin(
        self, study_id: str, pending: PendingTrial, exchange: LlmExchange | None
    ) -> PendingTrial:
        """Record a pending trial and the conversation behind it; return it as stored."""
        if exchange is not None:
            digest = self.artifacts.keep_text(to_json(exchange), "exchange.json").digest
            summary = ExchangeSummary.of(digest, exchange)
            pending = replace(pending, exchange=digest, exchange_summary=summary)
        self._write(study_id, pending)
        return pending

    def finish(self, study_id: str, trial: Trial) -> None:
        """Record a finished trial and all that belongs to it, in one transaction."""
        self._write(study_id, TrialFinished(trial=trial))

    def repeat(self, study_id: str, *repeats: Repeat) -> None:
        """Record repeats that ran together, in one transaction."""
        if repeats:
            self._write(study_id, RepeatsFinished(repeats=repeats))

    def record_metrics(
        self, study_id: str, metrics: Mapping[int, tuple[ComputedMetric, ...]]
    ) -> None:
        """Record metrics computed after trials ended, by ordinal."""
        if metrics:
            self._write(study_id, MetricsComputed(metrics=metrics))

    def remove_files(self, study_id: str, digests: Sequence[str], rule: str) -> str:
        """Record that files of a study are about to be removed; return the time."""
        removal = FilesRemoved(removed_at=utc_now(), rule=rule, digests=tuple(digests))
        self._write(study_id, removal)
        return removal.removed_at

    def _write(self, study_id: str, entry: Entry) -> None:
        with store_errors(self.root, "write to"):
            self._writer.write(study_id, entry)
