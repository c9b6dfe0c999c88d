"""Describe machines, launches and the conditions of launches as text."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from records.errors import CodecError, StoreError
from records.machine import POWER_CAP, Checkout, Conditions, Gpu, LaunchRecord, Machine, RankEnd
from records.store.store import Store
from records.trial import Measured, Measurement, Outcome
from search.views.format import format_count, format_number, format_whole_percent, one_line

GIB = 1 << 30
SHOWN_CHARS = 100
UNKNOWN = "unknown"


def machine_line(machine: Machine) -> str:
    """What a machine is, in one line."""
    memory = "" if machine.memory_bytes is None else f", {machine.memory_bytes / GIB:.0f} GiB"
    gpus = "".join(f", {words}" for words in _gpus(machine.gpus))
    torch = machine.software.get("torch")
    ours = "" if machine.cclsearch is None else f" at {machine.cclsearch}"
    return (
        f"{machine.host}: {machine.cpu_model or 'a processor'}, {_cores(machine)}{memory}{gpus}; "
        f"{machine.system}, {machine.python}{f', torch {torch}' if torch else ''}, "
        f"cclsearch {machine.version}{ours}"
    )


def differences(then: Machine, now: Machine) -> tuple[str, ...]:
    """What has changed, one fact each, hardware first; nothing where all is the same."""
    old, new = _facts(then), _facts(now)
    changes = [
        f"{name}: {_shown(old.get(name))}, now {_shown(new.get(name))}"
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]
    others = sorted(
        name
        for name in {*then.packages, *now.packages} - {*then.software, *now.software}
        if then.packages.get(name) != now.packages.get(name)
    )
    if others:
        more = f" and {len(others) - 5} more" if len(others) > 5 else ""
        listed = f"{', '.join(others[:5])}{more}"
        changes.append(f"other packages: {listed} differ in version or are not installed")
    return tuple(changes)


def _facts(machine: Machine) -> Mapping[str, str | None]:
    memory = machine.memory_bytes
    return {
        "host": machine.host,
        "processor": machine.cpu_model,
        "cores": _cores(machine),
        "NUMA nodes": None if machine.numa_node_count is None else str(machine.numa_node_count),
        "memory": None if memory is None else f"{memory / GIB:.1f} GiB",
        "GPUs": ", ".join(_gpus(machine.gpus)) or "none",
        "GPU drivers": ", ".join(sorted({gpu.driver for gpu in machine.gpus if gpu.driver}))
        or None,
        "governor": machine.governor,
        "system": machine.system,
        "kernel": machine.kernel,
        "libc": machine.libc,
        "container": machine.container,
        "image": machine.image,
        "Python": machine.python,
        "cclsearch": machine.version,
        "cclsearch's commit": _checkout(machine.cclsearch),
        "commit of what is launched": _checkout(machine.script),
        **machine.software,
        **machine.environment,
    }


def _shown(fact: str | None) -> str:
    fact = UNKNOWN if fact is None else fact
    return fact if len(fact) <= SHOWN_CHARS else f"{fact[:SHOWN_CHARS]}..."


def _cores(machine: Machine) -> str:
    if machine.usable_core_count == machine.core_count:
        return f"{machine.core_count} cores"
    return f"{machine.usable_core_count} of {machine.core_count} cores"


def _gpus(gpus: Sequence[Gpu]) -> Iterator[str]:
    """Equal GPUs that follow each other, as text."""
    words = []
    for gpu in gpus:
        memory = "" if gpu.memory_bytes is None else f" with {gpu.memory_bytes / GIB:.0f} GiB"
        power = "" if gpu.power_limit_w is None else f" at {gpu.power_limit_w:g} W"
        words.append(f"{gpu.name}{memory}{power}")
    return (f"{len(list(same))} x {each}" for each, same in groupby(words))


def _checkout(tree: Checkout | None) -> str | None:
    return None if tree is None else str(tree)


LINE_CHARS = 20_000


def launch_facts(launched: LaunchRecord, machine: Machine | None) -> Iterator[tuple[str, str]]:
    """How a launch was started and ended, by label, for people who want to repeat it."""
    facts = _launch_facts(launched, machine)
    return ((label, one_line(words, LINE_CHARS)) for label, words in facts)


def versions_words(measurement: Measurement) -> str | None:
    """The versions that a job reported of itself, of a machine that may have others; else None."""
    found = (f"{name} {version}" for name, version in measurement.versions.items())
    return one_line(", ".join(found), LINE_CHARS) or None


def _launch_facts(launched: LaunchRecord, machine: Machine | None) -> Iterator[tuple[str, str]]:
    yield "command", shlex.join(launched.argv)
    added = [f"{name}={shlex.quote(value)}" for name, value in launched.environment.items()]
    added += [f"{name}=./{folder}" for name, folder in launched.folders.items()]
    if added:
        yield "environment", " ".join(added)
    where = [f"{', '.join(launched.hosts) or 'an unknown host'}, launcher {launched.launcher}"]
    where += [] if launched.job_id is None else [f"job {launched.job_id}"]
    where += [f"cores {', '.join(map(str, launched.cores))}"] if launched.cores else []
    where += [f"devices {', '.join(launched.devices)}"] if launched.devices else []
    yield "where", "; ".join(where)
    if machine is not None:
        yield "ran on", machine_line(machine)
    elif launched.machine is not None:
        yield "ran on", "a machine whose description is no longer stored"
    # Consecutive ranks with the same end share a line.
    alike = groupby(launched.ranks, key=lambda end: (end.rank is None, _how(end)))
    ends = "".join(f", {_who(tuple(ranks))} {how}" for (_, how), ranks in alike)
    after = f"{launched.reason} after {format_number(launched.wall_s)} s"
    yield "ended", f"{after}{ends.replace(',', ';', 1)}"
    for end in launched.ranks:
        if end.first_error is not None:
            yield f"first error of {_who((end,))}", end.first_error


def _who(ends: Sequence[RankEnd]) -> str:
    first, last = ends[0].rank, ends[-1].rank
    if first is None:
        return "the command"
    return f"rank {first}" if first == last else f"ranks {first} to {last}"


def _how(end: RankEnd) -> str:
    if end.signal is not None:
        from evaluator.failures.logs import signal_name  # compiles many patterns

        return f"by {signal_name(end.signal)}"
    return "in an unknown way" if end.status is None else f"with status {end.status}"


def conditions_words(conditions: Conditions) -> str:
    """Whether the launch was disturbed, then every recorded fact."""
    verdict = "; ".join(conditions.disturbances) or "nothing disturbed the launch"
    facts = ", ".join(_condition_facts(conditions))
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
        watched = format_count(self.watched_count, "launch", "launches")
        return f"disturbed: {self.launch_count} of {watched}"

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
    count, last = len(disturbed), disturbed[-1][0]
    return Disturbed(launch_count=count, watched_count=len(conditions), last_cause=last)


def conditions_of(outcomes: Iterable[Outcome]) -> tuple[Conditions, ...]:
    """Of every launch that was measured and watched, in their order."""
    measured = (outcome for outcome in outcomes if isinstance(outcome, Measured))
    found = (one.conditions for outcome in measured for one in outcome.measurements)
    return tuple(each for each in found if each is not None)


def disturbed_words(disturbed: Disturbed) -> str:
    """How many launches were disturbed, and how."""
    return (
        f"{disturbed.launch_count} of {disturbed.watched_count} launches, the last because "
        f"{disturbed.last_cause}; a quieter machine resolves smaller differences"
    )


def _condition_facts(conditions: Conditions) -> list[str]:
    shares = (
        ("others", conditions.others_cpu_share),
        ("steal", conditions.steal_share),
        ("CPU pressure", conditions.cpu_pressure_share),
        ("memory pressure", conditions.memory_pressure_share),
        ("I/O pressure", conditions.io_pressure_share),
    )
    facts = [f"{name} {format_whole_percent(share)}" for name, share in shares if share is not None]
    if conditions.load_average is not None:
        facts.append(f"load {conditions.load_average:g}")
    if conditions.available_memory_bytes is not None:
        facts.append(f"{conditions.available_memory_bytes / 2**30:.1f} GiB available")
    facts += _clock_facts("CPU", conditions.cpu_clock_hz, conditions.cpu_temperature_celsius)
    for index, gpu in enumerate(conditions.gpus):
        facts += _clock_facts(f"GPU {index}", gpu.sm_clock_hz, gpu.temperature_celsius)
        if POWER_CAP in (gpu.slowed_by or ()):
            facts.append(f"GPU {index} at its power cap")
    return facts


def _clock_facts(name: str, clock_hz: float | None, celsius: float | None) -> list[str]:
    clock = [f"{name} at {clock_hz / 1e9:.2f} GHz"] if clock_hz is not None else []
    heat = [f"{name} at {celsius:.0f} °C"] if celsius is not None else []
    return clock + heat


def machine_of(launched: LaunchRecord | None, records: Store) -> Machine | None:
    """Its description; None where none is stored or it cannot be read."""
    if launched is None or launched.machine is None:
        return None
    try:
        return records.machine(launched.machine)
    except (StoreError, CodecError):
        return None
