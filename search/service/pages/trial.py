"""One trial.

What a page about one trial shows: its settings, samples, metrics, time and launches.

Files of a trial for a page: what there is, and a part of what its ranks wrote.

A conversation with a model as a person reads it: what was said, in turns, and what it took.

Pages about one trial: everything on record of it, what its ranks wrote, what a model said.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from fastapi import APIRouter, Query, Request, Response
from markupsafe import Markup

from evaluator.failures.logs import signal_name
from records.errors import CodecError, StoreError
from records.llm_exchange import LlmExchange
from records.machine import LaunchRecord, RankEnd
from records.store.rows import ComputedMetric, StudyRow
from records.store.store import Store
from records.study import Llm
from records.trial import Artifact, Config, Measured, MetricValue, Outcome, Purpose, Repeat, Trial
from search.llm.transcripts import RecordedTurn, recorded_turns
from search.loop.budget import cost_usd
from search.report.analysis import time_chart
from search.service.access import Reader, TheService
from search.service.api.studies import disturbed_in, study_short
from search.service.api.trials import Ordinal, bytes_between, exchange_of, file_address, trial_of
from search.service.data import disturbed_trials, repeat_spreads, repeats_of, spread_of_trial
from search.service.models import result_of
from search.service.pages.base import drawing, page, visible
from search.service.pages.study import decision_lines
from search.service.service import MissingError, Service
from search.storage import absence
from search.views.charts import Strip, strip_chart
from search.views.diagnosis import diagnosis_lines, diagnosis_of, diagnosis_words
from search.views.document import metric_words
from search.views.format import (
    absence_lines,
    caveats,
    format_count,
    format_duration,
    format_number,
    one_line,
)
from search.views.machine import conditions_words, machine_line, machine_of

NO_EFFECT = "no effect"
MOST_STRIPS = 24
COMMAND_CHARS = 20_000
SERIES = {
    Purpose.SELF_TEST: "noise",
    Purpose.RACE: "race",
    Purpose.HALVING: "thinning out",
    Purpose.CONFIRM: "confirming",
    Purpose.HELD_OUT: "held out",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A knob of a trial, and what it is elsewhere; None where there is nothing to compare with."""

    knob: str
    value: str
    best: str | None
    parent: str | None

    @property
    def differs(self) -> bool:
        """Whether any of them sets it otherwise."""
        return any(other not in (None, self.value) for other in (self.best, self.parent))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricLine:
    """A metric in the version that counts, and what was computed of it besides."""

    name: str
    words: str
    better: str
    version: int
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLine:
    """How a rank ended, and the first line with which it told of an error."""

    who: str
    how: str
    is_good: bool
    first_error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPart:
    """A launch as someone needs it who wants to make it again."""

    name: str
    command: str
    added: tuple[tuple[str, str], ...]
    facts: tuple[tuple[str, str], ...]
    ranks: tuple[RankLine, ...]


def settings_of(trial: Trial, best: Trial | None, parent: Trial | None) -> tuple[Setting, ...]:
    """Every knob of a trial, beside those of the best and of the trial that it follows."""
    others = [None if other is None else other.config for other in (best, parent)]
    configs = [config for config in (trial.config, *others) if config is not None]
    knobs = dict.fromkeys(knob for config in configs for knob in config)
    return tuple(
        Setting(
            knob=knob,
            value=_set(trial.config, knob) or NO_EFFECT,
            best=_set(others[0], knob),
            parent=_set(others[1], knob),
        )
        for knob in knobs
    )


def _set(config: Config | None, knob: str) -> str | None:
    if config is None:
        return None
    return str(config[knob]) if knob in config.values else NO_EFFECT


