"""What comparisons and leaderboards answer, as documented shapes; what does not exist is null."""

from pydantic import BaseModel

from search.service.facts.compared import SettingBeside
from search.service.facts.history import Interval, StudyHistory


class Party(BaseModel):
    """One side of a comparison: its name, and what it sets that the other does not."""

    name: str
    settings: str


class Reading(BaseModel):
    """What one side was measured at, over its launches."""

    centre: float
    low: float | None
    high: float | None
    launch_count: int
    step_count: int | None


class Round(BaseModel):
    """What both sides gave in one round of launches that took turns."""

    round: str
    a: float
    b: float


class Screening(BaseModel):
    """What the steps of one launch each say, which proves nothing; the change from and to."""

    verdict: str
    reason: str
    message: str
    relative_change: tuple[float, float] | None


class Judged(BaseModel):
    """A verdict on B against A; a ratio is what B takes over what A takes, below 1 is better."""

    name: str
    verdict: str
    reason: str
    words: str
    why: str
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    round_count: int
    change: float | None
    a: Reading | None
    b: Reading | None
    rounds: list[Round]
    screening: Screening | None


class Comparison(BaseModel):
    """Everything that is told about two sides; the same as `cclsearch compare --json` prints."""

    a: Party
    b: Party
    quantity: str
    unit: str
    lower_is_better: bool
    margin: float
    alpha: float
    rows: list[Judged]
    counts: dict[str, int]
    only_a: list[str]
    only_b: list[str]
    caveats: list[str]
    next: list[str]


class TrialsCompared(BaseModel):
    """Trial B against trial A."""

    comparison: Comparison
    settings: list[SettingBeside]


class StudySide(BaseModel):
    """A study as one side: its best trial, what that reached, and how the search went."""

    study: str
    best: int | None
    value: Interval | None
    unit: str
    caveats: list[str]
    history: StudyHistory


class StudiesCompared(BaseModel):
    """The best of study B against the best of study A; without a comparison `why` says why."""

    comparison: Comparison | None
    why: str | None
    a: StudySide
    b: StudySide
    settings: list[SettingBeside]


class Work(BaseModel):
    """What submissions of a group did, all of them the same."""

    title: str
    model: str | None
    standard: str | None


class Value(BaseModel):
    """A metric of a submission, with any doubt of it, or why it is absent."""

    unit: str
    better: str
    value: float | None
    absent: str | None
    low: float | None
    high: float | None
    launch_count: int | None
    doubt: str | None


class Mark(BaseModel):
    """Something to know about a submission before it is believed."""

    name: str
    words: str


class Submission(BaseModel):
    """A line of a leaderboard; those that nothing tells apart share a rank."""

    rank: int | None
    name: str
    source: str
    machine: str
    devices: int | None
    software: str
    settings: str
    launches: int | None
    ties: list[str]
    marks: list[Mark]
    metrics: dict[str, Value]


class Group(BaseModel):
    """Submissions that did the same work, best first; `total` of them exist."""

    work: Work
    ranked_by: str | None
    submissions: list[Submission]
    total: int


class Column(BaseModel):
    """A metric with its unit; `defect` is what is wrong with its definition."""

    name: str
    unit: str
    better: str
    defect: str | None


class Board(BaseModel):
    """Some of the groups of a leaderboard, `total` of which exist; the largest come first."""

    items: list[Group]
    total: int
    offset: int
    columns: list[Column]
    rule: str
    marks: dict[str, str]
    notes: list[str]
