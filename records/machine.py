"""Hardware and software of a machine, how a job was launched on it, and what disturbed it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from records.codec import to_json
from records.study import digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """A working tree of git; `changes` is the SHA-256 of what differs from the commit.

    None where nothing differs, and `is_changed` is None where git did not answer in time.
    """

    commit: str
    is_changed: bool | None
    changes: str | None = None

    def __str__(self) -> str:
        if self.is_changed is None:
            return f"{self.commit[:12]}, perhaps changed"
        return f"{self.commit[:12]}{f', changed ({self.changes[:12]})' if self.changes else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as its driver names it; None for what it does not report."""

    name: str
    memory_bytes: int | None
    driver: str | None
    power_limit_w: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine as a run of a search found it; None for what is unknown.

    `cclsearch` is the working tree that we run from, `script` the one around the user's script or
    the folder that we were started in. `software` are the versions that matter most, `packages`
    all that is installed for our Python. `environment` holds harmless variables that every job
    saw. Home folders are written as `~`.
    """

    host: str
    system: str
    kernel: str
    libc: str | None
    python: str
    version: str
    cclsearch: Checkout | None
    script: Checkout | None
    cpu_model: str | None
    core_count: int
    usable_core_count: int
    numa_node_count: int | None
    memory_bytes: int | None
    governor: str | None
    network_interfaces: tuple[str, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    container: str | None = None
    image: str | None = None
    software: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Identity of the description: whatever differs gives another."""
        return digest(to_json(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """A node of a cluster that a run of a search was given, and how it did in the test before.

    `product_s` is a product of matrices, `exchange_s` the faster of its exchanges with two
    neighbours; both are None where it was not tested. `slow` is how it is slower than the others;
    one that is not `used` was left out. `switch` is the one that it is connected to.
    """

    name: str
    gpus: tuple[str, ...] = ()
    switch: str | None = None
    product_s: float | None = None
    exchange_s: float | None = None
    slow: str | None = None
    used: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """How one rank ended, and the first line of its error, if it reported one.

    `rank` is None for the command above the ranks. `status` and `signal` are None for each other,
    and both where only the rank's own words are known.
    """

    rank: int | None
    status: int | None
    signal: int | None
    first_error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRecord:
    """One recorded launch; home folders are written as `~`, secrets are left out.

    `environment` is what was added to the environment that every job has. `files` were put into the
    working folder first, and are among the artifacts; each of `folders` was made in it, and
    the variable it is listed under names it to the job. `machine` is the digest of the stored
    description of hardware and software. `cores` and `devices` are where the job was
    confined to, empty where it was not. `job_id` is the scheduler's, if any.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    folders: Mapping[str, str] = field(default_factory=dict)
    launcher: str = "local"
    job_id: str | None = None
    machine: str | None = None
    hosts: tuple[str, ...] = ()
    cores: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()
    reason: str
    wall_s: float
    ranks: tuple[RankEnd, ...] = ()


LEAST_OTHERS_SHARE, MOST_OTHERS_SHARE = 0.05, 0.20
IDLE_COVERS = 0.5
"""Share of the idle cores that others may use without a rank having to wait."""
STEAL_SHARE = 0.05
POWER_CAP = "power cap"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuConditions:
    """One GPU as a launch ended; `slowed_by` names what held its clock down, if anything did."""

    sm_clock_hz: float | None
    temperature_celsius: float | None
    slowed_by: tuple[str, ...] | None

    @property
    def disturbed_by(self) -> tuple[str, ...]:
        """What slowed it from outside; a configuration that is busy enough meets its power cap."""
        return tuple(cause for cause in self.slowed_by or () if cause != POWER_CAP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What else the machine did during one launch; `None` where unknown.

    CPU shares are of the time of all cores: `others` are processes that are not the job's, `steal`
    is what a hypervisor gave away, `idle` what nobody used. Pressure is the share of the launch in
    which some task waited, the job's own included. Load, clock and temperature are those at the
    end, memory is the less of start and end. An `isolated` job had priority over others.
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
    idle_cpu_share: float | None = None
    gpus: tuple[GpuConditions, ...] = ()
    isolated: bool = False

    @property
    def disturbances(self) -> tuple[str, ...]:
        """What may have slowed the launch, as text; nothing if it was quiet."""
        found: list[str] = []
        if self.disturbing_share is not None:
            found.append(f"other processes used {self.disturbing_share:.0%} of the cores")
        if self.steal_share is not None and self.steal_share > STEAL_SHARE:
            found.append(f"the hypervisor gave away {self.steal_share:.0%} of the cores")
        for number, gpu in enumerate(self.gpus):
            if gpu.disturbed_by:
                found.append(f"GPU {number} was slowed by {' and '.join(gpu.disturbed_by)}")
        return tuple(found)

    @property
    def disturbing_share(self) -> float | None:
        """The share of the cores that other processes used, where that may have slowed the launch.

        On two busy cores, others that used 3 % slowed launches by 5 %, 8 % by 20 % and 16 % by 38 %
        (`benchmarks/disturbed_launches.py`); where many cores are idle, they use those. Isolated
        launches were slowed by 1 % while others used 12 %.
        """
        share, idle = self.others_cpu_share, self.idle_cpu_share
        limit = MOST_OTHERS_SHARE
        if idle is not None and not self.isolated:
            limit = min(max(IDLE_COVERS * idle, LEAST_OTHERS_SHARE), MOST_OTHERS_SHARE)
        return share if share is not None and share > limit else None

    @property
    def largest_slowdown(self) -> float:
        """By which factor that may have slowed the launch; infinite where nothing tells.

        All ranks wait for the one whose core others share, so a share counts four times, and what
        is left of the cores twice (`benchmarks/disturbed_launches.py`).
        """
        if not self.disturbances:
            return 1.0
        taken = (self.others_cpu_share or 0) + (self.steal_share or 0)
        if taken >= 1 or any(gpu.disturbed_by for gpu in self.gpus):
            return math.inf
        return max(1 + 4 * taken, (1 - taken) ** -2)
