"""Format numbers, units, configurations, trials and comparisons as text."""

import re
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from evaluator.timing.decision import Comparison, Spread, Verdict
from records.errors import StudyError
from records.expression import format_bytes
from records.study import Value
from records.trial import Breakdown, Config, Measured, Outcome, Score, Trial
from records.workload import Message, Workload

AUTHOR_CHARS = 40
REASON_CHARS = 300
NO_CONFIG = "(no configuration)"
NOTHING_RAN = "nothing ran on the device"
OMITTED = "[... {} characters left out ...]"
ABSENT = "-"


def one_line(text: str, limit: int) -> str:
    """The text on one line without control characters, cut to `limit` characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def fenced(text: str, language: str = "", *, limit: int) -> str:
    """A block that nothing in the text can close; its middle is left out beyond `limit`."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]}\n{OMITTED.format(len(text) - 2 * half)}\n{text[-half:]}"
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def format_number(value: float) -> str:
    """Four significant digits, without an exponent where that stays readable."""
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:.4g}"


def score_words(score: Score) -> str:
    """The value of the objective with its unit."""
    return f"{format_number(score.value)} {score.unit}".rstrip()


def reached_words(reached: Spread, unit: str = "") -> str:
    """The number of a trial with what supports it: `0.52 s (0.51 to 0.53, 4 launches)`."""
    return f"{centre_words(reached, unit)} ({support_words(reached)})"


def centre_words(reached: Spread, unit: str = "") -> str:
    """The number of a trial; both values where there are two."""
    numbers = " and ".join(map(format_number, reached.both or (reached.centre,)))
    return f"{numbers} {unit}".rstrip()


def support_words(reached: Spread) -> str:
    """How many launches a number is of, and their interval: `0.51 to 0.53, 4 launches`."""
    if reached.launch_count == 1:
        return "one launch"
    count = f"{reached.launch_count} launches"
    if reached.low is None or reached.high is None:
        return count
    return f"{format_number(reached.low)} to {format_number(reached.high)}, {count}"


def line_words(reached: Spread, unit: str) -> str:
    """The same for lists, in which a single launch is not mentioned."""
    one = reached.launch_count == 1
    return centre_words(reached, unit) if one else reached_words(reached, unit)


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


def caveats(outcome: Outcome) -> tuple[str, ...]:
    """What to keep in mind about a result, as text."""
    if not isinstance(outcome, Measured):
        return ()
    found = (caveat for measurement in outcome.measurements for caveat in measurement.caveats)
    return tuple(dict.fromkeys(found))


def remarks(trial: Trial) -> tuple[str, ...]:
    """What keeps a trial from leading, and what to keep in mind about its result."""
    broken = trial.score.broken if trial.score is not None else ()
    return (*broken, *caveats(trial.outcome))


