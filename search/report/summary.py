"""What a search found, as labelled lines: the evidence first, then the result, then what to type.

Every line stands for itself, so that it can be found with grep and quoted alone.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeAlias

import typer
from rich.table import Table
from rich.text import Text

from evaluator.timing.decision import Spread, Verdict
from records.llm_exchange import ModelUse
from records.store.rows import StudyRow
from records.store.store import Store
from records.trial import Failed, FailureKind, History, Purpose, Trial
from search.loop.budget import launches_used
from search.loop.finding import Finding
from search.loop.leader import left_out_rounds, study_leader
from search.transfer.audit import audit
from search.transfer.trust import launch_lines
from search.views.console import Terminal, on_terminal
from search.views.diagnosis import diagnosis_of, diagnosis_words
from search.views.format import (
    centre_words,
    comparison_words,
    format_difference,
    format_number,
    one_line,
    remarks,
)
from search.views.machine import Disturbed, disturbed_among, disturbed_words
from search.views.study import (
    PURPOSES,
    baseline_words,
    context_finding_words,
    front_words,
    limit_words,
    noise_words,
    race_words,
    settings_words,
    use_words,
)

CAUSE_CHARS = 200
MORE_TRIALS = 5
CONCLUSIONS = ("best", "against the seed")

Line: TypeAlias = tuple[str, str]
"""A label and what it says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord:
    """What is on record about a study, as far as its report needs it."""

    row: StudyRow
    history: History
    launch_count: int
    store: Path
    purposes: Mapping[Purpose, int] = field(default_factory=dict)
    """How many launches were made again, and what for."""
    disturbed: Disturbed | None = None
    """Of all launches, those that something else on the machine disturbed."""
    left_out_count: int = 0
    """Rounds that were disturbed, and replaced."""
    uses: tuple[ModelUse, ...] = ()
    """Of every model that was asked."""

    @classmethod
    def of(cls, study_id: str, store: Store) -> Self:
        """Read it from the store."""
        row = store.find(study_id)
        history, repeats = study_leader(row, store).history, store.repeats(study_id)
        return cls(
            row=row,
            history=history,
            launch_count=launches_used(history, repeats),
            purposes=Counter(repeat.purpose for repeat in repeats),
            left_out_count=len(left_out_rounds(repeats, row.study.measure)),
            uses=store.model_uses(study_id),
            store=store.root,
            disturbed=disturbed_among(launch.outcome for launch in (*history, *repeats)),
        )


def print_report(finding: Finding, record: StudyRecord, store_flag: str) -> None:
    """Print the closing report as fits whoever looks."""
    print_lines(report_lines(finding, record, store_flag))


def print_lines(lines: Iterable[Line]) -> None:
    """Print labelled lines as fits whoever looks."""
    if not on_terminal():
        for label, words in lines:
            typer.echo(f"{label}: {words}")
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, words in lines:
        table.add_row(label, Text(words, style="bold green" if label in CONCLUSIONS else ""))
    Terminal(highlight=False).print("", table)


def report_lines(finding: Finding, record: StudyRecord, store_flag: str) -> tuple[Line, ...]:
    """The closing report; `store_flag` is what commands need to find the store."""
    return (
        ("stopped", finding.stop_reason),
        *origin_lines(record),
        ("trials", _trials_words(record)),
        *(("model", use_words(use, record.row.study.llm)) for use in record.uses),
        *_failure_lines(record.history),
        *_told("limits", limit_words(record.history)),
        *_disturbed_lines(record),
        *_noise_lines(finding, record),
        *(("raced", race_words(race)) for race in finding.races),
        *_told("baseline", baseline_words(record.row.study, record.history)),
        *result_lines(finding, record),
        *(("front", words) for words in front_words(finding.front, record.history)),
        *_fault_lines(record),
        ("record", f"study {record.row.id} in {record.store}"),
        *(("next", command + store_flag) for command in _next_commands(finding, record)),
    )


def _told(label: str, words: str | None) -> list[Line]:
    return [] if words is None else [(label, words)]


def _is_foreign(record: StudyRecord) -> bool:
    """Whether another tool conducted the search."""
    origin = record.row.study.origin
    return origin is not None and origin.kind != "bundle"


def origin_lines(record: StudyRecord) -> Iterator[Line]:
    """Where an imported study comes from, what launching it would do, and what a card implied."""
    origin = record.row.study.origin
    if origin is not None:
        framework = "" if origin.framework is None else f", of {origin.framework}"
        yield "imported", f"{origin.source} ({origin.kind}){framework}"
        yield from (("note", note) for note in origin.notes)
        yield from launch_lines(record.row.study)
    yield from (("card", sentence) for sentence in record.row.study.inferences)


def _fault_lines(record: StudyRecord) -> Iterator[Line]:
    """What is wrong with what another tool found, as far as its record shows it."""
    if _is_foreign(record):
        for fault in audit(record.row.study, record.history, ()):
            yield "fault", fault.words


