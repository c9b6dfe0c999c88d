"""The conditions of a launch in words, for a person."""

from collections.abc import Sequence

from records.conditions import Conditions, GpuConditions


def conditions_words(conditions: Conditions) -> str:
    """Whether the launch was disturbed, then every fact that the machine told."""
    verdict = "; ".join(conditions.disturbances) or "nothing disturbed the launch"
    facts = ", ".join(_facts(conditions))
    return f"{verdict} ({facts})" if facts else verdict


def disturbed_words(launches: Sequence[Conditions]) -> str | None:
    """How many of these launches were disturbed, and how; None when none was."""
    disturbed = [launch.disturbances for launch in launches if launch.disturbances]
    if not disturbed:
        return None
    return (
        f"{len(disturbed)} of {len(launches)} launches, the last because {disturbed[-1][0]}; "
        "a quieter machine tells smaller differences apart"
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
