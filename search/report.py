"""What a search found, in words and for programs."""

from pathlib import Path

from evaluator.timing.compare import Comparison, Spread, Verdict
from records.rows import StudyRow
from records.trial import Failed, History
from search.finding import Finding
from search.trial_words import number


def finding_lines(finding: Finding, history: History, row: StudyRow, store: Path) -> list[str]:
    """The closing report: the winner, its spread, the seed, ties, failures, what to type next."""
    lines = ["", f"stopped: {finding.stop_reason}", failures_line(history)]
    if finding.winner is None or finding.result is None:
        lines.append("no configuration was measured")
    else:
        winner = history.trials[finding.winner]
        lines += [
            f"best: trial {winner.ordinal}: {winner.config}",
            f"{row.study.objective.expression}: {spread_words(finding.result, finding.unit)}",
            _against_seed(finding, history),
            *_tie_lines(finding, history),
        ]
    lines += [f"record: {store}, study {row.id}", f"next: {_next_command(finding, row)}"]
    return lines


def spread_words(spread: Spread, unit: str) -> str:
    """Centre and interval of repeated launches."""
    centre = f"{number(spread.centre)} {unit}".rstrip()
    if spread.low is None or spread.high is None:
        return f"{centre} from one launch, spread unknown"
    return (
        f"{centre}, 95 % interval {number(spread.low)} to {number(spread.high)}, "
        f"re-measured in {spread.launch_count} launches"
    )


def failures_line(history: History) -> str:
    """How many trials there were, and how many failed, by kind."""
    kinds = [t.outcome.kind.value for t in history if isinstance(t.outcome, Failed)]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
    measured = len(history.measured)
    return f"trials: {measured} measured, {len(kinds)} failed" + (f" ({counts})" if kinds else "")


def _against_seed(finding: Finding, history: History) -> str:
    seed = history.trials[0]
    if finding.winner == seed.ordinal:
        return "seed: is itself the best"
    if isinstance(seed.outcome, Failed):
        return f"seed: not comparable, it failed ({seed.outcome})"
    if finding.against_seed is None:
        return "seed: was not re-measured"
    return f"against the seed: {comparison_words(finding.against_seed)}"


def comparison_words(comparison: Comparison) -> str:
    """A verdict with the ratio of costs and its interval."""
    if comparison.ratio is None or comparison.ratio_low is None or comparison.ratio_high is None:
        return f"undecided ({comparison.reason})"
    times = (
        f"{1 / comparison.ratio:.2f}x (95 % interval {1 / comparison.ratio_high:.2f} "
        f"to {1 / comparison.ratio_low:.2f}, {comparison.round_count} interleaved rounds)"
    )
    match comparison.verdict:
        case Verdict.FAST:
            return f"better by {times}"
        case Verdict.SLOW:
            return f"worse: {times}"
        case Verdict.SAME:
            return f"the same within the margin: {times}"
        case Verdict.UNDECIDED:
            return f"tied as far as the rounds can tell ({comparison.reason}): {times}"


def _tie_lines(finding: Finding, history: History) -> list[str]:
    return [
        f"tied with trial {ordinal}: {history.trials[ordinal].config}" for ordinal in finding.ties
    ]


def _next_command(finding: Finding, row: StudyRow) -> str:
    if finding.winner is None:
        return f"cclsearch trial logs {row.id} 0"
    return f"cclsearch best {row.id} --format args"