def _trials_words(record: StudyRecord) -> str:
    measured = len(record.history.measured)
    failed = len(record.history) - measured
    again = ", ".join(
        f"{record.purposes[p]} {PURPOSES[p]}" for p in Purpose if p in record.purposes
    )
    launches = f"{record.launch_count} launches of at most {record.row.study.budget.launch_limit}"
    return f"{measured} measured, {failed} failed; {launches}" + (f", {again}" if again else "")


def _failure_lines(history: History) -> list[Line]:
    """For each kind of failure how many there were, and the first with its cause."""
    failures = [(t.ordinal, t.outcome) for t in history if isinstance(t.outcome, Failed)]
    counts = Counter(failed.kind for _, failed in failures)
    lines: list[Line] = []
    for kind, count in counts.most_common():
        ordinal, first = next((n, failed) for n, failed in failures if failed.kind is kind)
        whose = ", not the configuration's fault" if kind is FailureKind.INFRASTRUCTURE else ""
        cause = one_line(first.message, CAUSE_CHARS)
        lines.append(("failed", f"{count} {kind}{whose}; first in trial {ordinal}: {cause}"))
    return lines


def _disturbed_lines(record: StudyRecord) -> list[Line]:
    found = record.disturbed
    lines = [] if found is None else [("disturbed", disturbed_words(found))]
    if record.left_out_count:
        told = f"rounds in which a launch was disturbed, replaced: {record.left_out_count}"
        lines.append(("left out", told))
    return lines


def _noise_lines(finding: Finding, record: StudyRecord) -> list[Line]:
    if finding.noise is None:
        return []
    return [("noise", noise_words(finding.noise, record.row.study.measure))]


def result_lines(finding: Finding, record: StudyRecord) -> list[Line]:
    """The best with its evidence; the history needs no trials but those that the finding names."""
    winner = None if finding.winner is None else record.history.find(finding.winner)
    if winner is None or finding.result is None:
        limited = "every measured configuration breaks a limit"
        why = limited if record.history.measured else "no configuration could be measured"
        return [("best", f"none, because {why}")]
    study = record.row.study
    settings = settings_words(winner.config, study) if winner.config is not None else ""
    diagnosis = diagnosis_of(winner.outcome)
    return [
        ("best", f"trial {winner.ordinal}: {settings}"),
        (
            record.row.study.objective.expression,
            spread_words(finding.result, finding.unit),
        ),
        *(("caveat", caveat) for caveat in remarks(winner)),
        *_told("caveat", finding.confirming.caveat if finding.confirming else None),
        *_told("where time goes", None if diagnosis is None else diagnosis_words(diagnosis)),
        ("against the seed", _against_seed(finding, record.history)),
        *(context_finding_words(found) for found in finding.contexts),
        *_tie_lines(finding, winner, record.history),
        *(
            ("unreliable", f"trial {ordinal} failed when it was launched again")
            for ordinal in finding.unreliable
        ),
    ]


def spread_words(spread: Spread, unit: str) -> str:
    """Centre and interval of repeated launches."""
    centre = centre_words(spread, unit)
    if spread.launch_count == 1:
        return f"{centre} in one launch, so its spread is unknown"
    if spread.both is not None:
        return f"{centre} in two launches, too few for an interval"
    over = f"{centre}, median of {spread.launch_count} launches"
    if spread.low is None or spread.high is None:
        return over
    return f"{over} (95 % interval {format_number(spread.low)} to {format_number(spread.high)})"


def _against_seed(finding: Finding, history: History) -> str:
    if finding.winner == 0:
        return "the seed is itself the best"
    seed = history.find(0)
    if seed is None:
        return "not compared, the seed has not ended"
    if isinstance(seed.outcome, Failed):
        return f"not comparable, the seed failed ({one_line(str(seed.outcome), CAUSE_CHARS)})"
    if finding.against_seed is not None:
        return comparison_words(finding.against_seed)
    if finding.confirming is None:
        return "not compared, there was no final in which both were launched"
    if finding.confirming.seed_launched:
        return "not compared, no launch of the seed in the final was measured"
    return "not compared, the seed was not launched in the final"


def undecided_words(finding: Finding) -> str | None:
    """Why a best is not shown to be better than the seed; None where it is, or is the seed."""
    found = finding.against_seed
    if found is None or finding.winner == 0 or found.verdict is not Verdict.UNDECIDED:
        return None
    return comparison_words(found)


def _tie_lines(finding: Finding, winner: Trial, history: History) -> list[Line]:
    """Finalists not told apart from the winner; the seed has a line of its own."""
    others = [history.find(ordinal) for ordinal in finding.ties if ordinal != 0]
    return [
        (
            "tied",
            f"trial {other.ordinal}, with {format_difference(other.config, winner.config)}: "
            "these launches do not tell it apart",
        )
        for other in others
        if other is not None and other.config is not None and winner.config is not None
    ]


def _next_commands(finding: Finding, record: StudyRecord) -> Sequence[str]:
    study_id = record.row.id
    if finding.winner is None:
        launched = [trial.ordinal for trial in record.history if trial.reached_launch]
        return (f"cclsearch trial show {study_id} {launched[0] if launched else 0}",)
    return (
        f"cclsearch best {study_id} --format args",
        *([] if _is_foreign(record) else [f"cclsearch resume {study_id} --trials {MORE_TRIALS}"]),
    )
