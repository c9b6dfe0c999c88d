"""Open the traces that a path or a stored trial such as `trial:3` names."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from evaluator.evaluate import evidence
from evaluator.metrics.base import Evidence
from evaluator.traces.analysis.collectives import Matches, match
from evaluator.traces.analysis.kernels import KernelTables, top_kernels
from evaluator.traces.analysis.operators import Attribution, attribute
from evaluator.traces.analysis.stragglers import Stragglers, stragglers
from evaluator.traces.host_ranges import HostRanges
from evaluator.traces.model import TraceSet
from evaluator.traces.readers.files import LARGE_LIMITS
from evaluator.traces.readers.formats import read_host_ranges
from evaluator.traces.readers.read import read_folder
from records.errors import StudyError
from records.store.rows import StudyRow
from records.store.store import Store
from records.trial import Measured, Trial
from search.settings import open_store
from search.storage import is_trace, read_stored_traces, require_files, trace_files
from search.views.console import progress_bar
from search.views.format import format_decimal_bytes


@dataclass(frozen=True, kw_only=True)  # without slots, because results are cached
class OpenTraces:
    """Traces, how to call them, and what metrics may look at."""

    name: str
    evidence: Evidence
    traces: TraceSet
    shows_progress: bool = False
    """Whether a bar on the terminal shows what else is read."""

    @cached_property
    def matches(self) -> Matches:
        """Which collective of each rank belongs to which."""
        return self.evidence.matches or match(self.traces)

    @cached_property
    def kernels(self) -> KernelTables:
        """The work of ranks by name."""
        return self.evidence.kernels or top_kernels(self.traces)

    @cached_property
    def waits(self) -> Stragglers | None:
        """Who waits for whom; None where nothing is matched on two ranks."""
        return stragglers(self.traces, self.matches)

    @cached_property
    def attribution(self) -> Attribution | None:
        """Which operators, modules, named ranges and phases the work belongs to.

        Reads the files again, of XLA not; None where none of them says. Raises TraceError.
        """
        traces = self.traces.whole
        if traces is None or not traces.files:
            return None
        ranges: dict[Path, HostRanges | None] = {}
        files = list(dict.fromkeys(traces.files))
        with progress_bar("reading operators", shown=self.shows_progress) as update:
            for done, file in enumerate(files, 1):
                ranges[file] = read_host_ranges(file, LARGE_LIMITS)
                update(done, len(files))
        aligned = traces.alignment
        offsets_ns = aligned.offsets_ns if aligned else (0,) * len(traces.ranks)
        named = [
            (trace, own and own.shifted(offset_ns))
            for trace, file, offset_ns in zip(traces.ranks, traces.files, offsets_ns, strict=True)
            if ((own := ranges[file]) and own.count) or any(trace.spans.scopes)
        ]
        environment = self.evidence.environment
        return attribute(named, environment.accelerator if environment else "") if named else None


STORED = "trial:"


def open_traces(name: str, store: Path | None = None, *, use_cache: bool = True) -> OpenTraces:
    """The traces in a folder or one file, or those of a trial named `trial:3` or `trial:STUDY:3`.

    A bar on the terminal shows the progress. Raises TraceError for a file that is refused,
    StudyError where there is no such trial, or it left no traces.
    """
    if name.startswith(STORED):
        return open_trial_traces(name.removeprefix(STORED), store)
    with progress_bar() as update:
        traces = read_folder(
            Path(name), use_cache=use_cache, on_file=lambda done, total, _: update(done, total)
        )
    return OpenTraces(
        name=name, evidence=Evidence(traces=traces), traces=traces, shows_progress=True
    )


def open_trial_traces(which: str, store: Path | None) -> OpenTraces:
    """The traces that trial `3` or `STUDY:3` left, with everything else that was measured in it.

    Raises StudyError where there is no such trial, it left no traces, or one is refused.
    """
    study_id, _, number = which.rpartition(":")
    if not number.isdecimal():
        raise StudyError(f"{which!r} names no trial; write trial:3 or trial:STUDY:3")
    with open_store(store) as records:
        row = records.find(study_id)
        trial = records.trial(row.id, int(number))
        if trial is None:
            count = records.counts(row.id).trials
            raise StudyError(f"study {row.id} has no trial {int(number)}; it has {count}")
        return trial_traces(row, trial, records)


def trial_traces(row: StudyRow, trial: Trial, records: Store) -> OpenTraces:
    """The traces that a trial left, with everything else that was measured in it.

    Raises StudyError where it left none, or one is refused, StoreError where one is lost.
    """
    outcome, study = trial.outcome, row.study
    paths = trace_files(study, outcome.artifacts, records.artifacts)
    if not paths:
        raise StudyError(
            f"trial {trial.ordinal} of study {row.id} left no traces; studies with "
            "[measure] profiled_steps above 0 have them in every measured trial"
        )
    names = set(paths.values())
    require_files(row.id, trial.ordinal, [a for a in outcome.artifacts if a.name in names], records)
    name = f"trial {trial.ordinal} of study {row.id}"
    traces = read_stored_traces(paths, name)
    if isinstance(outcome, Measured):
        seen = evidence(study, outcome.measurement, traces)
    else:
        seen = Evidence(traces=traces, workload=study.workload, environment=study.environment)
    return OpenTraces(name=name, evidence=seen, traces=traces)


MOST_READ_BYTES: Final = 32 << 20
"""Larger traces are read on demand only: it takes seconds."""


def small_traces(row: StudyRow, trial: Trial, records: Store) -> OpenTraces:
    """The same where they are read in seconds.

    Raises as `trial_traces`, and StudyError where they are larger.
    """
    size_bytes = sum(a.size_bytes for a in trial.outcome.artifacts if is_trace(a.name, row.study))
    if size_bytes > MOST_READ_BYTES:
        raise StudyError(
            f"The traces are too large to be read here ({format_decimal_bytes(size_bytes)}); see "
            f"cclsearch trace breakdown trial:{row.id}:{trial.ordinal} --timeline timeline.svg"
        )
    return trial_traces(row, trial, records)
