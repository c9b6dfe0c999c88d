"""A trial in every view: one table of its facts, and one document of its sections.

Terminal, page, report, JSON, CSV, data frames and prompt read these. Nothing here reads a store.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import Final, TypeAlias

from evaluator.metrics.base import Absent
from evaluator.timing.decision import Spread
from records.expression import format_bytes
from records.machine import Machine
from records.store.rows import ComputedMetric
from records.study import Study, Value
from records.trial import (
    Artifact,
    Config,
    Failed,
    Measured,
    MetricValue,
    Outcome,
    TrafficResult,
    Trial,
)
from search.views.diagnosis import diagnosis_lines, diagnosis_of, diagnosis_words
from search.views.document import (
    DIFFERS,
    Block,
    Cell,
    Chart,
    Code,
    Document,
    Facts,
    Paragraph,
    Section,
    Table,
    TableRow,
    code,
    metric_cell,
    number,
)
from search.views.format import (
    NO_CONFIG,
    absence_lines,
    author,
    caveats,
    centre_words,
    format_breakdown,
    format_breakdown_briefly,
    format_count,
    format_instant,
    format_number,
    line_words,
    message_words,
    one_line,
    remarks,
    score_words,
    spread_words,
    support_words,
)
from search.views.machine import Disturbed, conditions_words, launch_facts, versions_words
from search.views.study import InContextResult

TEXT_CHARS = 2000
REMARK_CHARS = 300
NOT_SET = "not set"

Line: TypeAlias = tuple[str, str]
"""A label and its text."""


Reached: TypeAlias = Spread | None
"""What a trial reached over the launches that count; None without a score."""
Get: TypeAlias = Callable[[Trial, Reached], object]


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact: programs read `value` as `key`, people read `words` as `label`.

    Without a label only programs read it. One with a `unit` is a number that tables and prompts
    show of each trial; its `value` may be `Absent`.
    """

    key: str
    value: Get
    label: str = ""
    words: Get | None = None
    _: KW_ONLY
    unit: str = ""

    @property
    def heading(self) -> str:
        """The heading of its column."""
        return f"{self.key} [{self.unit}]"

    def lines(self, trial: Trial, reached: Reached) -> Iterator[Line]:
        """Yield what people read; nothing where there is no such fact."""
        found = (self.words or self.value)(trial, reached)
        for each in found if isinstance(found, tuple | list) else (found,):
            match each:
                case None | "":
                    pass
                case Absent(reason=reason):
                    yield self.label, f"none, {reason}"
                case int() | float():
                    yield self.label, f"{format_number(each)} {self.unit}".rstrip()
                case _ if self.key.endswith("_at"):
                    yield self.label, format_instant(str(each))
                case _:
                    yield self.label, one_line(str(each), TEXT_CHARS)


def result_words(trial: Trial, reached: Reached) -> str | None:
    """Return what a trial reached with its launches; None without a score."""
    return None if reached is None else spread_words(reached, _unit(trial) or "")


def _unit(trial: Trial) -> str | None:
    return trial.score.unit if trial.score else None


def _first_launch(trial: Trial, reached: Reached) -> str | None:
    if trial.score is None or reached is None or reached.launch_count == 1:
        return None
    return f"{score_words(trial.score)}, not counted with the repeats"


def _failure(trial: Trial, _: Reached) -> str | None:
    failed = trial.outcome
    return f"{failed.kind} at {failed.stage}" if isinstance(failed, Failed) else None


def _expected(trial: Trial, _: Reached) -> str | None:
    found = trial.policy.prediction
    return None if found is None else f"{found.speedup:.2f} times as good as trial {found.over}"


def _energy_per_step(trial: Trial, _: Reached) -> float | Absent | None:
    if not isinstance(trial.outcome, Measured):
        return None
    measurement = trial.outcome.measurement
    if measurement.energy_j is None:
        return Absent("NVML reported no energy of its devices")
    return measurement.energy_j / len(measurement.slowest_rank_s)


