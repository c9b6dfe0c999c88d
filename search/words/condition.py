"""The conditions of a launch in words, for a person."""

from collections.abc import Iterable
from dataclasses import dataclass

from records.conditions import Conditions, GpuConditions
from records.trial import Measured, Outcome
from search.words.quantities import many


def conditions_words(conditions: Conditions) -> str:
    """Whether the launch was disturbed, then every fact that the machine told."""
    verdict = "; ".join(conditions.disturbances) or "nothing disturbed the launch"
    facts = ", ".join(_facts(conditions))
    return f"{verdict} ({facts})" if facts else verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbed:
    """Launches that something else on the machine may have slowed, and why the last one was.

    `watched_count` are those whose machine was watched, disturbed or not.
    """

    launch_count: int
    watched_count: int
    last_cause: str

    @property
    def count_words(self) -> str:
        """How many, short: `disturbed: 4 of 5 launches`."""
        return f"disturbed: {self.launch_count} of {many(self.watched_count, 'launch', 'launches')}"

    @property
    def caveat(self) -> str:
        """How many, and why the last one."""
        return f"{self.count_words}, the last because {self.last_cause}"


def disturbed_among(outcomes: Iterable[Outcome]) -> Disturbed | None:
    """How many of these launches were disturbed; None when none was."""
    conditions = conditions_of(outcomes)
    disturbed = [launch.disturbances for launch in conditions if launch.disturbances]
    if not disturbed:
        return None
    return Disturbed(
        launch_count=len(disturbed),
        watched_count=len(conditions),
        last_cause=disturbed[-1][0],
    )


def conditions_of(outcomes: Iterable[Outcome]) -> tuple[Conditions, ...]:
    """Of every launch that was measured and watched, in their order."""
    measured = (outcome for outcome in outcomes if isinstance(outcome, Measured))
    found = (one.conditions for outcome in measured for one in outcome.measurements)
    return tuple(each for each in found if each is not None)


def disturbed_words(disturbed: Disturbed) -> str:
    """How many launches were disturbed, and how."""
    return (
        f"{disturbed.launch_count} of {disturbed.watched_count} launches, the last because "
        f"{disturbed.last_cause}; a quieter machine tells smaller differences apart"
    )


def _facts(conditions: Conditions) -> list[str]:
    shares = (
        ("others", conditions.others_cpu_share),
        ("steal", conditions.steal_share),
        ("CPU pressure", conditions.cpu_pressure_share),
        ("memory pressure", conditions.memory_pressure_share),
        ("I/O pressure", conditions.io_pressure_share),
    )
    facts = [f"{name} {share:.0%}" for name, share in shares if share is not None]
    if conditions.load_average is not None:
        facts.append(f"load {conditions.load_average:g}")
    if conditions.available_memory_bytes is not None:
        facts.append(f"{conditions.available_memory_bytes / 2**30:.1f} GiB available")
    facts += _clock_facts("CPU", conditions.cpu_clock_hz, conditions.cpu_temperature_celsius)
    for number, gpu in enumerate(conditions.gpus):
        facts += _gpu_facts(number, gpu)
    return facts


def _gpu_facts(number: int, gpu: GpuConditions) -> list[str]:
    return _clock_facts(f"GPU {number}", gpu.sm_clock_hz, gpu.temperature_celsius)


def _clock_facts(name: str, clock_hz: float | None, celsius: float | None) -> list[str]:
    clock = [f"{name} at {clock_hz / 1e9:.2f} GHz"] if clock_hz is not None else []
    heat = [f"{name} at {celsius:.0f} °C"] if celsius is not None else []
    return clock + heat
