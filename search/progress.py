"""Progress for pipes and programs: one plain line per trial, or one JSON event per line."""

import json
import sys
from collections.abc import Sequence
from typing import TextIO

from evaluator.timing.noise import Noise
from evaluator.timing.paired import detectable
from records.codec import to_json
from records.history import History
from records.study import Measure, Study
from records.trial import Config, Failed, Measured, Outcome, Policy, Repeat, Trial
from search.finding import reached
from search.rules import claim_rule
from search.standing import Race
from search.words.objective import objective_words
from search.words.repeat import PURPOSES, noise_words, race_words
from search.words.trial import (
    caveats,
    line_words,
    number,
    one_line,
    remarks,
    shares,
)

MESSAGE_CHARS = 200


class PlainProgress:
    """One line per trial, without colours or cursor movement."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self._out = out

    def study_started(self, study_id: str, study: Study, strategy: str) -> None:
        """Say what is searched."""
        self._say(f"study {study_id}: {study.name}, objective {objective_words(study)}")
        self._say(strategy)

    def trial_started(self, ordinal: int, policy: Policy) -> None:
        """Stay silent: the line comes when the trial ends."""

    def config_decided(self, ordinal: int, config: Config) -> None:
        """Stay silent."""

    def phase(self, name: str, ordinal: int | None) -> None:
        """Stay silent."""

    def trial_finished(self, trial: Trial, history: History) -> None:
        """Give the trial's line."""
        self._say(trial_line(trial, history))

    def noise_measured(self, noise: Noise, measure: Measure) -> None:
        """Say how much equal launches differ, and what the search can see."""
        self._say(f"noise: {noise_words(noise, measure)}")

    def repeat_finished(self, repeat: Repeat) -> None:
        """Say how a launch of an earlier trial's configuration went."""
        outcome = repeat.outcome
        if isinstance(outcome, Failed):
            went = f"FAILED {one_line(str(outcome), MESSAGE_CHARS)}"
        else:
            step_time_s = outcome.metric("step_time")
            went = f"step_time {number(step_time_s)} s" if step_time_s is not None else "measured"
            went += _in_parentheses(caveats(outcome))
        what_for = PURPOSES[repeat.purpose]
        self._say(f"trial {repeat.ordinal} again, {what_for}, round {repeat.round + 1}: {went}")

    def race_decided(self, race: Race) -> None:
        """Say who leads after a race."""
        self._say(f"raced: {race_words(race)}")

    def notice(self, words: str) -> None:
        """Say it so that it is seen among the trials."""
        self._say(f"NOTICE: {words}")

    def _say(self, line: str) -> None:
        _print(line, self._out)


def trial_line(trial: Trial, history: History) -> str:
    """Ordinal, author, configuration and result of a trial on one line."""
    config = str(trial.config) if trial.config is not None else "(no configuration)"
    head = f"trial {trial.ordinal}  {trial.policy.author}  {config}"
    if isinstance(trial.outcome, Failed):
        failed = trial.outcome
        return f"{head}  FAILED {failed.kind}: {one_line(failed.message, MESSAGE_CHARS)}"
    score = result_words(trial, history)
    front = "  on the front" if trial.ordinal in history.front else ""
    best = "  best so far" if history.best is trial else front
    parts = f"  ({shares(trial.outcome.breakdown)})" if trial.outcome.breakdown else ""
    return f"{head}  {score}{best}{parts}{_in_parentheses(remarks(trial))}"


def result_words(trial: Trial, history: History) -> str:
    """What a trial reached, with its launches where there are several; empty without a score."""
    found = reached(trial, history)
    if found is None or trial.score is None:
        return ""
    return line_words(found, trial.score.unit)


def _in_parentheses(words: Sequence[str]) -> str:
    return f"  ({'; '.join(words)})" if words else ""


