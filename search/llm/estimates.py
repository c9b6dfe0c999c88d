"""What the model may ask before it submits a policy: what is expected of settings, unlaunched."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from records.expression import format_bytes
from records.study import Study
from records.trial import Config, History
from search.llm.tools import EstimateRequest
from search.loop.learned import LearnedConstraint
from search.loop.relative_speed import RelativeSpeeds
from search.loop.trial import duplicate_of
from search.strategies.base import Chooser
from search.strategies.cost_model import MEMORY
from search.study.spaces import PreparedStudy
from search.views.format import differing_knobs, one_line

MOST_CONFIGS: Final = 8
"""Configurations that are answered in one call."""
ANSWER_CHARS: Final = 500
PARTS_SHOWN: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator:
    """Answers the model's questions of one turn, from what the search knows; launches nothing."""

    study: Study
    history: History
    prepared: PreparedStudy
    offline: Chooser
    learned: Sequence[LearnedConstraint]

    def answer(self, request: EstimateRequest) -> str:
        """Return a line for each configuration; settings that one leaves out are the best's."""
        asked = request.configs
        best = self.history.best
        start = {} if best is None or best.config is None else best.config.values
        lines = (
            f"{number}. {one_line(self._line({**start, **given}), ANSWER_CHARS)}"
            for number, given in enumerate(asked[:MOST_CONFIGS], start=1)
        )
        rest = len(asked) - MOST_CONFIGS
        more = [f"The last {rest} are not answered: {MOST_CONFIGS} at a time."] if rest > 0 else []
        return "\n".join((*lines, *more))

    def _line(self, settings: Mapping[str, object]) -> str:
        found = self.prepared.space.check(settings)
        if not isinstance(found, Config):
            return f"not valid: {'; '.join(found)}"
        return f"{found}: {'; '.join(self._facts(found))}"

    def _facts(self, config: Config) -> Iterator[str]:
        space = self.prepared.space
        if (known := duplicate_of(config, self.history)) is not None:
            yield known
            return
        yield "valid, not launched yet"
        for rule in self.learned:
            if (broken := rule.breaks(config)) is not None:
                yield f"like trials that ended in {rule.kind}: {broken}"
        if words := self.offline.expectation(self.study, self.history, config):
            yield words
        if (size := space.derived_number(config, MEMORY)) is not None:
            yield f"about {format_bytes(size)} a rank"
        if parts := self.offline.estimates(config):
            whole_s = sum(parts.values())
            largest = sorted(parts.items(), key=lambda part: -part[1])[:PARTS_SHOWN]
            shares = ", ".join(f"{name} {seconds / whole_s:.0%}" for name, seconds in largest)
            yield f"its step by sizes alone: {shares}"
        yield from self._nearest(config)

    def _nearest(self, config: Config) -> Iterator[str]:
        """Yield the measured trial with the fewest other settings, and its speed."""
        best, distance = self.history.best, self.prepared.space.distance
        others = {
            t.config: t
            for t in self.history.measured
            if t.config is not None and t.config != config
        }
        if best is None or not others:
            return
        other, trial = min(others.items(), key=lambda each: distance(config, each[0]))
        changed = ", ".join(
            f"{knob} {other.values.get(knob, '(not set)')}"
            for knob in differing_knobs(config, other)
        )
        scoring = self.prepared.scoring.over(self.history)
        scale = RelativeSpeeds.of(self.history, scoring, self.study.measure)
        speed = None if trial is best else scale.speed(trial.ordinal, best.ordinal)
        result = "the best" if speed is None else f"{speed} of the best"
        yield f"nearest measured #{trial.ordinal} ({changed}): {result}"
