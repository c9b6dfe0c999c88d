"""What a job ran on: hardware, system and software, as a value that is kept once per store."""

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
    """One GPU as its driver names it; None for what it does not tell."""

    name: str
    memory_bytes: int | None
    driver: str | None
    power_limit_w: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine as a run of a search found it; None for what it does not tell.

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
