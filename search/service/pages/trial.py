"""The pages of one trial: everything recorded about it, its logs, and its LLM transcript."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated, TypeAlias
from urllib.parse import quote

from fastapi import APIRouter, Query, Response

from records.errors import CodecError, StoreError
from records.llm_exchange import LlmExchange
from records.store.rows import StudyRow
from records.store.store import Store
from records.study import Llm
from records.trial import Artifact, Measured, Outcome, Purpose, Repeat, Trial
from search.llm.transcripts import RecordedTurn, recorded_turns
from search.loop.budget import cost_usd
from search.report.analysis import time_chart
from search.report.data import trial_record
from search.report.explored import repeats_of
from search.service.api.trials import (
    Ordinal,
    bytes_between,
    exchange_of,
    file_address,
    trial_of,
)
from search.service.models import result_of
from search.service.pages.base import OneStudy, visible
from search.service.service import MissingError
from search.storage import absence, is_trace
from search.views.charts import Row, rows_chart
from search.views.document import Chart, Facts
from search.views.format import format_count, format_duration, format_number
from search.views.svg import ChartAxis, LegendEntry
from search.views.trial import Line, trial_document

router = APIRouter(include_in_schema=False)

OWN_SECTIONS = frozenset({"files", "program"})
"""The page has them in forms that only a page can have: with buttons, and folded."""
MOST_STRIPS = 24
MOST_DOTS = 200
SAMPLE_KEYS = (
    LegendEntry(name="step", kind="measured", shape="dot"),
    LegendEntry(name="median", kind="best", shape="line"),
)
WINDOW_BYTES = 1 << 16
TAIL_BYTES = 6000
MOST_TAILS = 8
LARGE_BYTES = 16 << 20
"""The page shows no tail of larger logs, because they are unpacked from their beginning."""
LOGS = (".log", ".stacks.txt")
TRACES = ("_trace.json.gz", "_trace.json", ".trace.json.gz", ".trace.json", ".pftrace")
RANK = re.compile(r"rank(\d+)")
MOST_CHARS = 200_000
CUT = "\n[... the rest is in the transcript of the API ...]"
SERIES = {
    Purpose.SELF_TEST: "noise",
    Purpose.RACE: "race",
    Purpose.HALVING: "halving",
    Purpose.CONFIRM: "confirmation",
    Purpose.HELD_OUT: "held out",
}

End = Annotated[int | None, Query(ge=0, le=1 << 50, description="Byte that the part ends before.")]
FileName = Annotated[str, Query(max_length=400)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """Whole lines of a log between two bytes, control characters made visible.

    `fault` says why there are none.
    """

    name: str
    size_bytes: int
    text: str = ""
    start: int = 0
    end: int = 0
    fault: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether nothing comes before or after."""
        return self.start == 0 and self.end == self.size_bytes


Piece: TypeAlias = tuple[str, str, str]
"""A part of a conversation: who wrote it, of which kind it is, and the text."""


@router.get("/studies/{study_id}/trials/{ordinal}")
def trial(at: OneStudy, ordinal: Ordinal) -> Response:
    """Show one trial in full."""
    row, records = at.row, at.records
    found, best = trial_of(at.service, row.id, ordinal), at.best()
    artifacts = sorted(found.outcome.artifacts, key=_file_order)
    record = trial_record(row, found, best, records)
    charts = {
        "samples": _samples_chart(found, repeats_of(row, records)),
        "time": _time_chart((found, best, record.parent), best, f"/studies/{row.id}/trials/"),
    }
    document = trial_document(record, {name: drawn for name, drawn in charts.items() if drawn})
    return at.page(
        "trial.html",
        "trials",
        trial=found,
        best=best,
        parent=record.parent,
        result=result_of(found, record.reached),
        last=records.counts(row.id).trials - 1,
        sections=[each for each in document.sections if each.name not in OWN_SECTIONS],
        files=[
            {
                "artifact": each,
                "address": file_address(row.id, ordinal, each),
                "is_trace": each.name.endswith(TRACES),
                "is_log": each.name.endswith(LOGS),
                "absent": absence(row.id, each.digest, records),
            }
            for each in artifacts
        ],
        logs=_log_tails(artifacts, records),
        is_profiled=isinstance(found.outcome, Measured) and found.outcome.breakdown is not None,
        merged_trace=_merged_address(found, row),
    )


@router.get("/studies/{study_id}/trials/{ordinal}/timeline")
def timeline(at: OneStudy, ordinal: Ordinal) -> Response:
    """Show what each rank did in one step; read apart from the trial, as traces take a while."""
    found = trial_of(at.service, at.row.id, ordinal)
    shown = at.service.writing.timeline(at.service.store, at.row, found.ordinal)
    return at.page("timeline.html", "trials", ordinal=ordinal, shown=shown)


