"""A comparison in words: the verdict, the ratio with its interval, and why it is open if it is."""

from evaluator.timing.paired import Comparison
from evaluator.timing.verdict import Verdict
from search.words.quantities import many

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
    "lost_among_many": "among this many comparisons chance alone makes one look like this",
    "self_test_failed": "a configuration differs from itself here",
}


def comparison_words(comparison: Comparison) -> str:
    """A verdict with the ratio of what both take, and its interval."""
    ratio, low, high = comparison.ratio, comparison.ratio_low, comparison.ratio_high
    why = REASONS.get(comparison.reason, comparison.reason.replace("_", " "))
    if ratio is None:
        return f"undecided, {why}"
    count = comparison.round_count
    rounds = many(count, "interleaved round")
    rounds += disturbed_words(comparison.disturbed_count, count)
    if low is None or high is None:
        return f"{speed_words(ratio)} in {rounds}, but undecided: {why}"
    sure = f"{100 * (1 - comparison.alpha):g} %"
    evidence = f"({sure} interval {1 / high:.2f} to {1 / low:.2f}, {rounds})"
    match comparison.verdict:
        case Verdict.FAST | Verdict.SLOW:
            return f"{speed_words(ratio)} {evidence}"
        case Verdict.SAME:
            return f"no difference in practice, {1 / ratio:.2f}x {evidence}"
        case Verdict.UNDECIDED | Verdict.UNKNOWN:
            return f"{speed_words(ratio)} {evidence}, but undecided: {why}"


def speed_words(ratio: float) -> str:
    """A ratio of what both take as how many times as good the first is: above 1 is better."""
    return f"{1 / ratio:.2f}x {'better' if ratio < 1 else 'as good'}"


def disturbed_words(disturbed_count: int, count: int) -> str:
    """How many of these rounds were disturbed, to follow their number; empty where none was."""
    if not disturbed_count:
        return ""
    share = "" if count == 1 else "all " if disturbed_count == count else f"{disturbed_count} "
    return f", {share}disturbed by other work"


def percent(share: float) -> str:
    """A share in percent with two digits that count."""
    return f"{100 * share:.2g} %"
