"""A verdict on B against A as a sentence, and why it is so."""

from evaluator.timing.paired import Comparison
from evaluator.timing.verdict import Verdict
from search.comparing.compared import Compared, Comparisons
from search.words.comparison import REASONS, disturbed_words, percent

LEAST_DIFFERENCE = 1.1
"""Ratio below which a third decimal is told."""
OWN_REASONS = {
    "not_interleaved": "they were not launched in turns, so the machine may have changed between",
    "one_sample": "a single value on a side does not tell how much launches vary",
}


def verdict_words(compared: Compared, of: Comparisons) -> str:
    """The verdict with the ratio and its interval, as far as there are any."""
    found = compared.comparison
    if found.verdict is Verdict.UNKNOWN:
        return f"unknown, {why_words(compared, of)}"
    if found.ratio is None:
        return "undecided"
    ratio = ratio_words(found.ratio, of)
    evidence = _evidence(found, of)
    match found.verdict:
        case Verdict.FAST | Verdict.SLOW:
            return f"B is {ratio} than A{evidence}"
        case Verdict.SAME:
            return f"B and A are the same in practice: B is {ratio} than A{evidence}"
        case Verdict.UNDECIDED:
            return f"undecided: B looks {ratio} than A{evidence}"


def why_words(compared: Compared, of: Comparisons) -> str:
    """Why the verdict is what it is."""
    found = compared.comparison
    if compared.detail is not None:
        return compared.detail
    match found.reason:
        case "paired_interval_clears_band":
            return f"the whole interval is beyond the margin of {percent(of.rule.margin)}"
        case "paired_interval_inside_band":
            return f"the whole interval is within the margin of {percent(of.rule.margin)}"
        case "too_few_rounds":
            return f"too few rounds to tell, {found.round_count} of {of.rule.min_rounds} needed"
        case reason:
            known = OWN_REASONS | REASONS
            return known.get(reason, reason.replace("_", " "))


def ratio_words(ratio: float, of: Comparisons) -> str:
    """What B takes over what A takes, as how much faster or slower B is."""
    faster, slower = ("faster", "slower") if of.is_time else ("better", "worse")
    return f"{times(max(ratio, 1 / ratio))} {faster if ratio < 1 else slower}"


def interval_words(found: Comparison, of: Comparisons) -> str | None:
    """The interval of a ratio; each end says its direction where they differ."""
    if found.ratio_low is None or found.ratio_high is None:
        return None
    low, high = found.ratio_low, found.ratio_high
    if low < 1 < high:
        return f"{ratio_words(low, of)} to {ratio_words(high, of)}"
    ends = sorted(max(end, 1 / end) for end in (low, high))
    return f"{times(ends[0])} to {times(ends[1])}"


def times(ratio: float) -> str:
    """A ratio of at least 1."""
    return f"{ratio:.{3 if ratio < LEAST_DIFFERENCE else 2}f}x"


def confidence(of: Comparisons) -> str:
    """How often intervals are right, in percent."""
    return f"{100 * (1 - of.rule.alpha):g} %"


def _evidence(found: Comparison, of: Comparisons) -> str:
    interval = interval_words(found, of)
    if interval is None:
        return ""
    rounds = f"{found.round_count} interleaved rounds"
    rounds += disturbed_words(found.disturbed_count, found.round_count)
    return f" ({confidence(of)} interval {interval}, {rounds})"
