"""Configurations, launched and measured: the path from a config to an outcome."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from threading import Condition
from typing import TypeAlias

from evaluator.analysis.breakdown import breakdown
from evaluator.conditions import Snapshot, conditions_between, gpu_conditions, take_snapshot
from evaluator.diagnosis import diagnose
from evaluator.failures.classify import classify
from evaluator.job import Job, JobResult
from evaluator.launched import Site, launched
from evaluator.metrics.base import Evidence
from evaluator.metrics.registry import measure_all
from evaluator.places import Places
from evaluator.ports import Launcher, PhaseListener, Reading, Recipe
from evaluator.timing.steady import steady_part
from evaluator.together import run_together, turn_orders
from evaluator.traces.errors import TraceError
from evaluator.traces.job import TraceSet
from records.conditions import Conditions
from records.study import Study
from records.trial import Config, Failed, FailureKind, Measured, Measurement, Outcome, Stage

LauncherFactory: TypeAlias = Callable[[], Launcher]
"""Makes a launcher that can run a job beside those of others."""


class TrialEvaluator:
    """Launches through a recipe and a launcher, and measures what came back.

    Launches that are to be together, or in several threads, need a launcher each: `more_launchers`
    makes those beyond the first, which are kept until `close`. Those in threads get `places` of
    their own, as long as there are enough.
    """

    def __init__(
        self,
        recipe: Recipe,
        launcher: Launcher,
        on_phase: PhaseListener,
        more_launchers: LauncherFactory | None = None,
        places: Places | None = None,
        site: Site | None = None,
    ) -> None:
        self._recipe = recipe
        self._launchers = [launcher]
        self._on_phase = on_phase
        self._more_launchers = more_launchers
        self._places = places or Places()
        self._site = site or Site()
        self._taken_places: set[int] = set()
        self._busy: set[int] = set()
        self._stopped = False
        self._changed = Condition()

    def evaluate(self, study: Study, config: Config, workdir: Path) -> Outcome:
        """Launch and measure in `workdir`, an empty folder; its files stay for the caller.

        Several threads may call it at once. Raises `KeyboardInterrupt` once this is stopped.
        """
        with self._apart(self._recipe.job(study, config)) as (launcher, job):
            launch = _Launch.of(job, workdir)
            before = take_snapshot()
            result = launcher.run(launch.job, workdir, self._on_phase)
            conditions = _conditions_since(before, study)
        return self._outcome(study, launch, result, conditions)

    def evaluate_together(
        self, study: Study, configs: Sequence[Config], workdirs: Sequence[Path], seed: int
    ) -> tuple[Outcome, ...]:
        """Launch all at once and measure them in turns, each in an empty folder of its own.

        A turn is as many steps as a launch times at least, and they are as many turns as fit in
        the most that it times; none is profiled. When a launch fails, the failure of the others
        says that it is not theirs. Raises `ValueError` without a factory of launchers.
        """
        turn_count = max(1, study.measure.max_timed_steps // study.measure.timed_steps)
        turn = _fixed_steps(study, study.measure.timed_steps)
        launches = [
            _Launch.of(self._recipe.job(turn, config), workdir)
            for config, workdir in zip(configs, workdirs, strict=True)
        ]
        before = take_snapshot()
        ended = run_together(
            [launch.job for launch in launches],
            workdirs,
            self._launchers_for(len(configs)),
            orders=turn_orders(len(configs), turn_count, seed),
            on_phase=self._on_phase,
        )
        conditions = _conditions_since(before, study)
        whole = _fixed_steps(study, turn_count * study.measure.timed_steps)
        outcomes = [
            self._outcome(whole, launch, result, conditions)
            for launch, result in zip(launches, ended.results, strict=True)
        ]
        if ended.first_to_fail is not None:
            return _without_partner(outcomes, ended.first_to_fail)
        turn_steps = (study.measure.timed_steps,) * turn_count
        return tuple(_in_turns(outcome, turn_steps) for outcome in outcomes)

    def prepare(self, job: Job, launcher_count: int) -> None:
        """Begin to make ready what jobs like this need in so many threads; returns at once."""
        for launcher in self._launchers_for(launcher_count):
            launcher.prepare(job)

    def stop(self) -> None:
        """End every launch that another thread waits for, and let none start after it."""
        with self._changed:
            self._stopped = True
            for launcher in self._launchers:
                launcher.stop()
            self._changed.wait_for(lambda: not self._busy)

    def close(self) -> None:
        """Close the launchers that were made here; the first one is the caller's."""
        while len(self._launchers) > 1:
            self._launchers.pop().close()

    @contextmanager
    def _apart(self, job: Job) -> Iterator[tuple[Launcher, Job]]:
        """A launcher that nobody else uses, and the job in places that nobody else has."""
        with self._changed:
            if self._stopped:
                raise KeyboardInterrupt
            number = next(n for n in count() if n not in self._busy)
            launcher = self._launchers_for(number + 1)[number]
            free = [n for n in range(self._places.count) if n not in self._taken_places]
            needed = self._places.needed(job)
            places = free[:needed] if len(free) >= needed else []
            self._busy.add(number)
            self._taken_places.update(places)
        try:
            yield launcher, self._places.confine(job, places) if places else job
        finally:
            with self._changed:
                self._busy.remove(number)
                self._taken_places.difference_update(places)
                self._changed.notify_all()

    def _launchers_for(self, count: int) -> Sequence[Launcher]:
        while len(self._launchers) < count:
            if self._more_launchers is None:
                raise ValueError("launches together need a launcher each; give a factory of them")
            self._launchers.append(self._more_launchers())
        return self._launchers[:count]

    def _outcome(
        self, study: Study, launch: "_Launch", result: JobResult, conditions: Conditions
    ) -> Outcome:
        """What came of a launch, with how it was made."""
        outcome = self._classified(study, launch, result, conditions)
        made = launched(launch.asked, result, study.launch.launcher, self._site)
        return replace(outcome, launched=made)

    def _classified(
        self, study: Study, launch: "_Launch", result: JobResult, conditions: Conditions
    ) -> Outcome:
        failed = classify(result)
        if failed is not None:
            return failed
        try:
            reading = self._recipe.read(study, launch.job, result, launch.launched_ns)
        except TraceError as error:
            message = str(error).replace(f"{result.workdir}/", "")
            return Failed(stage=Stage.READ, kind=FailureKind.METRIC_ERROR, message=message)
        if isinstance(reading, Failed):
            return reading
        measurement = replace(reading.measurement, conditions=conditions)
        return _measured(study, replace(reading, measurement=measurement))