LAUNCH: Final[Mapping[str, Callable[[Outcome], object]]] = {
    "status": lambda of: of.status,
    "failure_kind": lambda of: of.kind.value if isinstance(of, Failed) else None,
    "failure_stage": lambda of: of.stage.value if isinstance(of, Failed) else None,
    "message": lambda of: of.message if isinstance(of, Failed) else None,
    "metrics": lambda of: (
        {each.name: each.value for each in of.metrics} if isinstance(of, Measured) else None
    ),
    "traffic": lambda of: (
        [asdict(each) for each in of.measurement.traffic] if isinstance(of, Measured) else []
    ),
    "caveats": lambda of: list(caveats(of)),
}
"""The facts of any launch, of a repeat too, by key."""


def _of_launch(key: str, label: str = "", words: Get | None = None) -> Fact:
    return Fact(key, lambda trial, _: LAUNCH[key](trial.outcome), label, words)


RESULT: Final = (
    Fact("score", lambda _, reached: reached and reached.centre, "result", result_words),
    Fact("low", lambda _, reached: reached and reached.low),
    Fact("high", lambda _, reached: reached and reached.high),
    Fact("launches", lambda _, reached: reached and reached.launch_count),
    Fact("both", lambda _, reached: reached and reached.both),
    Fact("unit", lambda trial, _: _unit(trial)),
)
"""What a trial reached; `low` and `high` bound the 95 % interval of `score` over its `launches`.

Of two launches there are `both` values instead.
"""
RESULT_KEYS: Final = frozenset(fact.key for fact in RESULT)

OUTCOME: Final = (
    Fact("config", lambda of, _: of.config and dict(of.config.values)),
    _of_launch("status"),
    _of_launch("failure_kind", "failed", _failure),
    _of_launch("failure_stage"),
    _of_launch("message", "first cause"),
    *RESULT,
    Fact(
        "first_launch",
        lambda of, _: of.score and of.score.value,
        "first launch",
        _first_launch,
    ),
    Fact(
        "broken_limits",
        lambda trial, _: [*trial.score.broken] if trial.score else [],
        "breaks a limit",
    ),
    Fact("energy_per_step", _energy_per_step, "energy per step", unit="J"),
    _of_launch("metrics"),
    _of_launch("traffic"),
    _of_launch("caveats", "caveat"),
)
PROPOSAL: Final = (
    Fact("author", lambda of, _: of.policy.author, "by"),
    Fact("rationale", lambda of, _: of.policy.rationale, "rationale"),
    Fact(
        "expected_speedup",
        lambda of, _: of.policy.prediction and of.policy.prediction.speedup,
        "expected",
        _expected,
    ),
    Fact("expected_over", lambda of, _: of.policy.prediction and of.policy.prediction.over),
    Fact("policy", lambda of, _: of.policy.digest, "policy"),
    Fact("parent", lambda of, _: of.policy.parent),
    Fact("exchange", lambda of, _: of.exchange),
    Fact("started_at", lambda of, _: of.started_at, "started"),
    Fact("ended_at", lambda of, _: of.ended_at, "ended"),
    Fact("attempts", lambda of, _: of.attempts, "launches"),
    Fact("lost_launches", lambda of, _: [*of.lost_launches], "lost launch"),
)
FACTS: Final = (Fact("ordinal", lambda of, _: of.ordinal), *OUTCOME, *PROPOSAL)
"""Every fact about a trial, in the order in which it is shown; a new one is one more entry."""
DETAIL: Final = frozenset(
    (
        *("first_launch", "rationale", "expected_speedup", "expected_over"),
        *("parent", "exchange", "attempts", "lost_launches", "traffic"),
    )
)
"""Keys of facts that lists go without."""
NUMBERS: Final = tuple(fact for fact in FACTS if fact.unit)