def absence_lines(absent: Mapping[str, str]) -> list[str]:
    """Why metrics have no value, a line for each reason."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, reason in absent.items():
        names[reason].append(name)
    return [
        f"no {', '.join(lacking)}: {one_line(reason, REASON_CHARS)}"
        for reason, lacking in names.items()
    ]


def work_words(workload: Workload) -> str:
    """What every step does, to follow `each step`."""
    if workload.phase != "communication":
        return f"processes {workload.tokens_per_step} tokens"
    return f"exchanges {', '.join(map(message_words, workload.messages))}"


def message_words(message: Message) -> str:
    """A message and how often it is sent: `12 × all_reduce sum float32 4 MiB`."""
    words = [f"{message.count} × {message.collective}"]
    if "reduce" in message.collective:
        words.append(message.reduce_op)
    if message.collective != "barrier":
        words += [message.dtype, format_bytes(message.size_bytes)]
    return " ".join(words)


def format_breakdown(breakdown: Breakdown) -> str:
    """Where a step went, in percent of the step; exposed and hidden are communication."""
    step_s = sum(part_s for _, part_s in _parts(breakdown))
    if step_s <= 0:
        return NOTHING_RAN
    parts = (*_parts(breakdown), ("hidden", breakdown.hidden_communication_s))
    return ", ".join(f"{name} {format_whole_percent(part_s / step_s)}" for name, part_s in parts)


def format_breakdown_briefly(breakdown: Breakdown) -> str:
    """The same without names: `60/30/2/8 hidden 10`."""
    step_s = sum(part_s for _, part_s in _parts(breakdown))
    if step_s <= 0:
        return NOTHING_RAN
    parts = "/".join(f"{100 * part_s / step_s:.0f}" for _, part_s in _parts(breakdown))
    return f"{parts} hidden {100 * breakdown.hidden_communication_s / step_s:.0f}"


def knob_change(new: Breakdown, old: Breakdown, speedup: float) -> str:
    """What each part of a step gained or lost, in percent of the old step.

    The steps may be of different times, so their lengths are set in proportion by `speedup`.
    """
    new_s, old_s = (sum(part_s for _, part_s in _parts(each)) for each in (new, old))
    if new_s <= 0 or old_s <= 0:
        return NOTHING_RAN
    pairs = zip(_parts(new), _parts(old), strict=True)
    return ", ".join(
        f"{name} {format_whole_percent(ours_s / new_s / speedup - theirs_s / old_s, '+')}"
        for (name, ours_s), (_, theirs_s) in pairs
    )


def author(trial: Trial) -> str:
    """Who wrote its policy."""
    return one_line(trial.policy.author, AUTHOR_CHARS)


def _parts(breakdown: Breakdown) -> tuple[tuple[str, float], ...]:
    """The parts that make up a step, in seconds."""
    return (
        ("compute", breakdown.compute_s),
        ("exposed", breakdown.exposed_communication_s),
        ("other", breakdown.other_s),
        ("idle", breakdown.idle_s),
    )


def format_duration(seconds: float | None) -> str:
    """A time in s, ms or us, or a dash where there is none."""
    if seconds is None:
        return ABSENT
    for unit, size_s in (("s", 1.0), ("ms", 1e-3)):
        if abs(seconds) >= size_s:
            return f"{format_number(seconds / size_s)} {unit}"
    return f"{format_number(seconds * 1e6)} us" if seconds else "0"


def format_elapsed(seconds: float) -> str:
    """A length of time by its two largest units: `3 h 20 min`."""
    left, parts = round(seconds), list[str]()
    for unit, size_s in (("day", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size_s)
        if count:
            parts.append(f"{count} {unit}{'s' if unit == 'day' and count > 1 else ''}")
    return " ".join(parts[:2]) or "0 s"


def read_instant(instant: str) -> datetime | None:
    """A stored instant in UTC; None for a text that is not an instant."""
    try:
        at = datetime.fromisoformat(instant)
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def format_instant(instant: str) -> str:
    """A stored instant to the second; a text that is not an instant is unchanged."""
    at = read_instant(instant)
    return instant if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def format_time_change(seconds: float) -> str:
    """A difference of two times, with its sign."""
    return f"+{format_duration(seconds)}" if seconds > 0 else format_duration(seconds)


def format_decimal_bytes(count: float | None) -> str:
    """Bytes in powers of 1000, or a dash where there are none."""
    if count is None:
        return ABSENT
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{format_number(count / factor)} {unit}"
    return f"{count:.0f} B"


def format_percent(share: float | None, sign: str = "") -> str:
    """Return a share of 1 in percent, two digits below 1 %, or a dash where there is none.

    `sign` is "+" to show the sign of gains as well.
    """
    if share is None:
        return ABSENT
    return f"{100 * share:{sign}{'.2g' if 0 < abs(share) < 0.01 else '.1f'}} %"


def format_whole_percent(share: float, sign: str = "") -> str:
    """Return a share of 1 in whole percent."""
    return f"{100 * share:{sign}.0f} %"


def format_confidence(alpha: float) -> str:
    """Return how often intervals with this error rate hold the truth: `95 %`."""
    return f"{100 * (1 - alpha):g} %"


def parse_share(words: str, option: str) -> float:
    """The share that a text such as `5%` or `0.05` means; raises `StudyError` for other texts."""
    try:
        found = float(words.removesuffix("%")) / (100 if words.endswith("%") else 1)
    except ValueError:
        found = None
    if found is None or not 0 <= found < 1:
        raise StudyError(f"{option} {words!r} is not a share from 0 to below 1; write it as in 5%")
    return found


def format_count(count: int, one: str, several: str | None = None) -> str:
    """How many of something: `1 launch`, `3 launches`; `several` is one with an s by default."""
    return f"{count} {one if count == 1 else several or f'{one}s'}"


def format_bandwidth(bytes_per_s: float | None) -> str:
    """A bandwidth in GB/s, or a dash where there is none."""
    return ABSENT if bytes_per_s is None else f"{format_number(bytes_per_s / 1e9)} GB/s"


def format_flags(config: Config) -> str:
    """The settings as command-line arguments."""
    return " ".join(f"--{knob.replace('_', '-')}={format_setting(config[knob])}" for knob in config)


def format_setting(value: Value) -> str:
    """A setting as shells and most programs take it."""
    return str(value).lower() if isinstance(value, bool) else shlex.quote(str(value))


def differing_knobs(one: Config, other: Config) -> Sequence[str]:
    """Knobs that are set differently, or only in one of the two, in alphabetical order."""
    knobs = sorted({*one.values, *other.values})
    return [knob for knob in knobs if one.values.get(knob) != other.values.get(knob)]


def format_difference(config: Config, base: Config) -> str:
    """The settings that are not those of `base`: `pp=2 tp=4 without schedule`."""
    knobs = differing_knobs(base, config)
    changes = [f"{knob}={config.values[knob]}" for knob in knobs if knob in config.values]
    dropped = ", ".join(knob for knob in knobs if knob not in config.values)
    return " ".join([*changes, *([f"without {dropped}"] if dropped else [])]) or "the same"


UNSURE = ("noise_exceeds_band", "budget_exhausted", "interval_too_wide")
VARIED = "launches vary more than these two differ"
REASONS = {
    "not_interleaved": "they were not launched in turns, so the machine may have changed between",
    "one_sample": "a single value on a side does not show how much launches vary",
    "too_few_rounds": "too few rounds to decide",
    "noise_exceeds_band": VARIED,
    "interval_too_wide": "too few rounds to decide",
    "budget_exhausted": VARIED,
    "direction_known_size_unclear": "the difference may be too small to matter",
    "no_samples": "they share no round that was measured",
    "bad_time": "only positive values can be compared as a ratio",
    "not_steady": "the steps of the last round had not settled",
    "centre_disagreement": "medians and means of the steps point in different directions",
    "order_effect": "it matters which of them is launched first",
    "lost_among_many": "among this many comparisons chance alone makes one look like this",
}


LEAST_DIFFERENCE = 1.1
"""A smaller ratio has one more digit."""


def comparison_words(
    found: Comparison, *, names: tuple[str, str] = ("", ""), is_time: bool = False, why: str = ""
) -> str:
    """A verdict with the ratio of what both take, and its interval.

    `names` are of the one that is judged and of what it is compared with; `why` replaces the reason
    of a verdict that is open.
    """
    reason = why or _reason(found)
    if found.ratio is None or found.verdict is Verdict.UNKNOWN:
        return f"{'unknown' if found.verdict is Verdict.UNKNOWN else 'undecided'}, {reason}"
    one, other = names
    ratio = ratio_words(found.ratio, is_time=is_time) + (f" than {other}" if other else "")
    is_open = found.verdict is Verdict.UNDECIDED
    head = f"{one} {'looks' if is_open else 'is'} {ratio}" if one else ratio
    words = f"{head}{_evidence(found, is_time=is_time)}"
    if is_open:
        return f"undecided: {words}; {reason}" if one else f"{words}, but undecided: {reason}"
    return f"no difference in practice: {words}" if found.verdict is Verdict.SAME else words


def _reason(found: Comparison) -> str:
    """Why a verdict is open; an interval may exclude that both are equal, and yet be no claim."""
    low, high = found.ratio_low, found.ratio_high
    is_clear = low is not None and high is not None and not low <= 1 <= high
    if is_clear and found.reason in UNSURE:
        return "a claim has to be surer than this interval"
    return REASONS.get(found.reason, found.reason.replace("_", " "))


def _evidence(found: Comparison, *, is_time: bool) -> str:
    """The interval of a ratio, if there is one, and of how many rounds it is, if of any."""
    if not found.round_count:
        return ""
    rounds = format_count(found.round_count, "interleaved round")
    rounds += disturbed_words(found.disturbed_count, found.round_count)
    interval = interval_words(found, is_time=is_time)
    sure = "" if interval is None else f"{format_confidence(found.alpha)} interval {interval}, "
    return f" ({sure}{rounds})"


def ratio_words(ratio: float, *, is_time: bool) -> str:
    """A ratio of what both take, as how much faster or slower (better or worse) the first is."""
    faster, slower = ("faster", "slower") if is_time else ("better", "worse")
    return f"{times(max(ratio, 1 / ratio))} {faster if ratio <= 1 else slower}"


def interval_words(found: Comparison, *, is_time: bool) -> str | None:
    """The interval of a ratio; each end says its direction where they differ."""
    low, high = found.ratio_low, found.ratio_high
    if low is None or high is None:
        return None
    if low < 1 < high:
        return " to ".join(ratio_words(end, is_time=is_time) for end in (low, high))
    ends = sorted(max(end, 1 / end) for end in (low, high))
    return f"{times(ends[0])} to {times(ends[1])}"


def times(ratio: float) -> str:
    """A ratio of at least 1."""
    return f"{ratio:.{3 if ratio < LEAST_DIFFERENCE else 2}f}x"


def speed_words(ratio: float) -> str:
    """A ratio of what both take as how many times as good the first is: above 1 is better."""
    return f"{1 / ratio:.2f}x {'better' if ratio < 1 else 'as good'}"


def disturbed_words(disturbed_count: int, count: int) -> str:
    """How many of these rounds were disturbed, to follow their number; empty where none was."""
    if not disturbed_count:
        return ""
    share = "" if count == 1 else "all " if disturbed_count == count else f"{disturbed_count} "
    return f", {share}disturbed by other work"


ORDINALS_SHOWN = 6


def ordinals_words(ordinals: Sequence[int]) -> str:
    """Return `#5, #10`, and how many more."""
    shown = ", ".join(f"#{ordinal}" for ordinal in ordinals[:ORDINALS_SHOWN])
    more = len(ordinals) - ORDINALS_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
