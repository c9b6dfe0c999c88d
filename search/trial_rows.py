"""Every trial on one line, short for what it shares with the best, and which lines go for room."""

from collections.abc import Set

from records.history import History
from records.raced import Raced
from records.trial import Config, Trial
from search.choosers.chooser import differing
from search.words.trial import NO_CONFIG, author, ending, number

FAR_SHARE = 0.10
LATEST_KEPT, FRONT_KEPT = 5, 12


def rows(history: History, *, metrics: Set[str], message_chars: int, dropped: Set[int]) -> str:
    """The trials, newest first, without the dropped ones, which are counted."""
    best = history.best
    told = [
        _row(trial, best, history, metrics, message_chars)
        for trial in reversed(history.trials)
        if trial.ordinal not in dropped
    ]
    if dropped:
        told.append(f"({len(dropped)} more trials are left out)")
    return "\n".join(told)


def changed_words(config: Config, against: Config) -> str:
    """What a configuration sets otherwise: `pp=2 tp=4 without schedule`."""
    return " ".join(
        f"{knob}={config.values[knob]}" if knob in config.values else f"without {knob}"
        for knob in differing(against, config)
    )


def raced_words(raced: Raced) -> str:
    """What a race said of the challenger: `worse than #3, 1.12x (1.05 to 1.19)`."""
    ratio, low, high = raced.ratio, raced.ratio_low, raced.ratio_high
    if raced.verdict == "fast" and ratio and low and high:
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    against = f"#{raced.incumbent}"
    match raced.verdict:
        case "fast":
            words = f"better than {against}"
        case "slow":
            words = f"worse than {against}"
        case "same":
            words = f"no better or worse than {against} in practice"
        case _:
            words = f"not told apart from {against}"
    if ratio is None:
        return words
    interval = "" if low is None or high is None else f" ({low:.2f} to {high:.2f})"
    return f"{words}, {ratio:.2f}x{interval}"


def within(trial: Trial, best: Trial, share: float, history: History) -> bool:
    """Whether a trial came as close as this to the best one."""
    if trial.score is None or best.score is None:
        return False
    cost, least = history.cost(trial), history.cost(best)
    return abs(cost - least) <= share * abs(least)


def least_useful_first(history: History) -> list[int]:
    """Ordinals of the trials whose rows may be left out, in the order in which they go.

    Those measured far from the best, those that never launched, other failures, what is left; the
    oldest first within each. The best, a front and the latest five are never among them.
    """
    best = history.best
    kept = {trial.ordinal for trial in history.trials[-LATEST_KEPT:]}
    kept |= {*history.front[:FRONT_KEPT]}
    if best is not None:
        kept.add(best.ordinal)

    def use(trial: Trial) -> tuple[int, int]:
        if trial.score is not None and best is not None:
            return (3 if within(trial, best, FAR_SHARE, history) else 0), trial.ordinal
        return (2 if trial.reached_launch else 1), trial.ordinal

    rest = (trial for trial in history if trial.ordinal not in kept)
    return [trial.ordinal for trial in sorted(rest, key=use)]


def _row(
    trial: Trial, best: Trial | None, history: History, metrics: Set[str], message_chars: int
) -> str:
    settings = NO_CONFIG if trial.config is None else _settings(trial.config, trial, best)
    ended = ending(trial, metrics=metrics, message_chars=message_chars, brief=True)
    told = f"#{trial.ordinal} {author(trial)}: {settings} -> {ended}{_again(trial, history)}"
    races = (raced_words(race) for race in history.raced if race.challenger == trial.ordinal)
    return "; ".join((told, *races))


def _settings(config: Config, trial: Trial, best: Trial | None) -> str:
    """All of them, or only those that are not as in the best trial where that is shorter."""
    whole = str(config)
    if best is None or best.config is None or best is trial:
        return whole
    if config == best.config:
        return f"as #{best.ordinal}"
    return min(whole, f"as #{best.ordinal} but {changed_words(config, best.config)}", key=len)


def _again(trial: Trial, history: History) -> str:
    """What a trial scored when it was launched again, which counts more than its own launch."""
    cost = history.costs.get(trial.ordinal)
    if cost is None or trial.score is None or history.weights:
        return ""
    value = cost if trial.score.cost == trial.score.value else -cost
    return f"; {number(value)} {trial.score.unit}".rstrip() + " when launched again"
