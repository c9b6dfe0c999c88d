"""A trial in words, for a reader with few tokens: rows, breakdowns, fenced programs."""

import re
from collections import defaultdict
from collections.abc import Mapping, Set

from evaluator.timing.spread import Spread
from records.message import Message
from records.rule import size_words
from records.trial import Breakdown, Failed, FailureKind, Measured, Outcome, Score, Trial
from records.workload import Workload

AUTHOR_CHARS = 40
REASON_CHARS = 300
NO_CONFIG = "(no configuration)"
NOTHING_RAN = "nothing ran on the device"
OMITTED = "[... {} characters left out ...]"


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


def number(value: float) -> str:
    """Four significant digits, without an exponent where that stays readable."""
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:.4g}"


def score_words(score: Score) -> str:
    """The value that was asked for, with its unit."""
    return f"{number(score.value)} {score.unit}".rstrip()


def reached_words(reached: Spread, unit: str = "") -> str:
    """The number of a trial with what supports it: `0.52 s (0.51 to 0.53, 4 launches)`."""
    return f"{centre_words(reached, unit)} ({support_words(reached)})"


def centre_words(reached: Spread, unit: str = "") -> str:
    """The number of a trial; both values where there are two."""
    numbers = " and ".join(map(number, reached.both or (reached.centre,)))
    return f"{numbers} {unit}".rstrip()


def support_words(reached: Spread) -> str:
    """How many launches a number is of, and their interval: `0.51 to 0.53, 4 launches`."""
    if reached.launch_count == 1:
        return "one launch"
    count = f"{reached.launch_count} launches"
    if reached.low is None or reached.high is None:
        return count
    return f"{number(reached.low)} to {number(reached.high)}, {count}"


def line_words(reached: Spread, unit: str) -> str:
    """The same for lines that mostly are of one launch each, which is not repeated in all."""
    one = reached.launch_count == 1
    return centre_words(reached, unit) if one else reached_words(reached, unit)


def caveats(outcome: Outcome) -> tuple[str, ...]:
    """What to keep in mind about a result, in words."""
    if not isinstance(outcome, Measured):
        return ()
    found = (caveat for measurement in outcome.measurements for caveat in measurement.caveats)
    return tuple(dict.fromkeys(found))


def remarks(trial: Trial) -> tuple[str, ...]:
    """What keeps a trial from leading, and what to keep in mind about its result."""
    broken = trial.score.broken if trial.score is not None else ()
    return (*broken, *caveats(trial.outcome))


def absences(absent: Mapping[str, str]) -> list[str]:
    """Why metrics have no value, a line for each reason."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, reason in absent.items():
        names[reason].append(name)
    return [
        f"no {', '.join(lacking)}: {one_line(reason, REASON_CHARS)}"
        for reason, lacking in names.items()
    ]


def work_words(workload: Workload) -> str:
    """What every step does, in words that follow `each step`."""
    if workload.phase != "communication":
        return f"processes {workload.tokens_per_step} tokens"
    return f"exchanges {', '.join(map(message_words, workload.messages))}"


def message_words(message: Message) -> str:
    """A message and how often it is sent: `12 × all_reduce sum float32 4 MiB`."""
    words = [f"{message.count} × {message.collective}"]
    if "reduce" in message.collective:
        words.append(message.reduce_op)
    if message.collective != "barrier":
        words += [message.dtype, size_words(message.size_bytes)]
    return " ".join(words)


def shares(breakdown: Breakdown) -> str:
    """Where a step went, in percent of the step; exposed and hidden are communication."""
    step_s = sum(part_s for _, part_s in _parts(breakdown))
    if step_s <= 0:
        return NOTHING_RAN
    parts = (*_parts(breakdown), ("hidden", breakdown.hidden_communication_s))
    return ", ".join(f"{name} {part_s / step_s:.0%}" for name, part_s in parts)


def brief_shares(breakdown: Breakdown) -> str:
    """The same without names: `60/30/2/8 hidden 10`."""
    step_s = sum(part_s for _, part_s in _parts(breakdown))
    if step_s <= 0:
        return NOTHING_RAN
    told = "/".join(f"{100 * part_s / step_s:.0f}" for _, part_s in _parts(breakdown))
    return f"{told} hidden {100 * breakdown.hidden_communication_s / step_s:.0f}"


def change(new: Breakdown, old: Breakdown, speedup: float) -> str:
    """What each part of a step gained or lost, in percent of the old step.

    The steps may be of different times, so their lengths are set in proportion by `speedup`.
    """
    new_s, old_s = (sum(part_s for _, part_s in _parts(each)) for each in (new, old))
    if new_s <= 0 or old_s <= 0:
        return NOTHING_RAN
    pairs = zip(_parts(new), _parts(old), strict=True)
    return ", ".join(
        f"{name} {100 * (ours_s / new_s / speedup - theirs_s / old_s):+.0f}%"
        for (name, ours_s), (_, theirs_s) in pairs
    )


def row(trial: Trial, reached: Spread | None, *, metrics: Set[str], message_chars: int) -> str:
    """One trial on one line; `metrics` are shown beside the score when it was measured."""
    config = str(trial.config) if trial.config is not None else NO_CONFIG
    ended = ending(trial, reached, metrics=metrics, message_chars=message_chars, brief=False)
    return f"#{trial.ordinal} {author(trial)}: {config} -> {ended}"


def author(trial: Trial) -> str:
    """Who wrote its policy."""
    return one_line(trial.policy.author, AUTHOR_CHARS)


def ending(
    trial: Trial,
    reached: Spread | None,
    *,
    metrics: Set[str],
    message_chars: int,
    brief: bool,
    against: str = "",
    cause: str | None = None,
) -> str:
    """What it `reached` with its parts, or why it failed; `brief` leaves names out.

    `against` says how good it is against another, `cause` stands in place of a failure's message,
    or nothing where it is empty.
    """
    match trial.outcome:
        case Failed(stage=stage, kind=kind, message=message):
            infrastructure = kind is FailureKind.INFRASTRUCTURE
            whose = " (not the configuration's fault)" if infrastructure else ""
            why = one_line(message, message_chars) if cause is None else cause
            return f"FAILED {kind} at {stage}{whose}{f': {why}' if why else ''}"
        case Measured() as measured:
            parts = [against] if against else []
            parts += [_value_words(trial.score, reached)] if trial.score is not None else []
            parts += [
                f"{value.name} {number(value.value)} {value.unit}".rstrip()
                for value in measured.metrics
                if value.name in metrics
            ]
            if measured.breakdown is not None:
                tell = brief_shares if brief else shares
                parts.append(tell(measured.breakdown))
            peak_bytes = max(measured.measurement.peak_memory_bytes, default=0)
            peak = size_words(peak_bytes)
            parts += [peak if brief else f"peak memory {peak}"] if peak_bytes else []
            call_times_s = map(number, measured.measurement.message_times_s)
            told = ", ".join(call_times_s)
            parts += [f"one call of each message takes {told} s"] if told else []
            parts += remarks(trial)
            return "; ".join(parts)


def _value_words(score: Score, reached: Spread | None) -> str:
    if reached is None:
        return score_words(score)
    return line_words(reached, score.unit)


def _parts(breakdown: Breakdown) -> tuple[tuple[str, float], ...]:
    """The parts that make up a step, in seconds."""
    return (
        ("compute", breakdown.compute_s),
        ("exposed", breakdown.exposed_communication_s),
        ("other", breakdown.other_s),
        ("idle", breakdown.idle_s),
    )
