"""Machines on record in words: one in a line, and what differs between two."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from records.machine import Checkout, Gpu, Machine

GIB = 1 << 30
SHOWN_CHARS = 100
NOT_TOLD = "not told"


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
    """What is otherwise now, one fact each, hardware first; nothing where all is the same."""
    old, new = _facts(then), _facts(now)
    named = (_difference(name, old.get(name), new.get(name)) for name in {**old, **new})
    others = sorted(
        name
        for name in {*then.packages, *now.packages} - {*then.software, *now.software}
        if then.packages.get(name) != now.packages.get(name)
    )
    return (*filter(None, named), *_other_packages(others))


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


def _difference(name: str, then: str | None, now: str | None) -> str | None:
    if then == now:
        return None
    return f"{name}: {_shown(then)}, now {_shown(now)}"


def _shown(fact: str | None) -> str:
    fact = NOT_TOLD if fact is None else fact
    return fact if len(fact) <= SHOWN_CHARS else f"{fact[:SHOWN_CHARS]}..."


def _other_packages(names: Sequence[str]) -> Iterator[str]:
    if names:
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        yield f"other packages: {', '.join(names[:5])}{more} differ in version or are not installed"


def _cores(machine: Machine) -> str:
    if machine.usable_core_count == machine.core_count:
        return f"{machine.core_count} cores"
    return f"{machine.usable_core_count} of {machine.core_count} cores"


def _gpus(gpus: Sequence[Gpu]) -> Iterator[str]:
    """Equal GPUs that follow each other, in words."""
    for words, same in groupby(map(_gpu, gpus)):
        yield f"{len(list(same))} x {words}"


def _gpu(gpu: Gpu) -> str:
    memory = "" if gpu.memory_bytes is None else f" with {gpu.memory_bytes / GIB:.0f} GiB"
    power = "" if gpu.power_limit_w is None else f" at {gpu.power_limit_w:g} W"
    return f"{gpu.name}{memory}{power}"


def _checkout(tree: Checkout | None) -> str | None:
    return None if tree is None else str(tree)