def samples_chart(trial: Trial, repeats: Sequence[Repeat]) -> str | None:
    """Step times of every launch of a trial as dots; None where nothing was measured."""
    own = [_strip("own launch", one, inside) for inside, one in _measured(trial.outcome)]
    again = [
        _strip(f"{SERIES[repeat.purpose]} {repeat.series}, round {repeat.round}", one, inside)
        for repeat in repeats
        if repeat.ordinal == trial.ordinal
        for inside, one in _measured(repeat.outcome)
    ]
    strips = [*own, *again[-MOST_STRIPS:]]
    if not any(strip.values for strip in strips):
        return None
    return strip_chart(
        strips,
        title=f"Step times of the launches of trial {trial.ordinal}",
        label="ms per step, of its slowest rank",
    )


def _measured(outcome: Outcome) -> Iterator[tuple[str, Measured]]:
    """What was measured, by the name of the context that it was measured in."""
    if not isinstance(outcome, Measured):
        return
    inside = [(c.name, c.outcome) for c in outcome.contexts if isinstance(c.outcome, Measured)]
    yield from inside or [("", outcome)]


def _strip(name: str, measured: Measured, inside: str) -> Strip:
    times_ms = tuple(1e3 * time_s for time_s in measured.measurement.slowest_rank_s)
    profiled = ", profiled" if measured.measurement.profiled else ""
    where = f" in {inside}" if inside else ""
    return Strip(
        name=f"{name}{where}",
        values=times_ms,
        tip=f"{name}{where}: {format_count(len(times_ms), 'step')}{profiled}",
        is_own=name == "own launch",
    )


def metric_lines(
    values: Sequence[MetricValue], computed: Sequence[ComputedMetric]
) -> tuple[MetricLine, ...]:
    """The newest of each metric, with what every computation afterwards said."""
    return tuple(
        MetricLine(
            name=value.name,
            words=metric_words(value),
            better=value.better,
            version=value.version,
            others=tuple(_computed(each) for each in computed if each.name == value.name),
        )
        for value in values
    )


def _computed(each: ComputedMetric) -> str:
    when = f"version {each.version}, computed {each.computed_at[:10]}"
    if each.value is None:
        return f"{when}: none, {one_line(each.absent or '', 200)}"
    return f"{when}: {format_number(each.value)} {each.unit}".rstrip()


def time_bars(trials: Sequence[Trial | None], best: Trial | None) -> str | None:
    """Where the profiled steps of these trials went; None where the first has none."""
    split = [
        (trial, trial.outcome.breakdown)
        for trial in trials
        if trial is not None
        and isinstance(trial.outcome, Measured)
        and trial.outcome.breakdown is not None
    ]
    if not split or split[0][0] is not trials[0]:
        return None
    distinct = {trial.ordinal: (trial, parts) for trial, parts in split}
    return time_chart(tuple(distinct.values()), None if best is None else best.ordinal)


def launches_of(trial: Trial, row: StudyRow, store: Store) -> tuple[LaunchPart, ...]:
    """How a trial was launched, in each context where a study has several."""
    inside = [(one.name, one.outcome) for one in trial.outcome.contexts]
    return tuple(
        _launch(name, outcome.launched, store)
        for name, outcome in inside or [(row.study.name, trial.outcome)]
        if outcome.launched is not None
    )


def _launch(name: str, launched: LaunchRecord, store: Store) -> LaunchPart:
    return LaunchPart(
        name=name,
        command=shlex.join(launched.argv)[:COMMAND_CHARS],
        added=(
            *launched.environment.items(),
            *((name, f"./{folder}") for name, folder in launched.folders.items()),
        ),
        facts=tuple(_facts(launched, store)),
        ranks=tuple(map(_rank, launched.ranks)),
    )


def _facts(launched: LaunchRecord, store: Store) -> Iterator[tuple[str, str]]:
    yield "on", ", ".join(launched.hosts) or "a host that is not told"
    yield "by", launched.launcher
    if launched.job_id is not None:
        yield "job", launched.job_id
    if launched.cores:
        yield "cores", ", ".join(map(str, launched.cores))
    if launched.devices:
        yield "devices", ", ".join(launched.devices)
    machine = machine_of(launched, store)
    if machine is not None:
        yield "machine", machine_line(machine)
    elif launched.machine is not None:
        yield "machine", "its description is not here any more"
    yield "ended", f"{launched.reason} after {format_number(launched.wall_s)} s"


