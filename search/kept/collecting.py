"""Frees the space of kept files: of those that no record cites, and by rules, of traces.

A trace that a record cites goes only after the record says so: a process that is killed between
the two leaves a file that the next one removes, never a record that claims what is gone.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from records.artifacts import Kept
from records.citations import Citation
from records.store import Store
from search.kept.traces import is_trace

SAFE_AGE_S = 86_400.0
"""A file that no record cites may be of a trial under way; for a day nobody touches it."""
AT_ONCE = 10_000
_CLOCK_STEP_S = 1e-3
"""Instants on record are cut to milliseconds, those of files are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Which traces that records cite may go, and the words in which the records will tell it.

    Those of the best `keep_best` trials of each study stay, whatever the other rules say; of the
    others those go that are older than `older_than`, and the oldest until all files together take
    no more than `max_bytes`. Where only `keep_best` is given, all others go.
    """

    older_than: timedelta | None = None
    keep_best: int | None = None
    max_bytes: int | None = None
    words: str = ""

    @property
    def is_any(self) -> bool:
        """Whether any is given."""
        return (self.older_than, self.keep_best, self.max_bytes) != (None, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A stored trace that the rules let go, and every record that cites it."""

    kept: Kept
    cited: tuple[Citation, ...]

    @property
    def ended_s(self) -> float:
        """When the last of the trials that cite it ended, in seconds since 1970."""
        return max(
            self.kept.kept_at_s if (ended := _instant(each.ended_at)) is None else ended
            for each in self.cited
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What can go: files that no record cites, files whose removal is on record, and traces.

    `young` is what no record cites yet: a trial under way may do so. `disk_bytes` is what all
    stored files take.
    """

    orphans: tuple[Kept, ...]
    young: tuple[Kept, ...]
    unfinished: tuple[tuple[Kept, float], ...]
    """With the instant before which each must have been kept: who keeps it again wants it."""
    traces: tuple[Trace, ...]
    disk_bytes: int
    rules: Rules = field(default_factory=Rules)


def planned(records: Store, rules: Rules, safe_age_s: float = SAFE_AGE_S) -> Plan:
    """Look what can go; nothing is changed."""
    files = list(records.artifacts.all())
    uncited = records.citations.uncited({kept.digest for kept in files})
    loose = [*records.artifacts.leftovers(), *(kept for kept in files if kept.digest in uncited)]
    safe_s = time.time() - safe_age_s
    cited = _cited(records, [kept for kept in files if kept.digest not in uncited])
    unfinished = _unfinished(records, files, cited)
    gone = {*uncited, *(kept.digest for kept, _ in unfinished)}
    traces: Sequence[Trace] = ()
    if rules.is_any:
        staying = [kept for kept in files if kept.digest not in gone]
        traces = _chosen(records, staying, cited, rules)
    return Plan(
        orphans=tuple(kept for kept in loose if kept.kept_at_s < safe_s),
        young=tuple(kept for kept in loose if kept.kept_at_s >= safe_s),
        unfinished=tuple(unfinished),
        traces=tuple(traces),
        disk_bytes=sum(kept.disk_bytes for kept in files),
        rules=rules,
    )


def collect(records: Store, plan: Plan, safe_age_s: float = SAFE_AGE_S) -> tuple[int, int]:
    """Remove what a plan says, and give how many files went and how many bytes they took.

    Raises `StoreError` where that cannot be recorded or done.
    """
    safe_s = time.time() - safe_age_s
    removable = [(kept, safe_s) for kept in plan.orphans]
    removable += plan.unfinished
    by_study: dict[str, list[str]] = defaultdict(list)
    for trace in plan.traces:
        for study_id in {each.study_id for each in trace.cited}:
            by_study[study_id].append(trace.kept.digest)
    removed_at = min(
        (
            records.remove_files(study_id, digests[start : start + AT_ONCE], plan.rules.words)
            for study_id, digests in sorted(by_study.items())
            for start in range(0, len(digests), AT_ONCE)
        ),
        default="",
    )
    removable += [(trace.kept, _before_s(removed_at)) for trace in plan.traces]
    gone = [kept for kept, before_s in removable if records.artifacts.remove(kept, before_s)]
    return len(gone), sum(kept.disk_bytes for kept in gone)


def _cited(records: Store, files: Iterable[Kept]) -> Mapping[str, Sequence[Citation]]:
    """Who cites these files."""
    cited: dict[str, list[Citation]] = {kept.digest: [] for kept in files}
    for citation in records.citations.all() if cited else ():
        if citation.digest in cited:
            cited[citation.digest].append(citation)
    return cited


def _unfinished(
    records: Store, files: Iterable[Kept], cited: Mapping[str, Sequence[Citation]]
) -> list[tuple[Kept, float]]:
    """Files that are there though every study that cites them says that they were removed."""
    told: dict[str, dict[str, str]] = defaultdict(dict)
    for removal in records.citations.removals():
        told[removal.digest][removal.study_id] = removal.removed_at
    found: list[tuple[Kept, float]] = []
    for kept in files:
        tellers = told.get(kept.digest, {})
        if tellers and all(each.study_id in tellers for each in cited.get(kept.digest, ())):
            before_s = _before_s(min(tellers.values()))
            if kept.kept_at_s < before_s:
                found.append((kept, before_s))
    return found


def _chosen(
    records: Store, files: Sequence[Kept], cited: Mapping[str, Sequence[Citation]], rules: Rules
) -> Sequence[Trace]:
    """The traces that the rules let go, the oldest first."""
    studies = {row.id: row.study for row in records.studies()}
    best = {
        study_id: set(records.leading(study_id, rules.keep_best)) if rules.keep_best else set()
        for study_id in studies
    }
    traces = sorted(
        (
            Trace(kept=kept, cited=tuple(cited[kept.digest]))
            for kept in files
            if cited[kept.digest]
            and all(
                is_trace(each.name, studies[each.study_id])
                and each.ordinal not in best[each.study_id]
                for each in cited[kept.digest]
            )
        ),
        key=lambda trace: trace.ended_s,
    )
    if rules.older_than is None and rules.max_bytes is None:
        return traces
    now_s, left_bytes = time.time(), sum(kept.disk_bytes for kept in files)
    chosen: list[Trace] = []
    for trace in traces:
        age = timedelta(seconds=now_s - trace.ended_s)
        is_old = rules.older_than is not None and age > rules.older_than
        if is_old or (rules.max_bytes is not None and left_bytes > rules.max_bytes):
            chosen.append(trace)
            left_bytes -= trace.kept.disk_bytes
    return chosen


def _before_s(removed_at: str) -> float:
    return (_instant(removed_at) or 0.0) + _CLOCK_STEP_S


def _instant(text: str | None) -> float | None:
    """Seconds since 1970; None for what is no instant, as a trial from elsewhere may have."""
    try:
        told = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return (told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp()
