"""What a search does now and did last, in words, out of the events that it printed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from evaluator.timing.noise import Noise
from records.codec import from_json
from records.errors import CodecError
from records.study import Measure, Value
from records.trial import Purpose
from search.standing import Race
from search.words.repeat import PURPOSES, noise_words, race_words
from search.words.trial import number, one_line

TAIL_BYTES = 1 << 18
MOST_SAID = 200
WORDS_CHARS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Doing:
    """A trial under way: who proposed it and why, what it sets, how far its launch is."""

    ordinal: int
    author: str = ""
    rationale: str = ""
    config: Mapping[str, Value] = field(default_factory=dict)
    phase: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """An event in words; `kind` is what it is about, `tone` how it is shown."""

    kind: str
    words: str
    tone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """What is under way, what was said last with the newest first, and where the events end."""

    doing: tuple[Doing, ...] = ()
    again: str = ""
    said: tuple[Said, ...] = ()
    end: int = 0


class Event(BaseModel):
    """Fields of the events of `cclsearch run --json`, as far as they are told here."""

    model_config = ConfigDict(extra="ignore")

    event: str = ""
    ordinal: int | None = None
    author: str = ""
    rationale: str = ""
    config: dict[str, bool | int | float | str] | None = None
    phase: str = ""
    why: str = ""
    score: float | None = None
    unit: str | None = None
    status: str = ""
    failure_kind: str | None = None
    message: str | None = None
    best: int | None = None
    broken_limits: list[str] = []
    caveats: list[str] = []
    metrics: dict[str, float] | None = None
    purpose: str = ""
    round: int = 0
    words: str = ""
    stop_reason: str = ""
    sd: float | None = None
    freedom: int = 1


def happening(path: Path, measure: Measure) -> Happening:
    """Read the last events in a file; nothing happens where there is none."""
    lines, end = _tail(path)
    doing: dict[int, Doing] = {}
    said: list[Said] = []
    again = ""
    for line in lines:
        event = _event(line)
        if event is None:
            continue
        again = _again(event, again)
        _follow(event, doing)
        said += _said(event, line, measure)
    return Happening(
        doing=tuple(doing.values()), again=again, said=tuple(reversed(said[-MOST_SAID:])), end=end
    )


def _tail(path: Path) -> tuple[Sequence[bytes], int]:
    """The last whole lines of a file, and the offset behind them."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start = max(0, size - TAIL_BYTES)
            file.seek(start)
            piece = file.read(TAIL_BYTES)
    except OSError:
        return (), 0
    whole, newline, _ = piece.rpartition(b"\n")
    lines = whole.split(b"\n")
    return (lines[1:] if start else lines), start + len(whole) + len(newline)


def _event(line: bytes) -> Event | None:
    try:
        return Event.model_validate_json(line)
    except ValidationError:
        return None  # a library printed it


def _follow(event: Event, doing: dict[int, Doing]) -> None:
    """Keep what is under way up to date with one more event."""
    if event.event in {"study_started", "finished"}:
        doing.clear()
    if event.ordinal is None:
        return
    known = doing.get(event.ordinal)
    match event.event:
        case "trial_started":
            doing[event.ordinal] = Doing(
                ordinal=event.ordinal, author=event.author, rationale=event.rationale
            )
        case "config_decided" if known is not None:
            doing[event.ordinal] = replace(known, config=event.config or {})
        case "phase" if known is not None:
            doing[event.ordinal] = replace(known, phase=event.phase)
        case "trial_finished":
            doing.pop(event.ordinal, None)
        case _:
            pass


def _again(event: Event, before: str) -> str:
    """What is launched again now, if that is what happens."""
    match event.event:
        case "repeat_finished":
            return f"trial {event.ordinal} is launched again, {_purpose(event)}"
        case "phase" if event.ordinal is None:
            return before or "launching again what leads"
        case "trial_started" | "race_decided" | "noise_measured" | "study_started" | "finished":
            return ""
        case _:
            return before


def _said(event: Event, line: bytes, measure: Measure) -> Iterator[Said]:
    match event.event:
        case "study_started":
            yield Said(kind="search", words=one_line(event.why, WORDS_CHARS) or "the search began")
        case "trial_started":
            why = f": {event.rationale}" if event.rationale else ""
            words = f"trial {event.ordinal} is proposed by {event.author}{why}"
            yield Said(kind="proposal", words=one_line(words, WORDS_CHARS))
        case "trial_finished":
            yield _ended(event)
        case "repeat_finished":
            went = f"FAILED {event.failure_kind}" if event.status == "failed" else _step_time(event)
            words = f"trial {event.ordinal} again, {_purpose(event)}, round {event.round + 1}"
            yield Said(kind="again", words=f"{words}: {went}")
        case "noise_measured" if event.sd is not None:
            noise = Noise(sd=event.sd, freedom=event.freedom)
            yield Said(kind="noise", words=noise_words(noise, measure))
        case "race_decided":
            yield from _raced(line)
        case "finished":
            words = f"the search ended: {event.stop_reason}"
            yield Said(kind="search", words=one_line(words, WORDS_CHARS), tone="good")
        case "notice":
            yield Said(kind="notice", words=one_line(event.words, WORDS_CHARS), tone="hold")
        case _:
            pass


def _ended(event: Event) -> Said:
    head = f"trial {event.ordinal}"
    if event.status == "failed" or event.score is None:
        cause = one_line(event.message or "", WORDS_CHARS)
        return Said(kind="trial", words=f"{head} FAILED {event.failure_kind}: {cause}", tone="bad")
    value = f"{number(event.score)} {event.unit or ''}".rstrip()
    leads = event.best == event.ordinal
    more = "; ".join([*event.broken_limits, *event.caveats])
    words = f"{head}: {value}{', best so far' if leads else ''}{f' ({more})' if more else ''}"
    return Said(kind="trial", words=one_line(words, WORDS_CHARS), tone="good" if leads else "")


def _raced(line: bytes) -> Iterator[Said]:
    try:
        race = from_json(Race, line.decode("utf-8", "replace"))
    except CodecError:
        return
    yield Said(kind="race", words=race_words(race))


def _step_time(event: Event) -> str:
    found = (event.metrics or {}).get("step_time")
    return "measured" if found is None else f"step_time {number(found)} s"


def _purpose(event: Event) -> str:
    return PURPOSES[Purpose(event.purpose)] if event.purpose in [*Purpose] else "once more"
