"""A comparison in words: the verdict, the ratio with its interval, and why it is open if it is."""

from evaluator.timing.paired import Comparison
from evaluator.timing.verdict import Verdict

REASONS = {
    "too_few_rounds": "too few rounds to tell",
    "noise_exceeds_band": "launches vary more than these two differ",
    "interval_too_wide": "launches vary more than these two differ",
    "budget_exhausted": "launches vary more than these two differ",
    "direction_known_size_unclear": "the difference may be too small to matter",
    "no_samples": "they share no round that was measured",
    "bad_time": "only positive values can be compared as a ratio",
    "not_steady": "the steps of the last round had not settled",
    "centre_disagreement": "medians and means of the steps point in different directions",
    "channel_disagrees": "time and work point in different directions",
    "order_effect": "it matters which of them is launched first",
    "self_test_failed": "a configuration differs from itself here",
}


def comparison_words(comparison: Comparison) -> str:
    """A verdict with the ratio of what both take, and its interval."""
    ratio, low, high = comparison.ratio, comparison.ratio_low, comparison.ratio_high
    why = REASONS.get(comparison.reason, comparison.reason.replace("_", " "))
    if ratio is None:
        return f"undecided, {why}"
    better = ratio < 1
    direction = "better" if better else "worse"
    count = comparison.round_count
    rounds = f"{count} interleaved round{'s' if count > 1 else ''}"
    if low is None or high is None:
        return f"{max(ratio, 1 / ratio):.2f}x {direction} in {rounds}, but undecided: {why}"
    if better:
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    sure = f"{100 * (1 - comparison.alpha):g} %"
    evidence = f"({sure} interval {low:.2f} to {high:.2f}, {rounds})"
    match comparison.verdict:
        case Verdict.FAST | Verdict.SLOW:
            return f"{ratio:.2f}x {direction} {evidence}"
        case Verdict.SAME:
            return f"no difference in practice, {ratio:.2f}x {evidence}"
        case Verdict.UNDECIDED | Verdict.UNKNOWN:
            return f"{ratio:.2f}x {direction} {evidence}, but undecided: {why}"


def percent(share: float) -> str:
    """A share in percent with two digits that count."""
    return f"{100 * share:.2g} %"