def _rank(end: RankEnd) -> RankLine:
    if end.signal is not None:
        how = f"by {signal_name(end.signal)}"
    else:
        how = "not told" if end.status is None else f"status {end.status}"
    return RankLine(
        who="the command" if end.rank is None else f"rank {end.rank}",
        how=how,
        is_good=end.status == 0 and end.signal is None,
        first_error=end.first_error,
    )


WINDOW_BYTES = 1 << 16
TAIL_BYTES = 6000
MOST_TAILS = 8
LARGE_BYTES = 16 << 20
"""Logs beyond which a page reads no tail by itself: they are unpacked from their beginning."""
LOGS = (".log", ".stacks.txt")
TRACES = ("_trace.json.gz", "_trace.json", ".trace.json.gz", ".trace.json", ".pftrace")
RANK = re.compile(r"rank(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLine:
    """A file that was kept; `absent` says why it is not there any more."""

    name: str
    size_bytes: int
    sha256: str
    address: str
    is_trace: bool
    is_log: bool
    absent: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """Some whole lines of a log, from one byte to another, with what cannot be seen made visible.

    `fault` says why there are none.
    """

    name: str
    text: str
    start: int
    end: int
    size_bytes: int
    fault: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether nothing comes before or after."""
        return self.start == 0 and self.end == self.size_bytes


def file_lines(study_id: str, trial: Trial, store: Store) -> tuple[FileLine, ...]:
    """Every file of a trial, logs and traces first, each in the order of ranks."""
    lines = [
        FileLine(
            name=artifact.name,
            size_bytes=artifact.size_bytes,
            sha256=artifact.digest,
            address=file_address(study_id, trial.ordinal, artifact),
            is_trace=artifact.name.endswith(TRACES),
            is_log=artifact.name.endswith(LOGS),
            absent=absence(study_id, artifact.digest, store),
        )
        for artifact in trial.outcome.artifacts
    ]
    return tuple(
        sorted(
            lines, key=lambda line: (not line.is_log, not line.is_trace, _trial_files_rank(line))
        )
    )


def _trial_files_rank(line: FileLine) -> tuple[int, str]:
    found = RANK.search(line.name)
    return (int(found[1][:9]) if found else -1), line.name


def log_tails(trial: Trial, lines: tuple[FileLine, ...], store: Store) -> tuple[LogPart, ...]:
    """The ends of the first logs that say anything."""
    told = [line.name for line in lines if line.is_log and line.size_bytes]
    artifacts = {artifact.name: artifact for artifact in trial.outcome.artifacts}
    return tuple(
        _part(artifacts[name], store, None, TAIL_BYTES)
        for name in told[:MOST_TAILS]
        if artifacts[name].size_bytes <= LARGE_BYTES
    )


def log_part(trial: Trial, name: str, end: int | None, store: Store) -> LogPart:
    """The part of a log that ends there, or its last; raises `MissingError`."""
    known = (one for one in trial.outcome.artifacts if one.name == name and name.endswith(LOGS))
    artifact = next(known, None)
    if artifact is None:
        raise MissingError(f"trial {trial.ordinal} has no log of that name")
    return _part(artifact, store, end, WINDOW_BYTES)


def _part(artifact: Artifact, store: Store, end: int | None, most: int) -> LogPart:
    size = artifact.size_bytes
    end = size if end is None else min(max(end, 0), size)
    start = max(0, end - most)
    try:
        content = b"".join(bytes_between(artifact, store, start, end))
    except (StoreError, OSError) as error:
        return LogPart(
            name=artifact.name, text="", start=0, end=0, size_bytes=size, fault=str(error)
        )
    if start > 0:  # it begins with a whole line, unless there is only a part of one
        first = content.find(b"\n") + 1
        content, start = content[first:], start + first
    return LogPart(
        name=artifact.name,
        text=visible(content.decode("utf-8", "replace")).rstrip("\n"),
        start=start,
        end=end,
        size_bytes=size,
    )


MOST_CHARS = 200_000
CUT = "\n[... the rest is in the transcript of the API ...]"

Json: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Something that was said: who said it, of which kind it is, and the text."""

    who: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """Everything said about one trial; `fault` tells why it cannot be read."""

    pieces: tuple[Piece, ...]
    facts: tuple[tuple[str, str], ...]
    fault: str | None = None


def transcript_of(exchange: LlmExchange, llm: Llm) -> Transcript:
    """The conversation, each text once, though every request repeats those before it."""
    facts = tuple(_transcripts_facts(exchange, llm))
    try:
        said = recorded_turns(exchange)
    except CodecError as error:
        return Transcript(pieces=(), facts=facts, fault=str(error))
    return Transcript(pieces=tuple(_pieces(said)), facts=facts)


def _transcripts_facts(exchange: LlmExchange, llm: Llm) -> Iterator[tuple[str, str]]:
    usage = exchange.usage
    yield "model", exchange.model
    if exchange.host is not None:
        yield "provider", exchange.host
    yield "came of it", exchange.result
    yield "requests", str(exchange.request_count)
    yield "took", format_duration(exchange.latency_s)
    yield "tokens in", str(usage.input_tokens)
    yield "tokens from the cache", str(usage.cache_read_tokens)
    yield "tokens into the cache", str(usage.cache_write_tokens)
    yield "tokens out", str(usage.output_tokens)
    cost = cost_usd(usage, exchange.model, llm)
    yield "cost", "price not known" if cost is None else f"{cost:.4g} USD"


def _pieces(said: Sequence[RecordedTurn]) -> Iterator[Piece]:
    system = ""
    before: list[object] = []
    for each in said:
        told = "\n\n".join(text for _, text in _contents(each.body.get("system")))
        if told != system:
            system = told
            yield _piece("instructions", "text", told)
        messages = _list(each.body.get("messages"))
        for message in messages[_shared(before, messages) :]:
            if not before or _role(message) != "assistant":  # it was shown as an answer
                yield from _message(message)
        before = messages
        for answer in each.answers:
            yield from _answer(answer.text, answer.status)


def _shared(before: Sequence[object], now: Sequence[object]) -> int:
    """How many messages at the beginning were there before."""
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
        for kind, told in contents:
            yield _piece("model", kind, told)
        return
    how = "no answer" if status is None else f"HTTP {status}"
    yield _piece("provider", how, text)


def _contents(content: object) -> list[tuple[str, str]]:
    """The kind and the text of every block; a plain text is one."""
    if isinstance(content, str):
        return [("text", content)]
    return [found for block in _list(content) for found in _block(block)]


def _block(block: object) -> Iterator[tuple[str, str]]:
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
            told = "\n".join(text for _, text in _contents(block.get("content")))
            yield "result", told
        case kind:
            yield str(kind)[:40], _text(block)


def _submission(given: object) -> Iterator[tuple[str, str]]:
    """What the model submits: its words, then the program."""
    if not isinstance(given, dict):
        yield "submission", _text(given)
        return
    for name in sorted(given, key=lambda name: (name == "code", str(name))):
        yield (
            ("program" if name == "code" else str(name).replace("_", " ")[:40]),
            _text(given[name]),
        )


def _piece(who: str, kind: str, text: str) -> Piece:
    text = visible(text.encode("utf-8", "replace").decode())
    cut = text if len(text) <= MOST_CHARS else text[:MOST_CHARS] + CUT
    return Piece(who=who, kind=kind, text=cut)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []


router = APIRouter(include_in_schema=False)

MOST_SIBLINGS = 100

End = Annotated[int | None, Query(ge=0, le=1 << 50, description="Byte that the part ends before.")]
FileName = Annotated[str, Query(max_length=400)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFacts:
    """What traces and the machine said of a trial, as far as they were looked at."""

    absent: tuple[str, ...]
    diagnosis: str | None
    diagnosis_lines: tuple[str, ...]
    conditions: str | None


@router.get("/studies/{study_id}/trials/{ordinal}")
def trial(
    request: Request, study_id: str, ordinal: Ordinal, service: TheService, _caller: Reader
) -> Response:
    """One trial in full."""
    row, records = service.study(study_id), service.records
    found, study = trial_of(service, study_id, ordinal), study_short(row, service)
    best = None if study.best_trial is None else records.trial(row.id, study.best_trial)
    parent, files = _parent(found, row, service), file_lines(row.id, found, records)
    return page(
        request,
        "trial.html",
        disturbed=disturbed_in(row, service),
        study=study,
        tab="trials",
        trial=found,
        best=best,
        parent=parent,
        result=result_of(found, spread_of_trial(found, repeat_spreads(row, records))),
        last=records.counts(row.id).trials - 1,
        settings=settings_of(found, best, parent),
        decisions=decision_lines(row, found, records),
        caveats=_caveats(row, found, service),
        samples=_drawn(samples_chart(found, repeats_of(row, records))),
        metrics=metric_lines(
            records.metric_values(row.id, ordinal).get(ordinal, ()),
            records.computed_metrics(row.id, ordinal).get(ordinal, ()),
        ),
        bars=_drawn(time_bars((found, best, parent), best)),
        launches=launches_of(found, row, records),
        files=files,
        logs=log_tails(found, files, records),
        measured=_routes_trial_measured(found),
    )


@router.get("/studies/{study_id}/trials/{ordinal}/log")
def log(
    request: Request,
    study_id: str,
    ordinal: Ordinal,
    service: TheService,
    _caller: Reader,
    name: FileName,
    end: End = None,
) -> Response:
    """A part of what a rank wrote, the last one first."""
    row, found = service.study(study_id), trial_of(service, study_id, ordinal)
    return page(
        request,
        "log.html",
        disturbed=disturbed_in(row, service),
        study=study_short(row, service),
        tab="trials",
        ordinal=ordinal,
        log=log_part(found, name, end, service.records),
    )


@router.get("/studies/{study_id}/trials/{ordinal}/transcript")
def transcript(
    request: Request, study_id: str, ordinal: Ordinal, service: TheService, _caller: Reader
) -> Response:
    """What was asked of a model for a trial, and what it answered."""
    row, exchange = service.study(study_id), exchange_of(service, study_id, ordinal)
    return page(
        request,
        "transcript.html",
        disturbed=disturbed_in(row, service),
        study=study_short(row, service),
        tab="policies",
        ordinal=ordinal,
        transcript=transcript_of(exchange, row.study.llm),
    )


def _parent(trial: Trial, row: StudyRow, service: Service) -> Trial | None:
    """The trial before it that had the policy which its own was made from."""
    parent = trial.policy.parent
    if parent is None:
        return None
    tried = service.records.policy_results(row.id, [parent], MOST_SIBLINGS).get(parent, ())
    before = [result.ordinal for result in tried if result.ordinal < trial.ordinal]
    return service.records.trial(row.id, before[-1]) if before else None


def _routes_trial_measured(trial: Trial) -> MeasuredFacts:
    """What only a measured trial tells."""
    measured = trial.outcome if isinstance(trial.outcome, Measured) else None
    diagnosis = diagnosis_of(trial.outcome)
    conditions = None if measured is None else measured.measurement.conditions
    return MeasuredFacts(
        absent=() if measured is None else tuple(absence_lines(measured.absent)),
        diagnosis=None if diagnosis is None else diagnosis_words(diagnosis),
        diagnosis_lines=() if diagnosis is None else tuple(diagnosis_lines(diagnosis)),
        conditions=None if conditions is None else conditions_words(conditions),
    )


def _caveats(row: StudyRow, trial: Trial, service: Service) -> tuple[str, ...]:
    """What to keep in mind about its result, launches that were disturbed first."""
    found = disturbed_trials((trial,), row, service.records).get(trial.ordinal)
    disturbed = () if found is None else (found.caveat,)
    return (*disturbed, *caveats(trial.outcome))


def _drawn(svg: str | None) -> Markup | None:
    return None if svg is None else drawing(svg)