@dataclass(frozen=True, slots=True)
class _Launch:
    """A job that is about to run, as it was `asked` for, and placed in its folder.

    The time of launch is in nanoseconds since the Unix epoch.
    """

    asked: Job
    job: Job
    launched_ns: int

    @classmethod
    def of(cls, job: Job, workdir: Path) -> "_Launch":
        """Make the job's folders, and leave on record how it is started."""
        placed, record = _placed(job, workdir), workdir / "launch.json"
        record.write_text(_by_hand(placed), encoding="utf-8")
        return cls(job, placed, record.stat().st_mtime_ns)


def _conditions_since(before: Snapshot, study: Study) -> Conditions:
    gpus = gpu_conditions() if study.environment.device == "cuda" else ()
    return conditions_between(before, take_snapshot(), gpus)


def _fixed_steps(study: Study, step_count: int) -> Study:
    """The study of launches that time so many steps and profile none."""
    measure = replace(
        study.measure,
        timed_steps=step_count,
        max_timed_steps=step_count,
        stop_above_s=None,
        profiled_steps=0,
    )
    return replace(study, measure=measure)


def _in_turns(outcome: Outcome, turn_steps: tuple[int, ...]) -> Outcome:
    if isinstance(outcome, Failed):
        return outcome
    return replace(outcome, measurement=replace(outcome.measurement, turn_steps=turn_steps))


def _without_partner(outcomes: Sequence[Outcome], failed: int) -> tuple[Outcome, ...]:
    """The failure of one, and of the others that they could not be measured because of it."""
    cause = outcomes[failed]
    partner = Failed(
        stage=Stage.LAUNCH,
        kind=FailureKind.INFRASTRUCTURE,
        message=f"ended because its partner failed ({cause}); measure it again without that one"
        if isinstance(cause, Failed)
        else "ended because its partner left before all turns were over; measure it again",
    )
    return tuple(
        outcome if number == failed else replace(partner, launched=outcome.launched)
        for number, outcome in enumerate(outcomes)
    )


def _placed(job: Job, workdir: Path) -> Job:
    """The job with its folders made, and told where they are."""
    places = {variable: workdir.absolute() / name for variable, name in job.folders.items()}
    for folder in places.values():
        folder.mkdir()
    told = {variable: str(folder) for variable, folder in places.items()}
    return replace(job, environment={**job.environment, **told})


def _by_hand(job: Job) -> str:
    """How to start the same job without us, for the record."""
    return json.dumps(
        {
            "argv": job.argv,
            "environment": dict(job.environment),
            "world_size": job.world_size,
            "timeout_s": job.timeout_s,
        },
        indent=1,
    )


def settled_steps_s(measurement: Measurement) -> tuple[float, ...]:
    """Step times of the job without those that still belong to its warm-up."""
    steps_s = measurement.slowest_rank_s
    return steps_s if measurement.turn_steps else steps_s[steady_part(steps_s).first :]


def evidence(study: Study, measurement: Measurement, traces: TraceSet | None) -> Evidence:
    """What metrics may look at: samples, what was asked, and traces if there are any."""
    return Evidence(
        step_times_s=settled_steps_s(measurement),
        tokens_per_step=measurement.tokens_per_step,
        rank_count=len(measurement.step_times_s),
        peak_memory_bytes=measurement.peak_memory_bytes,
        traces=traces,
        serving=measurement.serving,
        workload=study.workload,
        environment=study.usable_environment,
    )


def _measured(study: Study, reading: Reading) -> Measured:
    seen = evidence(study, reading.measurement, reading.traces)
    measures = measure_all(seen)
    return Measured(
        measurement=reading.measurement,
        metrics=measures.values,
        absent=measures.absent,
        breakdown=breakdown(seen.split) if seen.split else None,
        diagnosis=diagnose(seen),
    )
