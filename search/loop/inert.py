"""Inert knobs: trials that differ in one knob alone and ran the same work, by their traces.

A framework may ignore a setting in silence. Two trials are one until shown otherwise when they ran
equal kernels, collectives and bytes, had equal losses, and no launches tell their times apart.
Times alone never show that a knob is inert.
"""

import math
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import combinations

from evaluator.objective import Scoring
from records.study import Measure, Value
from records.trial import Config, History, Measured, Trial
from search.loop.leader import noise_of, took_turns
from search.loop.learned import differing_only_in, same_work
from search.loop.relative_speed import RelativeSpeeds, single_launch_ratio

WITHOUT_NOISE = 1.25
"""Ratio of single launches that may be equal, where nothing was launched twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InertKnob:
    """A knob whose `values` ran the same work in trials that differ in it alone, the seed's first.

    `ordinals` are those trials.
    """

    name: str
    values: tuple[Value, ...]
    ordinals: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two measured trials that differ in one knob alone, and whether they are one."""

    knob: str
    one: Trial
    other: Trial
    equal: bool

    @property
    def values(self) -> frozenset[str]:
        return frozenset(_spelled(_value(trial, self.knob)) for trial in (self.one, self.other))


def inert_knobs(history: History, scoring: Scoring, measure: Measure) -> tuple[InertKnob, ...]:
    """Return the knobs of which two values or more ran the same work, wherever both were tried."""
    pairs = _pairs(history, scoring, measure)
    return tuple(
        InertKnob(
            name=knob,
            values=tuple(dict.fromkeys(_value(trial, knob) for trial in trials)),
            ordinals=tuple(trial.ordinal for trial in trials),
        )
        for knob in dict.fromkeys(pair.knob for pair in pairs)
        for trials in _groups([pair for pair in pairs if pair.knob == knob])
    )


def equal_configs(history: History, scoring: Scoring, measure: Measure) -> Set[Config]:
    """Return the configurations that differ from a measured one in an inert value alone.

    A value that is inert in one kind of job may matter in another, such as sequence parallelism
    without tensor parallelism: both must run the same kinds of collectives.
    """
    pairs = _pairs(history, scoring, measure)
    differing = {(p.knob, p.values, _shape(p.one)) for p in pairs if not p.equal}
    found = set[Config]()
    for pair in pairs:
        shape = _shape(pair.one)
        if not pair.equal or (pair.knob, pair.values, shape) in differing:
            continue
        for trial in history.measured:
            if trial.config is not None and _shape(trial) == shape:
                now = _spelled(trial.config.values.get(pair.knob))
                for here, there in ((pair.one, pair.other), (pair.other, pair.one)):
                    if now == _spelled(_value(here, pair.knob)):
                        other = {pair.knob: _value(there, pair.knob)}
                        found.add(Config({**trial.config.values, **other}))
    return found


def _pairs(history: History, scoring: Scoring, measure: Measure) -> tuple[_Pair, ...]:
    """Return all pairs of trials with traces that differ in one knob alone."""
    known = [trial for trial in history.measured if _shape(trial) is not None]
    knobs = dict.fromkeys(knob for trial in known if trial.config for knob in trial.config)
    found = [
        _Pair(knob, one, other, same_work(one, other))
        for knob in knobs
        for group in differing_only_in(knob, History(tuple(known)))
        for one, other in combinations(group, 2)
    ]
    if history.weights or not any(pair.equal for pair in found):
        return ()
    speeds = RelativeSpeeds.of(history, scoring, measure)
    together = any(took_turns(repeat.outcome) for repeat in history.repeats)
    noise = noise_of(history.repeats, scoring, together=together)
    by_chance = WITHOUT_NOISE if noise is None else single_launch_ratio(noise)
    return tuple(
        replace(pair, equal=pair.equal and not _differ(speeds, pair.one, pair.other, by_chance))
        for pair in found
    )


def _differ(speeds: RelativeSpeeds, one: Trial, other: Trial, by_chance: float) -> bool:
    """Whether launches show that two trials differ in time."""
    speed = speeds.speed(one.ordinal, other.ordinal)
    if speed is None:
        return False
    if speed.low is not None and speed.high is not None:
        return not speed.low <= 1 <= speed.high
    return abs(math.log(speed.ratio)) > math.log(by_chance)


def _groups(pairs: Sequence[_Pair]) -> Iterator[list[Trial]]:
    """Yield the trials of each set of values of a knob that are one, by rising ordinal."""
    differing = {pair.values for pair in pairs if not pair.equal}
    classes: list[set[str]] = []
    trials: dict[str, dict[int, Trial]] = {}
    for pair in pairs:
        if not pair.equal or pair.values in differing:
            continue
        for trial in (pair.one, pair.other):
            trials.setdefault(_spelled(_value(trial, pair.knob)), {})[trial.ordinal] = trial
        joined = set(pair.values).union(*(each for each in classes if each & pair.values))
        classes = [*(each for each in classes if not each & pair.values), joined]
    for each in classes:
        members = {n: trial for value in each for n, trial in trials[value].items()}
        yield [members[ordinal] for ordinal in sorted(members)]


def _shape(trial: Trial) -> frozenset[tuple[str, int | None]] | None:
    """Return the kinds of collectives that a trial ran, and in how large groups."""
    outcome = trial.outcome
    if not isinstance(outcome, Measured) or outcome.diagnosis is None:
        return None
    if outcome.diagnosis.work_digest is None:
        return None
    return frozenset((one.kind, one.group_size) for one in outcome.diagnosis.collectives)


def _value(trial: Trial, knob: str) -> Value:
    if trial.config is None:
        raise ValueError(f"trial {trial.ordinal} has no configuration")
    return trial.config.values[knob]


def _spelled(value: Value | None) -> str:
    """Return a value as text: 1, 1.0 and True are equal, and different settings."""
    return repr(value)
