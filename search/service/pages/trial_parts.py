"""What a page about one trial shows: its settings, samples, metrics, time and launches."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evaluator.failures.logs import signal_name
from records.computed import ComputedMetric
from records.launched import Launched, RankEnd
from records.rows import StudyRow
from records.store import Store
from records.trial import Config, Measured, MetricValue, Outcome, Purpose, Repeat, Trial
from search.charts.strips import Strip, strip_chart
from search.machines import machine_of
from search.report_page.cells import metric_words
from search.report_page.where_time import time_chart
from search.words.machine import machine_line
from search.words.quantities import many
from search.words.trial import number, one_line

NO_EFFECT = "no effect"
MOST_STRIPS = 24
COMMAND_CHARS = 20_000
SERIES = {
    Purpose.SELF_TEST: "noise",
    Purpose.RACE: "race",
    Purpose.HALVING: "thinning out",
    Purpose.CONFIRM: "confirming",
    Purpose.HELD_OUT: "held out",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A knob of a trial, and what it is elsewhere; None where there is nothing to compare with."""

    knob: str
    value: str
    best: str | None
    parent: str | None

    @property
    def differs(self) -> bool:
        """Whether any of them sets it otherwise."""
        return any(other not in (None, self.value) for other in (self.best, self.parent))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricLine:
    """A metric in the version that counts, and what was computed of it besides."""

    name: str
    words: str
    better: str
    version: int
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLine:
    """How a rank ended, and the first line with which it told of an error."""

    who: str
    how: str
    is_good: bool
    first_error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPart:
    """A launch as someone needs it who wants to make it again."""

    name: str
    command: str
    added: tuple[tuple[str, str], ...]
    facts: tuple[tuple[str, str], ...]
    ranks: tuple[RankLine, ...]


def settings_of(trial: Trial, best: Trial | None, parent: Trial | None) -> tuple[Setting, ...]:
    """Every knob of a trial, beside those of the best and of the trial that it follows."""
    others = [None if other is None else other.config for other in (best, parent)]
    configs = [config for config in (trial.config, *others) if config is not None]
    knobs = dict.fromkeys(knob for config in configs for knob in config)
    return tuple(
        Setting(
            knob=knob,
            value=_set(trial.config, knob) or NO_EFFECT,
            best=_set(others[0], knob),
            parent=_set(others[1], knob),
        )
        for knob in knobs
    )


def _set(config: Config | None, knob: str) -> str | None:
    if config is None:
        return None
    return str(config[knob]) if knob in config.values else NO_EFFECT


def samples_chart(trial: Trial, repeats: Sequence[Repeat]) -> str | None:
    """Step times of every launch of a trial as dots; None where nothing was measured."""
    own = [_strip("own launch", one, inside) for inside, one in _measured(trial.outcome)]
    again = [
        _strip(f"{SERIES[repeat.purpose]} {repeat.series}, round {repeat.round}", one, inside)
        for repeat in repeats
        if repeat.ordinal == trial.ordinal
        for inside, one in _measured(repeat.outcome)
    ]
    strips = [*own, *again[-MOST_STRIPS:]]
    if not any(strip.values for strip in strips):
        return None
    return strip_chart(
        strips,
        title=f"Step times of the launches of trial {trial.ordinal}",
        label="ms per step, of its slowest rank",
    )


def _measured(outcome: Outcome) -> Iterator[tuple[str, Measured]]:
    """What was measured, by the name of the context that it was measured in."""
    if not isinstance(outcome, Measured):
        return
    inside = [(c.name, c.outcome) for c in outcome.contexts if isinstance(c.outcome, Measured)]
    yield from inside or [("", outcome)]


def _strip(name: str, measured: Measured, inside: str) -> Strip:
    times_ms = tuple(1e3 * time_s for time_s in measured.measurement.slowest_rank_s)
    profiled = ", profiled" if measured.measurement.profiled else ""
    where = f" in {inside}" if inside else ""
    return Strip(
        name=f"{name}{where}",
        values=times_ms,
        tip=f"{name}{where}: {many(len(times_ms), 'step')}{profiled}",
        is_own=name == "own launch",
    )


def metric_lines(
    values: Sequence[MetricValue], computed: Sequence[ComputedMetric]
) -> tuple[MetricLine, ...]:
    """The newest of each metric, with what every computation afterwards said."""
    return tuple(
        MetricLine(
            name=value.name,
            words=metric_words(value),
            better=value.better,
            version=value.version,
            others=tuple(_computed(each) for each in computed if each.name == value.name),
        )
        for value in values
    )


def _computed(each: ComputedMetric) -> str:
    when = f"version {each.version}, computed {each.computed_at[:10]}"
    if each.value is None:
        return f"{when}: none, {one_line(each.absent or '', 200)}"
    return f"{when}: {number(each.value)} {each.unit}".rstrip()


def time_bars(trials: Sequence[Trial | None], best: Trial | None) -> str | None:
    """Where the profiled steps of these trials went; None where the first has none."""
    split = [
        (trial, trial.outcome.breakdown)
        for trial in trials
        if trial is not None
        and isinstance(trial.outcome, Measured)
        and trial.outcome.breakdown is not None
    ]
    if not split or split[0][0] is not trials[0]:
        return None
    distinct = {trial.ordinal: (trial, parts) for trial, parts in split}
    return time_chart(tuple(distinct.values()), None if best is None else best.ordinal)


def launches_of(trial: Trial, row: StudyRow, store: Store) -> tuple[LaunchPart, ...]:
    """How a trial was launched, in each context where a study has several."""
    inside = [(one.name, one.outcome) for one in trial.outcome.contexts]
    return tuple(
        _launch(name, outcome.launched, store)
        for name, outcome in inside or [(row.study.name, trial.outcome)]
        if outcome.launched is not None
    )


def _launch(name: str, launched: Launched, store: Store) -> LaunchPart:
    return LaunchPart(
        name=name,
        command=shlex.join(launched.argv)[:COMMAND_CHARS],
        added=(
            *launched.environment.items(),
            *((name, f"./{folder}") for name, folder in launched.folders.items()),
        ),
        facts=tuple(_facts(launched, store)),
        ranks=tuple(map(_rank, launched.ranks)),
    )


def _facts(launched: Launched, store: Store) -> Iterator[tuple[str, str]]:
    yield "on", ", ".join(launched.hosts) or "a host that is not told"
    yield "by", launched.launcher
    if launched.job_id is not None:
        yield "job", launched.job_id
    if launched.cores:
        yield "cores", ", ".join(map(str, launched.cores))
    if launched.devices:
        yield "devices", ", ".join(launched.devices)
    machine = machine_of(launched, store)
    if machine is not None:
        yield "machine", machine_line(machine)
    elif launched.machine is not None:
        yield "machine", "its description is not here any more"
    yield "ended", f"{launched.reason} after {number(launched.wall_s)} s"


def _rank(end: RankEnd) -> RankLine:
    if end.signal is not None:
        how = f"by {signal_name(end.signal)}"
    else:
        how = "not told" if end.status is None else f"status {end.status}"
    return RankLine(
        who="the command" if end.rank is None else f"rank {end.rank}",
        how=how,
        is_good=end.status == 0 and end.signal is None,
        first_error=end.first_error,
    )
