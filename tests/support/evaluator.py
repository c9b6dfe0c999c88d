"""An evaluator that answers from a table instead of launching, for tests of whatever searches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Protocol

from evaluator.evaluate import evidence
from evaluator.metrics.registry import measure_all
from records.machine import Conditions, LaunchRecord
from records.study import Study
from records.trial import Config, Failed, FailureKind, Measured, Measurement, Outcome, Stage

LOSSES = (4.0, 3.5, 3.25)


class Ending(Protocol):
    """How launches of a configuration end."""

    def outcome(self, study: Study, launch: int, noise: Random) -> Outcome:
        """Give the outcome of launch `launch`, counted from 0, of this configuration."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Takes:
    """Ends measured, on one rank; each launch is off by a factor of up to 1 ± `noise`."""

    step_time_s: float
    noise: float = 0.0
    losses: tuple[float, ...] = LOSSES
    peak_memory_bytes: int = 1 << 20
    conditions: Conditions | None = None

    def outcome(self, study: Study, launch: int, noise: Random) -> Outcome:  # noqa: ARG002 - the port
        """Give a measured outcome whose metrics are those of a launch without traces."""
        step_s = self.step_time_s * (1 + self.noise * noise.uniform(-1, 1))
        measurement = Measurement(
            step_times_s=((step_s,) * study.measure.timed_steps,),
            warmup_times_s=((step_s,) * study.measure.warmup_steps,),
            losses=self.losses,
            tokens_per_step=study.workload.tokens_per_step,
            peak_memory_bytes=(self.peak_memory_bytes,),
            wall_s=step_s * (study.measure.timed_steps + study.measure.warmup_steps),
            device=study.environment.device,
            torch_version="tabular",
            conditions=self.conditions,
        )
        measures = measure_all(evidence(study, measurement, traces=None))
        return Measured(measurement=measurement, metrics=measures.values, absent=measures.absent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fails:
    """Ends in a failure of this kind."""

    kind: FailureKind
    message: str = "as the table says"
    stage: Stage = Stage.LAUNCH
    reason: str = ""
    """Why its job ended, where that is recorded."""

    def outcome(self, study: Study, launch: int, noise: Random) -> Outcome:  # noqa: ARG002 - the port
        """Give the failure."""
        launched = LaunchRecord(argv=(), reason=self.reason, wall_s=1.0) if self.reason else None
        return Failed(stage=self.stage, kind=self.kind, message=self.message, launched=launched)


@dataclass(frozen=True, slots=True)
class InTurn:
    """Ends its first launch like the first ending, and so on; the last one stays."""

    endings: tuple[Ending, ...]

    def outcome(self, study: Study, launch: int, noise: Random) -> Outcome:
        """Give what the ending whose turn it is gives."""
        turn = min(launch, len(self.endings) - 1)
        return self.endings[turn].outcome(study, launch, noise)


@dataclass(frozen=True, slots=True, kw_only=True)
class TabularEvaluator:
    """Ends each launch as a table says; equal seeds and launches give equal outcomes.

    `launches` lists the configurations in the order in which they were launched. Raises `KeyError`
    for a configuration that the table lacks.
    """

    endings: Mapping[Config, Ending]
    seed: int = 0
    launches: list[Config] = field(default_factory=list)

    def evaluate(self, study: Study, config: Config, workdir: Path) -> Outcome:
        """Give the outcome of one more launch, and leave a log in `workdir` as a rank would."""
        launch = self.launches.count(config)
        self.launches.append(config)
        (workdir / "rank0.log").write_text(f"launch {launch} of {config}\n", encoding="utf-8")
        noise = Random(f"{self.seed}/{config.digest}/{launch}")
        return self.endings[config].outcome(study, launch, noise)

    def evaluate_together(
        self,
        study: Study,
        configs: Sequence[Config],
        workdirs: Sequence[Path],
        seed: int,  # noqa: ARG002 - the port
    ) -> tuple[Outcome, ...]:
        """Give the outcomes of one more launch each, as if they had taken turns."""
        measure = replace(study.measure, timed_steps=study.measure.max_timed_steps)
        outcomes = map(
            self.evaluate, [replace(study, measure=measure)] * len(configs), configs, workdirs
        )
        return tuple(_in_turns(outcome) for outcome in outcomes)


def _in_turns(outcome: Outcome) -> Outcome:
    if isinstance(outcome, Failed):
        return outcome
    steps = len(outcome.measurement.slowest_rank_s)
    return replace(outcome, measurement=replace(outcome.measurement, turn_steps=(steps,)))