class JsonProgress:
    """One JSON object per event, on a line of its own."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self._out = out

    def study_started(self, study_id: str, study: Study, strategy: str) -> None:
        """Give the study's identity, and why it is searched this way."""
        self._say(
            "study_started",
            study_id=study_id,
            name=study.name,
            objective=study.objective.expression,
            more_objectives=[more.expression for more in study.more_objectives],
            limits=list(study.limits),
            strategy=study.strategy,
            why=strategy,
            trials=study.budget.trials,
        )

    def trial_started(self, ordinal: int, policy: Policy) -> None:
        """Give the author of the proposal."""
        self._say(
            "trial_started", ordinal=ordinal, author=policy.author, rationale=policy.rationale
        )

    def config_decided(self, ordinal: int, config: Config) -> None:
        """Give the configuration about to be launched."""
        self._say("config_decided", ordinal=ordinal, config=dict(config.values))

    def phase(self, name: str, ordinal: int | None) -> None:
        """Give the phase entered, and whose launch it is."""
        self._say("phase", phase=name, ordinal=ordinal)

    def trial_finished(self, trial: Trial, history: History) -> None:
        """Give the result."""
        best = history.best
        self._say(
            "trial_finished",
            **trial_summary(trial, history),
            best=best.ordinal if best is not None else None,
        )

    def noise_measured(self, noise: Noise, measure: Measure) -> None:
        """Give the standard deviation of a round's log ratio, and the ratio that can be seen."""
        ratio = detectable(noise, claim_rule(measure))
        self._say("noise_measured", sd=noise.sd, freedom=noise.freedom, detectable=ratio)

    def repeat_finished(self, repeat: Repeat) -> None:
        """Give the outcome of a launch that was made again."""
        self._say(
            "repeat_finished",
            purpose=repeat.purpose.value,
            ordinal=repeat.ordinal,
            series=repeat.series,
            round=repeat.round,
            **outcome_summary(repeat.outcome),
        )

    def race_decided(self, race: Race) -> None:
        """Give the verdict on a challenger."""
        self._say("race_decided", **json.loads(to_json(race)))

    def notice(self, words: str) -> None:
        """Give the words."""
        self._say("notice", words=words)

    def _say(self, event: str, **facts: object) -> None:
        text = json.dumps({"event": event, **facts}, allow_nan=False)
        _print(text, self._out)


def trial_summary(trial: Trial, history: History) -> dict[str, object]:
    """Facts of a trial for programs; absent values are null.

    `score` is over the `launches` that count, `low` and `high` bound its 95 % interval; of two
    launches there are `both` values instead.
    """
    found = reached(trial, history)
    return {
        "ordinal": trial.ordinal,
        "author": trial.policy.author,
        "config": dict(trial.config.values) if trial.config else None,
        "score": None if found is None else found.centre,
        "low": None if found is None else found.low,
        "high": None if found is None else found.high,
        "launches": None if found is None else found.launch_count,
        "both": None if found is None else found.both,
        "unit": trial.score.unit if trial.score else None,
        "broken_limits": list(trial.score.broken) if trial.score else [],
        **outcome_summary(trial.outcome),
        "policy": trial.policy.digest,
        "started_at": trial.started_at,
        "ended_at": trial.ended_at,
    }


def outcome_summary(outcome: Outcome) -> dict[str, object]:
    """Facts of an outcome for programs; absent values are null."""
    failed = outcome if isinstance(outcome, Failed) else None
    return {
        "status": outcome.status,
        "failure_kind": failed.kind.value if failed else None,
        "failure_stage": failed.stage.value if failed else None,
        "message": failed.message if failed else None,
        "metrics": None if isinstance(outcome, Failed) else _values(outcome),
        "caveats": list(caveats(outcome)),
    }


def _values(measured: Measured) -> dict[str, float]:
    return {metric.name: metric.value for metric in measured.metrics}


def _print(line: str, out: TextIO) -> None:
    """Print at once; when whoever read has gone, the search ends as it does on Ctrl-C."""
    try:
        print(line, file=out, flush=True)
    except BrokenPipeError:
        raise KeyboardInterrupt from None
