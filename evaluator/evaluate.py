"""Launch a configuration and measure it: the path from a `Config` to an `Outcome`.

Classifies failures, reads what the ranks wrote, computes metrics, explains where the time went,
and records how the launch was started and how it ended.
"""

import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from threading import Condition
from typing import TypeAlias

from evaluator.failures.classify import classify, failed_at_exit, rank_ends
from evaluator.launchers.interleaved import (
    VISIBLE_DEVICES,
    DeviceSlots,
    Slots,
    run_interleaved,
    turn_orders,
)
from evaluator.machine import Snapshot, conditions_between, gpu_conditions, take_snapshot
from evaluator.metrics.base import Evidence
from evaluator.metrics.registry import measure_all
from evaluator.ports import Job, JobResult, Jobs, Launcher, PhaseListener, Reading
from evaluator.timing.steady import steady_part
from evaluator.traces.analysis.breakdown import JobSplit, breakdown
from evaluator.traces.analysis.collectives import Exposure, exposures, work_digest
from evaluator.traces.analysis.stragglers import imbalance, stragglers
from evaluator.traces.model import TraceSet
from records.errors import TraceError
from records.machine import Conditions, LaunchRecord
from records.study import LOCAL, Study
from records.trial import (
    CollectiveTime,
    Config,
    Diagnosis,
    Failed,
    FailureKind,
    Measured,
    Measurement,
    Outcome,
    Stage,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where launches are made: the scheduler's job that we are in, and which machine this is.

    `machine` gives the digest of its description, and may wait until there is one.
    """

    job_id: str | None = None
    machine: Callable[[], str | None] = lambda: None


def launch_record(job: Job, result: JobResult, launcher: str, site: Site) -> LaunchRecord:
    """Return what is needed to repeat a launch, and how it ended."""
    devices = job.environment.get(VISIBLE_DEVICES)
    return LaunchRecord(
        argv=job.argv,
        environment={**result.environment, **job.environment},
        files=tuple(job.files),
        folders=job.folders,
        launcher=launcher,
        job_id=result.job_id or site.job_id,
        machine=site.machine(),
        hosts=(platform.node(),) if launcher == LOCAL else result.hosts,
        cores=job.cores,
        devices=tuple(devices.split(",")) if devices else (),
        reason=result.reason,
        wall_s=result.wall_s,
        ranks=rank_ends(result),
    )


COLLECTIVES_KEPT = 6


def diagnose(evidence: Evidence) -> Diagnosis | None:
    """Explain a launch; None where no step was profiled on every traced rank."""
    traces, split = evidence.traces, evidence.split
    matches, traffic = evidence.matches, evidence.volume
    if traces is None or split is None or matches is None or traffic is None:
        return None
    uneven, waits = imbalance(split), stragglers(traces, matches)
    straggler = waits.straggler if waits is not None else None
    environment = evidence.environment
    ranks_per_node = environment.ranks_per_node if environment else None
    # A host limits the pages that are mapped; the peak counts those used.
    is_limited = environment is not None and environment.device != "cpu"
    return Diagnosis(
        compute_s=split.mean.compute_s,
        exposed_communication_s=split.mean.exposed_communication_s,
        hidden_communication_s=split.mean.hidden_communication_s,
        copy_s=split.mean.other_s,
        idle_s=split.mean.idle_s,
        pipeline_bubble_s=split.mean.pipeline_bubble_s,
        host_wait_s=_host_wait_s(evidence, split),
        collectives=tuple(
            _collective(found, ranks_per_node)
            for found in exposures(traces, matches, traffic)[:COLLECTIVES_KEPT]
        ),
        slowest_rank=uneven.busiest if uneven else None,
        slowest_over_mean=uneven.max_over_mean if uneven else None,
        straggler=straggler,
        straggler_share=waits.exposed_share if waits and straggler is not None else None,
        peak_memory_bytes=max(evidence.peak_memory_bytes, default=0) or None,
        memory_bytes=environment.memory_bytes if environment and is_limited else None,
        work_digest=work_digest(traces, traffic),
    )


def _host_wait_s(evidence: Evidence, split: JobSplit) -> float | None:
    if evidence.idle is None:
        return None
    waited_ns: int = sum(sum(rank.host_wait_ns.tolist()) for rank in evidence.idle)
    return waited_ns / (len(evidence.idle) * len(split.step_numbers) * 10**9)


def _collective(found: Exposure, ranks_per_node: int | None) -> CollectiveTime:
    listed = [group.ranks for group in found.groups if group.ranks]
    crossing = None
    if ranks_per_node is not None and len(listed) == len(found.groups):
        crossing = any(
            ranks[0] // ranks_per_node != ranks[-1] // ranks_per_node for ranks in listed
        )
    return CollectiveTime(
        kind=found.kind.name.lower(),
        group_size=found.groups[0].size,
        ranks=min(listed, default=None),
        group_count=len(found.groups),
        crosses_nodes=crossing,
        call_count=found.call_count,
        bytes=found.bytes,
        exposed_s=found.exposed_s,
        hidden_s=found.hidden_s,
    )


LauncherFactory: TypeAlias = Callable[[], Launcher]
"""Makes a launcher that can run a job in parallel with others."""


class TrialEvaluator:
    """Launches through a recipe and a launcher, and measures what came back.

    Launches that take turns, or run in several threads, need a launcher each: `more_launchers`
    makes those beyond the first, which are kept until `close`. Those in threads get separate
    `slots`, as long as there are enough.
    """

    def __init__(
        self,
        recipe: Jobs,
        launcher: Launcher,
        on_phase: PhaseListener,
        more_launchers: LauncherFactory | None = None,
        slots: Slots | None = None,
        site: Site | None = None,
    ) -> None:
        self._recipe = recipe
        self._launchers = [launcher]
        self._on_phase = on_phase
        self._more_launchers = more_launchers
        self._slots: Slots = slots or DeviceSlots()
        self._site = site or Site()
        self._taken_slots: set[int] = set()
        self._busy: set[int] = set()
        self._stopped = False
        self._changed = Condition()

    def evaluate(self, study: Study, config: Config, workdir: Path) -> Outcome:
        """Launch and measure in `workdir`, an empty folder; its files stay for the caller.

        Several threads may call it. Raises `KeyboardInterrupt` once this is stopped.
        """
        with self._exclusive(self._recipe.job(study, config)) as (launcher, job):
            launch = _Launch.of(job, workdir)
            before = take_snapshot()
            result = launcher.run(launch.job, workdir, self._on_phase)
            conditions = _conditions_since(before, study)
        return self._outcome(study, launch, result, conditions)

    def evaluate_together(
        self, study: Study, configs: Sequence[Config], workdirs: Sequence[Path], seed: int
    ) -> tuple[Outcome, ...]:
        """Launch all together and measure them in turns, each in a separate empty folder.

        A turn is one step, and there are as many as the steps that a launch may time; none is
        profiled. When a launch fails, the others are recorded as ended because of it. Raises
        `ValueError` without a factory of launchers.
        """
        turn_count = max(study.measure.timed_steps, study.measure.max_timed_steps)
        whole = _fixed_steps(study, turn_count)
        launches = [
            _Launch.of(self._recipe.job(whole, config), workdir)
            for config, workdir in zip(configs, workdirs, strict=True)
        ]
        before = take_snapshot()
        ended = run_interleaved(
            [launch.job for launch in launches],
            workdirs,
            self._launchers_for(len(configs)),
            orders=turn_orders(len(configs), turn_count, seed),
            on_phase=self._on_phase,
        )
        conditions = _conditions_since(before, study)
        outcomes = [
            self._outcome(whole, launch, result, conditions)
            for launch, result in zip(launches, ended.results, strict=True)
        ]
        if ended.first_to_fail is not None:
            return _without_partner(outcomes, ended.first_to_fail)
        turn_steps = (1,) * turn_count
        return tuple(
            replace(each, measurement=replace(each.measurement, turn_steps=turn_steps))
            if isinstance(each, Measured)
            else each
            for each in outcomes
        )

    def prepare(self, job: Job, launcher_count: int) -> None:
        """Begin to prepare what jobs like this need in N threads, without waiting for it."""
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
    def _exclusive(self, job: Job) -> Iterator[tuple[Launcher, Job]]:
        """Yield a launcher, and the job in slots, that no other launch uses."""
        with self._changed:
            if self._stopped:
                raise KeyboardInterrupt
            number = next(n for n in count() if n not in self._busy)
            launcher = self._launchers_for(number + 1)[number]
            free = [n for n in range(self._slots.count) if n not in self._taken_slots]
            needed = self._slots.needed(job)
            slots = free[:needed] if len(free) >= needed else []
            self._busy.add(number)
            self._taken_slots.update(slots)
        try:
            yield launcher, self._slots.confine(job, slots) if slots else job
        finally:
            with self._changed:
                self._busy.remove(number)
                self._taken_slots.difference_update(slots)
                self._changed.notify_all()

    def _launchers_for(self, count: int) -> Sequence[Launcher]:
        while len(self._launchers) < count:
            if self._more_launchers is None:
                raise ValueError(
                    "interleaved launches need a launcher each; give a factory of them"
                )
            self._launchers.append(self._more_launchers())
        return self._launchers[:count]

    def _outcome(
        self, study: Study, launch: "_Launch", result: JobResult, conditions: Conditions
    ) -> Outcome:
        """What came of a launch, with how it was made."""
        failed = classify(result)
        reading = failed or self._read(study, launch, result)
        if failed is not None and failed_at_exit(result, failed):
            reading = self._read_finished(study, launch, result, failed)
        here = conditions if study.is_local else None  # they are of this machine, not of nodes
        outcome = reading if isinstance(reading, Failed) else _measure(study, reading, here)
        made = launch_record(launch.asked, result, study.launch.launcher, self._site)
        return replace(outcome, launched=made)

    def _read_finished(
        self, study: Study, launch: "_Launch", result: JobResult, failed: Failed
    ) -> Reading | Failed:
        """Read a job that failed at its end; the failure where its report is not complete.

        What a job printed has no end, so its last lines may be missing.
        """
        reading = self._read(study, launch, result)
        if isinstance(reading, Failed) or reading.measurement.printed:
            return failed
        measurement = replace(reading.measurement, failed_at_exit=failed.message)
        return replace(reading, measurement=measurement)

    def _read(self, study: Study, launch: "_Launch", result: JobResult) -> Reading | Failed:
        try:
            return self._recipe.read(study, launch.job, result, launch.launched_ns)
        except TraceError as error:
            message = str(error).replace(f"{result.workdir}/", "")
            return Failed(stage=Stage.READ, kind=FailureKind.METRIC_ERROR, message=message)


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
        """Make the job's folders, and record how it is started."""
        placed, record = _place(job, workdir), workdir / "launch.json"
        # What starts the same job without cclsearch.
        command = {
            "argv": placed.argv,
            "environment": dict(placed.environment),
            "world_size": placed.world_size,
            "timeout_s": placed.timeout_s,
        }
        record.write_text(json.dumps(command, indent=1), encoding="utf-8")
        return cls(job, placed, record.stat().st_mtime_ns)


def _conditions_since(before: Snapshot, study: Study) -> Conditions:
    gpus = gpu_conditions() if study.environment.device == "cuda" else ()
    found = conditions_between(before, take_snapshot(), gpus)
    return replace(found, isolated=study.launch.isolate)


def _fixed_steps(study: Study, step_count: int) -> Study:
    """Return the study of launches that time N steps and profile none."""
    measure = replace(
        study.measure,
        timed_steps=step_count,
        max_timed_steps=step_count,
        stop_above_s=None,
        profiled_steps=0,
    )
    return replace(study, measure=measure)


def _without_partner(outcomes: Sequence[Outcome], failed: int) -> tuple[Outcome, ...]:
    """The failure of one, and of the others that they could not be measured because of it."""
    cause = outcomes[failed]
    partner = Failed(
        stage=Stage.LAUNCH,
        kind=FailureKind.INFRASTRUCTURE,
        message=f"ended because its partner failed ({cause}); measure it again without that one"
        if isinstance(cause, Failed)
        else "ended because its partner ended before all turns were over; measure it again",
    )
    return tuple(
        outcome if number == failed else replace(partner, launched=outcome.launched)
        for number, outcome in enumerate(outcomes)
    )


def _place(job: Job, workdir: Path) -> Job:
    """Make the folders of a job, and set the variables that name them.

    A variable that has a value already, such as PYTHONPATH, keeps it after the folder.
    """
    folders = {variable: workdir.absolute() / name for variable, name in job.folders.items()}
    for folder in folders.values():
        folder.mkdir(exist_ok=folder == workdir.absolute())
    given = job.environment
    variables = {
        variable: os.pathsep.join([str(folder), *filter(None, [given.get(variable)])])
        for variable, folder in folders.items()
    }
    return replace(job, environment={**given, **variables})


def evidence(study: Study, measurement: Measurement, traces: TraceSet | None) -> Evidence:
    """What metrics may look at: samples, what was asked, and traces if there are any.

    Steps that still belong to the warm-up are left out.
    """
    steps_s = measurement.slowest_rank_s
    first = 0 if measurement.turn_steps else steady_part(steps_s).first
    return Evidence(
        step_times_s=steps_s[first:],
        tokens_per_step=measurement.tokens_per_step,
        rank_count=len(measurement.step_times_s),
        peak_memory_bytes=measurement.peak_memory_bytes,
        traces=traces,
        serving=measurement.serving,
        traffic=measurement.traffic,
        workload=study.workload,
        environment=study.usable_environment,
        compute_precision=measurement.compute_precision,
    )


def _measure(study: Study, reading: Reading, conditions: Conditions | None) -> Measured:
    found = evidence(study, reading.measurement, reading.traces)
    measures = measure_all(found)
    return Measured(
        measurement=replace(reading.measurement, conditions=conditions),
        metrics=measures.values,
        absent=measures.absent,
        breakdown=breakdown(found.split) if found.split else None,
        diagnosis=diagnose(found),
    )
