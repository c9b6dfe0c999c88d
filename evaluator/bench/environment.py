"""Reads what a benchmark's machine is, beside what its ranks tell."""

import os
import platform
import re
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from evaluator.bench.record import EnvInfo
from evaluator.checkout import commit_of
from evaluator.workloads.collectives.sweep_request import SweepFacts, SweepRequest

_CONTAINER = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The host and the working tree that a benchmark runs on; None for what they do not tell."""

    host: str
    cpu_model: str | None
    core_count: int
    kernel: str
    governor: str | None
    network_interfaces: tuple[str, ...]
    commit: str | None
    container: str | None

    def environment(self, request: SweepRequest, facts: SweepFacts | None) -> EnvInfo:
        """With what the ranks of a launch told of themselves, if they came to that."""
        return EnvInfo(
            device_type=request.device.value,
            device_name=facts.device_name if facts else None,
            torch_version=facts.torch_version if facts else version("torch"),
            torchcomms_version=facts.torchcomms_version if facts else None,
            comm_adapter_name=request.adapter.value,
            comm_backend_name=facts.backend_name if facts else request.backend,
            comm_backend_version=facts.backend_version if facts else None,
            host=self.host,
            cpu_model=self.cpu_model,
            core_count=self.core_count,
            kernel=self.kernel,
            governor=self.governor,
            network_interfaces=self.network_interfaces,
            commit=self.commit,
            container=self.container,
        )


def this_machine(folder: Path, root: Path = Path("/")) -> Machine:
    """Look at this machine, mounted at `root`, and at the working tree around `folder`."""
    return Machine(
        host=platform.node(),
        cpu_model=_cpu_model(root),
        core_count=len(os.sched_getaffinity(0)),
        kernel=platform.release(),
        governor=_governor(root),
        network_interfaces=_interfaces(root),
        commit=commit_of(folder),
        container=_container(root),
    )


def _cpu_model(root: Path) -> str | None:
    for line in _text(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return None


def _governor(root: Path) -> str | None:
    """What sets the clock of the cores; several where they differ."""
    paths = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    return ", ".join(sorted({_text(path).strip() for path in paths})) or None


def _interfaces(root: Path) -> tuple[str, ...]:
    """Network interfaces that are not down."""
    paths = sorted((root / "sys/class/net").glob("*/operstate"))
    return tuple(path.parent.name for path in paths if _text(path).strip() in ("up", "unknown"))


def _container(root: Path) -> str | None:
    """Id of the container that we run in, or its kind where no id is told."""
    found = _CONTAINER.search(_text(root / "proc/self/cgroup"))
    if found:
        return found[0]
    return "docker" if (root / ".dockerenv").exists() else None


def _text(path: Path) -> str:
    """The file's text; empty where there is no such file or it may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