@router.get("/studies/{study_id}/trials/{ordinal}/log")
def log(at: OneStudy, ordinal: Ordinal, name: FileName, end: End = None) -> Response:
    """Show a part of a log, the last one first; raise `MissingError` for other names."""
    found = trial_of(at.service, at.row.id, ordinal)
    known = (one for one in found.outcome.artifacts if one.name == name and name.endswith(LOGS))
    artifact = next(known, None)
    if artifact is None:
        raise MissingError(f"trial {ordinal} has no log of that name")
    part = _log_part(artifact, at.records, end, WINDOW_BYTES)
    return at.page("log.html", "trials", ordinal=ordinal, log=part)


@router.get("/studies/{study_id}/trials/{ordinal}/transcript")
def transcript(at: OneStudy, ordinal: Ordinal) -> Response:
    """Show the conversation with the model that proposed a trial."""
    exchange = exchange_of(at.service, at.row.id, ordinal)
    pieces, fault = list[Piece](), None
    try:
        pieces += _pieces(recorded_turns(exchange))
    except CodecError as error:
        fault = str(error)
    return at.page(
        "transcript.html",
        "policies",
        ordinal=ordinal,
        pieces=pieces,
        facts=_exchange_facts(exchange, at.row.study.llm),
        fault=fault,
    )


def _merged_address(trial: Trial, row: StudyRow) -> str | None:
    """Return where the traces of all ranks are served as one; None with fewer than two."""
    traces = [a for a in trial.outcome.artifacts if is_trace(a.name, row.study)]
    address = f"/api/v1/studies/{quote(row.id)}/trials/{trial.ordinal}/trace"
    return address if len(traces) > 1 else None


def _samples_chart(trial: Trial, repeats: Sequence[Repeat]) -> Chart | None:
    """Draw the step times of every launch of a trial; None where nothing was measured."""
    own = [_strip("first launch", one, inside) for inside, one in _measured(trial.outcome)]
    again = [
        _strip(f"{SERIES[repeat.purpose]} {repeat.series}, round {repeat.round}", one, inside)
        for repeat in repeats
        if repeat.ordinal == trial.ordinal
        for inside, one in _measured(repeat.outcome)
    ]
    strips = [*own, *again[-MOST_STRIPS:]]
    if not any(strip.points for strip in strips):
        return None
    drawn = rows_chart(
        strips,
        ChartAxis(label="ms per step, of its slowest rank"),
        SAMPLE_KEYS,
        title=f"Step times of the launches of trial {trial.ordinal}",
    )
    return Chart(
        drawn=drawn,
        about="Every timed step of each launch; the line is the median. Verdicts rest on repeated "
        "launches, not on a single one.",
    )


def _measured(outcome: Outcome) -> Iterator[tuple[str, Measured]]:
    """Yield what was measured, by the name of its context."""
    if not isinstance(outcome, Measured):
        return
    inside = [(c.name, c.outcome) for c in outcome.contexts if isinstance(c.outcome, Measured)]
    yield from inside or [("", outcome)]