def trial_facts(
    trial: Trial, reached: Reached = None, *, detail: bool = False
) -> dict[str, object]:
    """Return the facts of a trial for programs, in `detail` or for a list; what is absent is None.

    Where a number is missing for a reason, `absences` has it.
    """
    values = {
        fact.key: fact.value(trial, reached) for fact in FACTS if detail or fact.key not in DETAIL
    }
    return {key: None if isinstance(found, Absent) else found for key, found in values.items()}


def outcome_facts(outcome: Outcome) -> dict[str, object]:
    """Return the facts of a launch for programs."""
    return {key: value(outcome) for key, value in LAUNCH.items()}


def absences(trial: Trial) -> dict[str, str]:
    """Return why metrics and other numbers of a measured trial have no value, by name."""
    found = dict(trial.outcome.absent) if isinstance(trial.outcome, Measured) else {}
    for fact in NUMBERS:
        match fact.value(trial, None):
            case Absent(reason=reason):
                found[fact.key] = reason
    return found


def fact_lines(facts: Sequence[Fact], trial: Trial, reached: Reached = None) -> list[Line]:
    """Return what people read of these facts."""
    return [line for fact in facts if fact.label for line in fact.lines(trial, reached)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTrial:
    """A trial with what a row of a table shows of it; `settings` as text, `metrics` by name."""

    trial: Trial
    reached: Reached
    settings: str = ""
    metrics: Mapping[str, MetricValue] = field(default_factory=dict)
    disturbed: Disturbed | None = None
    is_best: bool = False


def _number_cell(fact: Fact, of: ListedTrial) -> Cell:
    """Return a number for a column headed by its unit; empty where it is absent."""
    value = fact.value(of.trial, None)
    return number(value if isinstance(value, int | float) else None)


CELLS: Final[Mapping[str, Callable[[ListedTrial], Cell | str]]] = {
    "ordinal": lambda of: number(of.trial.ordinal),
    "author": lambda of: author(of.trial),
    "settings": lambda of: code(of.settings),
    "score": lambda of: _reached_cell(of, ""),
    "result": lambda of: _reached_cell(of, _unit(of.trial) or ""),
    "launches": lambda of: (
        number(of.reached.launch_count, support_words(of.reached)) if of.reached else number(None)
    ),
    **{fact.key: partial(_number_cell, fact) for fact in NUMBERS},
    "remarks": lambda of: remarks_words(of.trial, of.disturbed),
}
"""The columns of tables of trials, besides one for each knob and metric.

A `result` has its unit; that of a `score` is in its heading.
"""


def known_numbers(trials: Iterable[Trial]) -> list[Fact]:
    """Return the numbers that any of these trials has."""
    listed = [ListedTrial(trial=trial, reached=None) for trial in trials]
    return [fact for fact in NUMBERS if any(_number_cell(fact, each).text for each in listed)]


def trial_table(about: str, columns: Mapping[str, str], trials: Iterable[ListedTrial]) -> Table:
    """Return a row for each trial; `columns` are headings by `CELLS`, `config.X` or `metric.X`."""
    return Table(
        about=about,
        headings=tuple(columns.values()),
        rows=tuple(
            TableRow.of(
                *(_cell(key, each) for key in columns),
                tone="best" if each.is_best else "failed" if _failure(each.trial, None) else "",
                anchor=f"trial-{each.trial.ordinal}",
            )
            for each in trials
        ),
        is_long=True,
    )


def _cell(key: str, of: ListedTrial) -> Cell | str:
    match key.partition("."):
        case "metric", ".", name:
            return metric_cell(of.metrics.get(name))
        case "config", ".", name:
            value = None if of.trial.config is None else of.trial.config.values.get(name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return Cell(text="" if value is None else str(value), is_number=is_number)
        case _:
            return CELLS[key](of)


def _reached_cell(of: ListedTrial, unit: str) -> Cell:
    return number(of.reached.centre, centre_words(of.reached, unit)) if of.reached else number(None)


def remarks_words(trial: Trial, disturbed: Disturbed | None = None) -> str:
    """Return why a trial failed; else that launches were disturbed, and caveats of its result."""
    if isinstance(trial.outcome, Failed):
        where = "" if trial.config is not None else f" {NO_CONFIG}"
        return one_line(f"{trial.outcome.kind}: {trial.outcome.message}{where}", REMARK_CHARS)
    counted = [] if disturbed is None else [disturbed.count_words]
    return one_line("; ".join((*counted, *remarks(trial))), REMARK_CHARS)


def trial_row(
    trial: Trial,
    reached: Reached,
    settings: str,
    *,
    metrics: Set[str],
    message_chars: int,
    brief: bool = False,
    against: str = "",
    cause: str | None = None,
) -> str:
    """Return a trial on one line for a prompt: who set what, and what it reached or why it failed.

    `metrics` follow the score, `brief` leaves names of parts out, `against` compares it with
    another. `cause` replaces a failure's message, which is omitted where it is empty.
    """
    match trial.outcome:
        case Failed(stage=stage, kind=kind, message=message):
            whose = " (not the configuration's fault)" if kind.is_infrastructure else ""
            why = one_line(message, message_chars) if cause is None else cause
            ended = f"FAILED {kind} at {stage}{whose}{f': {why}' if why else ''}"
        case Measured() as measured:
            parts = _row_parts(trial, reached, measured, metrics, brief=brief)
            ended = "; ".join(filter(None, (against, *parts)))
    return f"#{trial.ordinal} {author(trial)}: {settings} -> {ended}"


def _row_parts(
    trial: Trial, reached: Reached, measured: Measured, metrics: Set[str], *, brief: bool
) -> Iterator[str]:
    if reached is not None:
        yield line_words(reached, _unit(trial) or "")
    elif trial.score is not None:
        yield score_words(trial.score)
    for value in measured.metrics:
        if value.name in metrics:
            yield f"{value.name} {format_number(value.value)} {value.unit}".rstrip()
    if measured.breakdown is not None:
        format_parts = format_breakdown_briefly if brief else format_breakdown
        yield format_parts(measured.breakdown)
    peak_bytes = max(measured.measurement.peak_memory_bytes, default=0)
    if peak_bytes:
        yield f"{'' if brief else 'peak memory '}{format_bytes(peak_bytes)}"
    if measured.measurement.message_times_s:
        times_s = ", ".join(map(format_number, measured.measurement.message_times_s))
        yield f"one call of each message takes {times_s} s"
    numbers = [fact for fact in NUMBERS if not isinstance(fact.value(trial, reached), Absent)]
    yield from (f"{label} {words}" for label, words in fact_lines(numbers, trial))
    yield from remarks(trial)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """A trial with all that its document shows.

    `decisions` are what was found about it beyond its launches, `computed` its metrics as computed
    later, `machines` by digest. `places` says where its files are, or why one is missing, by name.
    """

    study_id: str
    study: Study
    trial: Trial
    reached: Reached
    best: Trial | None = None
    parent: Trial | None = None
    decisions: tuple[Line, ...] = ()
    disturbed: Disturbed | None = None
    contexts: tuple[InContextResult, ...] = ()
    metrics: tuple[MetricValue, ...] = ()
    computed: tuple[ComputedMetric, ...] = ()
    machines: Mapping[str, Machine | None] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)


def trial_document(of: TrialRecord, charts: Mapping[str, Chart] | None = None) -> Document:
    """Return a trial in sections; `charts` begin the sections of their names."""
    drawn = charts or {}
    files = of.trial.outcome.artifacts
    disturbed = [] if of.disturbed is None else [("caveat", of.disturbed.caveat)]
    contexts = [(f"in context {found.name}", found.words) for found in of.contexts]
    results = fact_lines(OUTCOME, of.trial, of.reached)
    outcome = [*results, *disturbed, *of.decisions, *contexts]
    parts: list[tuple[str, str, Sequence[Block]]] = [
        ("outcome", "Outcome", [Facts(lines=tuple(outcome))]),
        ("proposal", "Proposal", [Facts(lines=tuple(fact_lines(PROPOSAL, of.trial)))]),
        ("settings", "Configuration", [_settings(of)]),
        ("samples", "Samples", _samples(of)),
        ("traffic", "Under load", traffic_blocks(of.trial.outcome)),
        ("time", "Where time went", time_blocks(of.trial)),
        ("metrics", "Metrics", _metrics(of)),
        *_launches(of),
        ("files", "Files", [files_table(files, "", of.places or None)] if files else []),
        ("program", "The policy as it ran", [Code(text=of.trial.policy.source.rstrip())]),
    ]
    return Document(
        title=f"Trial {of.trial.ordinal} of study {of.study_id}",
        lead="",
        sections=tuple(
            Section(name=name, heading=heading, lead="", blocks=(*chart, *blocks))
            for name, heading, blocks in parts
            for chart in [[drawn[name]] if name in drawn else []]
            if chart or blocks
        ),
    )


def knob_values(configs: Sequence[Config | None]) -> dict[str, tuple[Value | None, ...]]:
    """Return each knob, in alphabetical order, with its value in each configuration, or None."""
    values = [{} if config is None else config.values for config in configs]
    return {
        knob: tuple(each.get(knob) for each in values)
        for knob in sorted({knob for each in values for knob in each})
    }


def _settings(of: TrialRecord) -> Block:
    if of.trial.config is None:
        return Paragraph(text="Its policy returned no configuration.")
    sides = {f"trial {of.trial.ordinal}": of.trial}
    for name, other in (("best", of.best), ("parent", of.parent)):
        if other is not None and other.ordinal != of.trial.ordinal:
            sides[f"{name}, trial {other.ordinal}"] = other
    about = f"Differences are marked with {DIFFERS}" if len(sides) > 1 else ""
    return settings_table(about, {name: trial.config for name, trial in sides.items()})


def settings_table(
    about: str, sides: Mapping[str, Config | None], *, differing: bool = False
) -> Table:
    """Return each knob with its value on every side; what differs from the first is marked.

    With `differing` there are only knobs that do.
    """
    rows = []
    for knob, values in knob_values([*sides.values()]).items():
        texts = [NOT_SET if value is None else str(value) for value in values]
        if not differing or len({*texts}) > 1:
            cells = [
                replace(code(text), differs=not differing and text != texts[0]) for text in texts
            ]
            rows.append(TableRow.of(code(knob), *cells))
    return Table(about=about, headings=("knob", *sides), rows=tuple(rows))


def _samples(of: TrialRecord) -> list[Block]:
    if not isinstance(of.trial.outcome, Measured):
        return []
    measurement, messages = of.trial.outcome.measurement, of.study.workload.messages
    lines = []
    for message, time_s in zip_longest(messages, measurement.message_times_s):
        each = "" if time_s is None else f": {format_number(time_s)} s a call"
        lines.append(("each step", f"{message_words(message)}{each}"))
    if measurement.conditions is not None:
        lines.append(("machine", conditions_words(measurement.conditions)))
    return [Facts(lines=tuple(lines))] if lines else []


def traffic_blocks(outcome: Outcome) -> list[Block]:
    """Return how a server answered at each traffic point, the main one first."""
    results = outcome.measurement.traffic if isinstance(outcome, Measured) else ()
    if not results:
        return []
    columns: Mapping[str, Callable[[TrafficResult], Cell | str]] = {
        "traffic": lambda of: str(of.point),
        "requests": lambda of: number(of.request_count),
        "requests/s": lambda of: number(of.requests_per_s),
        "output tokens/s": lambda of: number(of.output_tokens_per_s),
        "goodput [requests/s]": lambda of: number(of.goodput),
        "TTFT p50 [s]": lambda of: number(of.ttft.p50_s),
        "TTFT p99 [s]": lambda of: number(of.ttft.p99_s),
        "TPOT p50 [s]": lambda of: number(of.tpot.p50_s if of.tpot else None),
        "TPOT p99 [s]": lambda of: number(of.tpot.p99_s if of.tpot else None),
        "ITL p50 [s]": lambda of: number(of.itl.p50_s if of.itl else None),
        "ITL p99 [s]": lambda of: number(of.itl.p99_s if of.itl else None),
    }
    if all(result.goodput is None for result in results):
        columns = {name: cell for name, cell in columns.items() if "goodput" not in name}
    return [
        Table(
            about="What clients saw at each traffic point, the steps first; p50 and p99 are over "
            "all requests: time to first token (TTFT), mean time per token after it (TPOT), and "
            "time from one token to the next (ITL)",
            headings=tuple(columns),
            rows=tuple(TableRow.of(*(cell(each) for cell in columns.values())) for each in results),
        )
    ]


def time_blocks(trial: Trial) -> list[Block]:
    """Return where the profiled steps of a trial went, in two sentences and in numbers."""
    found = diagnosis_of(trial.outcome)
    if found is None:
        return []
    lines = tuple(("from traces", line) for line in diagnosis_lines(found))
    return [Paragraph(text=diagnosis_words(found)), Facts(lines=lines, summary="In numbers")]


def metrics_table(about: str, sides: Mapping[str, Sequence[MetricValue]]) -> Table:
    """Return the metrics of the first side, each with its value on every side."""
    first, *others = ({value.name: value for value in values} for values in sides.values())
    return Table(
        about=about,
        headings=("metric", *sides, "better", "version"),
        rows=tuple(
            TableRow.of(
                code(name),
                metric_cell(value),
                *(metric_cell(other.get(name)) for other in others),
                value.better,
                number(value.version),
            )
            for name, value in first.items()
        ),
    )


def _metrics(of: TrialRecord) -> list[Block]:
    """Return the metrics of a trial, what later computations gave, and why others have none."""
    blocks: list[Block] = []
    if of.metrics:
        about = "Values of the first launch, by the newest definition of each metric"
        blocks.append(metrics_table(about, {"value": of.metrics}))
    if of.computed:
        blocks.append(Facts(lines=tuple((each.name, _computed(each)) for each in of.computed)))
    outcome = of.trial.outcome
    if isinstance(outcome, Measured) and outcome.absent:
        summary = f"{format_count(len(outcome.absent), 'metric')} without a value"
        lines = tuple(("missing", line) for line in absence_lines(outcome.absent))
        blocks.append(Facts(lines=lines, summary=summary, is_aside=True))
    return blocks


def _computed(of: ComputedMetric) -> str:
    value = f"none, {one_line(of.absent or '', TEXT_CHARS)}"
    if of.value is not None:
        value = f"{format_number(of.value)} {of.unit}".rstrip()
    return f"{value} (version {of.version}, computed {format_instant(of.computed_at)})"


def _launches(of: TrialRecord) -> Iterator[tuple[str, str, Sequence[Block]]]:
    """Yield how a trial was launched, in each context where a study has several."""
    contexts = [(f" in {one.name}", one.outcome) for one in of.trial.outcome.contexts]
    for place, (inside, outcome) in enumerate(contexts or [("", of.trial.outcome)], start=1):
        launched = outcome.launched
        if launched is not None:
            facts = [*launch_facts(launched, of.machines.get(launched.machine or ""))]
            own = versions_words(outcome.measurement) if isinstance(outcome, Measured) else None
            facts += [("versions of the job", own)] if own else []
            yield f"launch{place}", f"Launch{inside}", [Facts(lines=tuple(facts))]


def files_table(
    artifacts: Sequence[Artifact], about: str, places: Mapping[str, str] | None = None
) -> Table:
    """Return files with their sizes, and with their places or digests."""
    rows = (
        TableRow.of(
            each.name,
            number(each.size_bytes, str(each.size_bytes)),
            code(each.digest) if places is None else places[each.name],
        )
        for each in artifacts
    )
    last = "SHA-256" if places is None else "place"
    return Table(about=about, headings=("file", "bytes", last), rows=tuple(rows))
