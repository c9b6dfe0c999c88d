"""What a search found, as labelled lines: the evidence first, then the result, then what to type.

Every line stands for itself, so that it can be found with grep and quoted alone.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeAlias

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from evaluator.timing.compare import MIN_ROUNDS, Comparison, Spread, Verdict
from records.conditions import Conditions
from records.rows import StudyRow
from records.store import Store
from records.trial import Failed, FailureKind, History, Measured, Trial
from search.condition_words import disturbed_words
from search.config_words import difference, flags
from search.finding import Finding
from search.live import on_terminal
from search.trial_words import caveats, number, one_line

CAUSE_CHARS = 200
MORE_TRIALS = 5
CONCLUSIONS = ("best", "against the seed")

Line: TypeAlias = tuple[str, str]
"""A label and what it says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is on record about a study, as far as its report needs it."""

    row: StudyRow
    history: History
    confirmation_count: int
    store: Path
    conditions: tuple[Conditions, ...] = ()
    """Of every launch that was measured and watched."""

    @classmethod
    def of(cls, study_id: str, store: Store) -> Self:
        """Read it from the store."""
        history, confirmations = store.history(study_id), store.confirmations(study_id)
        launches = [launch.outcome for launch in (*history, *confirmations)]
        seen = [x.measurement.conditions for x in launches if isinstance(x, Measured)]
        return cls(
            row=store.find(study_id),
            history=history,
            confirmation_count=len(confirmations),
            store=store.root,
            conditions=tuple(conditions for conditions in seen if conditions is not None),
        )

    @property
    def launch_count(self) -> int:
        """Every start of all ranks: trials with their repetitions, and re-measuring launches."""
        return self.confirmation_count + sum(
            trial.attempts for trial in self.history if trial.reached_launch
        )


def print_report(finding: Finding, record: Record, store_flag: str) -> None:
    """Print the closing report as fits whoever looks."""
    lines = report_lines(finding, record, store_flag)
    if not on_terminal():
        for label, words in lines:
            typer.echo(f"{label}: {words}")
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, words in lines:
        table.add_row(label, Text(words, style="bold green" if label in CONCLUSIONS else ""))
    Console(highlight=False).print("", table)


def report_lines(finding: Finding, record: Record, store_flag: str) -> tuple[Line, ...]:
    """The closing report; `store_flag` is what commands need to find the store."""
    return (
        ("stopped", finding.stop_reason),
        ("trials", _trials_words(record)),
        *_failure_lines(record.history),
        *_disturbed_lines(record),
        *_result_lines(finding, record),
        ("record", f"study {record.row.id} in {record.store}"),
        *(("next", command + store_flag) for command in _next_commands(finding, record)),
    )


def _trials_words(record: Record) -> str:
    measured = len(record.history.measured)
    failed = len(record.history) - measured
    return (
        f"{measured} measured, {failed} failed; {record.launch_count} launches, "
        f"{record.confirmation_count} of them to re-measure"
    )


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


def _disturbed_lines(record: Record) -> list[Line]:
    words = disturbed_words(record.conditions)
    return [("disturbed", words)] if words else []


def _result_lines(finding: Finding, record: Record) -> list[Line]:
    if finding.winner is None or finding.result is None:
        return [("best", "none, because no configuration could be measured")]
    winner = record.history.trials[finding.winner]
    settings = flags(winner.config) if winner.config is not None else ""
    return [
        ("best", f"trial {winner.ordinal}: {settings}"),
        (
            record.row.study.objective.expression,
            spread_words(finding.result, finding.unit),
        ),
        *(("caveat", caveat) for caveat in caveats(winner.outcome)),
        ("against the seed", _against_seed(finding, record.history)),
        *_tie_lines(finding, winner, record.history),
        *(
            ("unreliable", f"trial {ordinal} failed when it was launched again")
            for ordinal in finding.unreliable
        ),
    ]


def spread_words(spread: Spread, unit: str) -> str:
    """Centre and interval of repeated launches."""
    centre = f"{number(spread.centre)} {unit}".rstrip()
    if spread.low is None or spread.high is None:
        return f"{centre} in one launch, so its spread is unknown"
    return (
        f"{centre}, median of {spread.launch_count} launches of their own "
        f"(95 % interval {number(spread.low)} to {number(spread.high)})"
    )


def _against_seed(finding: Finding, history: History) -> str:
    seed = history.trials[0]
    if finding.winner == seed.ordinal:
        return "the seed is itself the best"
    if isinstance(seed.outcome, Failed):
        return f"not comparable, the seed failed ({one_line(str(seed.outcome), CAUSE_CHARS)})"
    if finding.against_seed is None:
        return "not compared, the seed was not launched again"
    return comparison_words(finding.against_seed)


def comparison_words(comparison: Comparison) -> str:
    """A verdict with the ratio of costs and its interval."""
    rounds = comparison.round_count
    if comparison.ratio is None or comparison.ratio_low is None or comparison.ratio_high is None:
        return f"undecided, {_why(comparison)}"
    better = comparison.ratio < 1
    ratio, low, high = comparison.ratio, comparison.ratio_low, comparison.ratio_high
    if better:
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    direction = "better" if better else "worse"
    evidence = f"(95 % interval {low:.2f} to {high:.2f}, {rounds} interleaved rounds)"
    match comparison.verdict:
        case Verdict.FAST | Verdict.SLOW:
            return f"{ratio:.2f}x {direction} {evidence}"
        case Verdict.SAME:
            return f"no difference in practice, {ratio:.2f}x {evidence}"
        case Verdict.UNDECIDED:
            return f"{ratio:.2f}x {direction} {evidence}, but undecided: {_why(comparison)}"


def _why(comparison: Comparison) -> str:
    match comparison.reason:
        case "too_few_rounds":
            return f"too few rounds to tell, {comparison.round_count} of the {MIN_ROUNDS} needed"
        case "noise_exceeds_margin":
            return "launches vary more than these two differ"
        case "direction_known_size_unclear":
            return "the difference may be too small to matter"
        case "not_positive":
            return "only positive values can be compared as a ratio"
        case reason:
            return reason.replace("_", " ")


def _tie_lines(finding: Finding, winner: Trial, history: History) -> list[Line]:
    """Finalists not told apart from the winner; the seed has a line of its own."""
    others = [history.trials[ordinal] for ordinal in finding.ties if ordinal != 0]
    return [
        (
            "tied",
            f"trial {other.ordinal}, with {difference(other.config, winner.config)}: "
            "these launches do not tell it apart",
        )
        for other in others
        if other.config is not None and winner.config is not None
    ]


def _next_commands(finding: Finding, record: Record) -> Sequence[str]:
    study_id = record.row.id
    if finding.winner is None:
        launched = [trial.ordinal for trial in record.history if trial.reached_launch]
        return (f"cclsearch trial show {study_id} {launched[0] if launched else 0}",)
    return (
        f"cclsearch best {study_id} --format args",
        f"cclsearch resume {study_id} --trials {MORE_TRIALS}",
    )