def _strip(name: str, measured: Measured, inside: str) -> Row:
    times_ms = tuple(1e3 * time_s for time_s in measured.measurement.slowest_rank_s)
    profiled = ", profiled" if measured.measurement.profiled else ""
    where = f" in {inside}" if inside else ""
    middle = f", median {format_number(median(times_ms))} ms" if times_ms else ""
    return Row(
        name=f"{name}{where}",
        points=times_ms[:: max(1, -(-len(times_ms) // MOST_DOTS))],
        middle=median(times_ms) if times_ms else None,
        tip=f"{name}{where}: {format_count(len(times_ms), 'step')}{profiled}{middle}",
        is_best=name == "first launch",
    )


def _time_chart(trials: Sequence[Trial | None], best: Trial | None, links: str) -> Chart | None:
    """Draw where the profiled steps of these trials went; None where the first has none."""
    split = {
        trial.ordinal: (trial, trial.outcome.breakdown)
        for trial in trials
        if trial is not None
        and isinstance(trial.outcome, Measured)
        and trial.outcome.breakdown is not None
    }
    if trials[0] is None or trials[0].ordinal not in split:
        return None
    return Chart(
        drawn=time_chart(tuple(split.values()), None if best is None else best.ordinal, links),
        about="Parts of a profiled step, which includes profiler overhead; communication that "
        "overlaps compute is hatched.",
    )


def _file_order(artifact: Artifact) -> tuple[bool, bool, int, str]:
    """Order logs and traces first, each by ranks."""
    name = artifact.name
    found = RANK.search(name)
    rank = int(found[1][:9]) if found else -1
    return not name.endswith(LOGS), not name.endswith(TRACES), rank, name


def _log_tails(artifacts: Sequence[Artifact], store: Store) -> list[LogPart]:
    """Return the ends of the first logs that are not empty."""
    logs = [each for each in artifacts if each.name.endswith(LOGS) and each.size_bytes]
    return [
        _log_part(artifact, store, None, TAIL_BYTES)
        for artifact in logs[:MOST_TAILS]
        if artifact.size_bytes <= LARGE_BYTES
    ]


def _log_part(artifact: Artifact, store: Store, end: int | None, most: int) -> LogPart:
    """Return at most `most` bytes of a log that end at `end`, or at its end."""
    size = artifact.size_bytes
    end = size if end is None else min(max(end, 0), size)
    start = max(0, end - most)
    try:
        content = b"".join(bytes_between(artifact, store, start, end))
    except (StoreError, OSError) as error:
        return LogPart(name=artifact.name, size_bytes=size, fault=str(error))
    if start > 0:  # begin with a whole line, unless there is only a part of one
        first = content.find(b"\n") + 1
        content, start = content[first:], start + first
    return LogPart(
        name=artifact.name,
        size_bytes=size,
        text=visible(content.decode("utf-8", "replace")).rstrip("\n"),
        start=start,
        end=end,
    )


def _exchange_facts(exchange: LlmExchange, llm: Llm) -> Facts:
    usage, cost = exchange.usage, cost_usd(exchange.usage, exchange.model, llm)
    lines = (
        ("model", exchange.model),
        ("provider", exchange.host or "unknown"),
        ("result", exchange.result),
        ("requests", str(exchange.request_count)),
        ("time", format_duration(exchange.latency_s)),
        ("tokens in", str(usage.input_tokens)),
        ("tokens from the cache", str(usage.cache_read_tokens)),
        ("tokens into the cache", str(usage.cache_write_tokens)),
        ("tokens out", str(usage.output_tokens)),
        ("cost", "price not known" if cost is None else f"{cost:.4g} USD"),
    )
    return Facts(lines=lines)


def _pieces(turns: Sequence[RecordedTurn]) -> Iterator[Piece]:
    """Yield each text once, though every request repeats those before it."""
    system = ""
    before: list[object] = []
    for turn in turns:
        text = "\n\n".join(text for _, text in _contents(turn.body.get("system")))
        if text != system:
            system = text
            yield _piece("instructions", "text", text)
        messages = _list(turn.body.get("messages"))
        for message in messages[_shared_count(before, messages) :]:
            if not before or _role(message) != "assistant":  # it was shown as an answer
                yield from _message(message)
        before = messages
        for answer in turn.answers:
            yield from _answer(answer.text, answer.status)


def _shared_count(before: Sequence[object], now: Sequence[object]) -> int:
    """Return how many messages at the beginning were there before."""
    pairs = enumerate(zip(before, now, strict=False))
    return next(
        (place for place, (one, other) in pairs if one != other), min(len(before), len(now))
    )


def _role(message: object) -> object:
    return message.get("role") if isinstance(message, dict) else None


def _message(message: object) -> Iterator[Piece]:
    if isinstance(message, dict):
        who = "cclsearch" if _role(message) == "user" else "model, earlier"
        for kind, text in _contents(message.get("content")):
            yield _piece(who, kind, text)


def _answer(text: str, status: int | None) -> Iterator[Piece]:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    contents = _contents(body.get("content")) if isinstance(body, dict) else []
    if status == 200 and contents:
        for kind, content in contents:
            yield _piece("model", kind, content)
        return
    yield _piece("provider", "no answer" if status is None else f"HTTP {status}", text)


def _contents(content: object) -> list[Line]:
    """Return the kind and the text of every block; a plain text is one."""
    if isinstance(content, str):
        return [("text", content)]
    return [found for block in _list(content) for found in _block(block)]


def _block(block: object) -> Iterator[Line]:
    if not isinstance(block, dict):
        return
    match block.get("type"):
        case "text":
            yield "text", _text(block.get("text"))
        case "thinking":
            yield "thoughts", _text(block.get("thinking"))
        case "tool_use":
            yield from _submission(block.get("input"))
        case "tool_result":
            yield "result", "\n".join(text for _, text in _contents(block.get("content")))
        case kind:
            yield str(kind)[:40], _text(block)


def _submission(given: object) -> Iterator[Line]:
    """Yield the fields that the model submits, the program last."""
    if not isinstance(given, dict):
        yield "submission", _text(given)
        return
    for name in sorted(given, key=lambda name: (name == "code", str(name))):
        kind = "program" if name == "code" else str(name).replace("_", " ")[:40]
        yield kind, _text(given[name])


def _piece(who: str, kind: str, text: str) -> Piece:
    text = visible(text.encode("utf-8", "replace").decode())
    return who, kind, text if len(text) <= MOST_CHARS else text[:MOST_CHARS] + CUT


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []
