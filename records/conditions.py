"""What else a machine did during one launch, and when that was too much to ignore."""

from dataclasses import dataclass

OTHERS_CPU_SHARE = 0.20
STEAL_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuConditions:
    """One GPU as a launch ended; `slowed_by` names what held its clock down, if anything did."""

    sm_clock_hz: float | None
    temperature_celsius: float | None
    slowed_by: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What else the machine did during one launch; `None` where it does not tell.

    CPU shares are of the time of all cores: `others` are processes that are not the job's, `steal`
    is what a hypervisor gave away. Pressure is the share of the launch in which some task waited,
    the job's own included. Load, clock and temperature are those at the end, memory is the less of
    start and end.
    """

    load_average: float | None
    others_cpu_share: float | None
    steal_share: float | None
    cpu_pressure_share: float | None
    memory_pressure_share: float | None
    io_pressure_share: float | None
    available_memory_bytes: int | None
    cpu_clock_hz: float | None
    cpu_temperature_celsius: float | None
    gpus: tuple[GpuConditions, ...] = ()

    @property
    def disturbances(self) -> tuple[str, ...]:
        """What may have slowed the launch, in words for a person; nothing if it was quiet."""
        found: list[str] = []
        if self.others_cpu_share is not None and self.others_cpu_share > OTHERS_CPU_SHARE:
            found.append(f"other processes used {self.others_cpu_share:.0%} of the cores")
        if self.steal_share is not None and self.steal_share > STEAL_SHARE:
            found.append(f"the hypervisor gave away {self.steal_share:.0%} of the cores")
        for number, gpu in enumerate(self.gpus):
            if gpu.slowed_by:
                found.append(f"GPU {number} was slowed by {' and '.join(gpu.slowed_by)}")
        return tuple(found)
