"""Every trial on one line, short for what it shares with the best, and which lines go for room."""

from collections.abc import Set
from dataclasses import dataclass

from evaluator.objective import Scoring
from records.conditions import OTHERS_CPU_SHARE
from records.history import History
from records.raced import Raced
from records.study import Measure
from records.trial import Config, Failed, FailureKind, Measured, Outcome, Trial
from search.finding import reached
from search.scale import Scale, Speed
from search.words.comparison import disturbed_words, speed_words
from search.words.config import changed_words
from search.words.quantities import many
from search.words.trial import NO_CONFIG, author, ending

FAR_SHARE = 0.10
LATEST_KEPT, FRONT_KEPT = 5, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A history with how good its trials are; `metrics` are shown beside the score."""

    history: History
    best: Trial | None
    scale: Scale
    metrics: Set[str]

    @classmethod
    def of(cls, history: History, scoring: Scoring, measure: Measure) -> "Shown":
        """Read a history once, however many lines are made of it."""
        return cls(
            history=history,
            best=history.best,
            scale=Scale.of(history, scoring, measure),
            metrics=scoring.told_metrics,
        )

    def speed(self, trial: Trial) -> Speed | None:
        """How good a trial is against the best one; None for that one, or where nobody knows."""
        if self.best is None or self.best is trial:
            return None
        return self.scale.speed(trial.ordinal, self.best.ordinal)

    def speed_words(self, trial: Trial) -> str:
        """The same in words, for a single launch with the load that it was made under."""
        if self.best is trial:
            return "the best"
        speed = self.speed(trial)
        if speed is None:
            return ""
        share = None if speed.side_by_side else others_share(trial.outcome)
        return str(speed) if share is None else f"{speed} (others {share:.0%})"


def rows(shown: Shown, *, message_chars: int, dropped: Set[int]) -> str:
    """The trials, newest first, without the dropped ones, which are counted."""
    causes = _causes(shown.history)
    told = [
        _row(trial, shown, message_chars, causes.get(trial.ordinal))
        for trial in reversed(shown.history.trials)
        if trial.ordinal not in dropped
    ]
    if dropped:
        told.append(f"({len(dropped)} more trials are left out)")
    return "\n".join(told)


def raced_words(raced: Raced) -> str:
    """What a race said of the challenger: `1.48x better than #3 (1.16 to 1.90)`."""
    ratio, low, high = raced.ratio, raced.ratio_low, raced.ratio_high
    if ratio is None:
        return f"not told apart from #{raced.incumbent}"
    words = f"{speed_words(ratio)} {'than' if ratio < 1 else 'as'} #{raced.incumbent}"
    evidence = [] if low is None or high is None else [f"{1 / high:.2f} to {1 / low:.2f}"]
    if raced.round_count:
        disturbed = disturbed_words(raced.disturbed_count, raced.round_count)
        evidence.append(many(raced.round_count, "round") + disturbed)
    words += f" ({', '.join(evidence)})" if evidence else ""
    match raced.verdict:
        case "fast" | "slow":
            return words
        case "same":
            return f"{words}, no difference in practice"
        case _:
            return f"{words}, undecided"


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


def _row(trial: Trial, shown: Shown, message_chars: int, cause: str | None) -> str:
    settings = NO_CONFIG if trial.config is None else _settings(trial.config, trial, shown.best)
    ended = ending(
        trial,
        reached(trial, shown.history),
        metrics=shown.metrics,
        message_chars=message_chars,
        brief=True,
        against=shown.speed_words(trial),
        cause=cause,
    )
    return f"#{trial.ordinal} {author(trial)}: {settings} -> {ended}"


def others_share(outcome: Outcome) -> float | None:
    """What other processes took of the cores during a launch, where it disturbs."""
    if not isinstance(outcome, Measured):
        return None
    conditions = (one.conditions for one in outcome.measurements)
    shares = [c.others_cpu_share or 0.0 for c in conditions if c is not None]
    most = max(shares, default=0.0)
    return most if most > OTHERS_CPU_SHARE else None


def _causes(history: History) -> dict[int, str]:
    """What rows say in place of messages that the text shows elsewhere, or in another row."""
    causes: dict[int, str] = {}
    first: dict[FailureKind, int] = {}
    said: dict[str, int] = {}
    for trial in history:
        if isinstance(trial.outcome, Failed):
            if first.setdefault(trial.outcome.kind, trial.ordinal) == trial.ordinal:
                causes[trial.ordinal] = ""
            elif trial.outcome.message in said:
                causes[trial.ordinal] = f"as #{said[trial.outcome.message]}"
            said.setdefault(trial.outcome.message, trial.ordinal)
    if len(history) and isinstance(history.trials[-1].outcome, Failed):
        causes[history.trials[-1].ordinal] = ""
    return causes


def _settings(config: Config, trial: Trial, best: Trial | None) -> str:
    """All of them, or only those that are not as in the best trial where that is shorter."""
    whole = str(config)
    if best is None or best.config is None or best is trial:
        return whole
    if config == best.config:
        return f"as #{best.ordinal}"
    return min(whole, f"as #{best.ordinal} but {changed_words(config, best.config)}", key=len)
