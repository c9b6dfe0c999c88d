"""The configuration of the service: its address, tokens, limits, environments and webhooks."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import Field, ValidationError

from evaluator.launchers.cluster.schedulers.catalog import LAUNCHERS
from records.codec import from_document
from records.errors import Strict, StudyError, shown, suggestion
from records.files import read_text
from records.study import LOCAL, Cluster
from search.service.auth import KnownToken
from search.study.study_file import first_fault

HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\]")
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
BUILTIN = "builtin"
THIS_MACHINE = "this machine"
Positive: TypeAlias = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen(Strict):
    """Where the service is reached; `hosts` are names that proxies and browsers may use for it.

    With `https`, a proxy on this machine offers it over https, under the first of `hosts`.
    """

    address: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, lt=1 << 16)] = 8765
    hosts: tuple[str, ...] = ()
    https: bool = False

    def __post_init__(self) -> None:
        try:
            ip_address(self.address)
        except ValueError as error:
            raise StudyError(
                f"[listen] address {self.address!r} is not an IP address; 127.0.0.1 is this "
                "machine alone, 0.0.0.0 every network"
            ) from error
        if foreign := next((name for name in self.hosts if not HOST.fullmatch(name)), None):
            raise StudyError(
                f"[listen] hosts: {foreign!r} is not a host name; give it without a port"
            )
        if self.https and not self.hosts:
            raise StudyError("[listen] https needs hosts; give the name that browsers open")

    @property
    def cookie_name(self) -> str:
        """The name of the cookie: browsers send the cookies of a host to all of its ports.

        Over https the prefix of the name keeps other ports and hosts from setting it.
        """
        return "__Host-cclsearch" if self.https else f"cclsearch_{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return ip_address(self.address).is_loopback

    @property
    def is_private(self) -> bool:
        """Whether only this machine can reach it, also through a proxy."""
        return self.is_loopback and not self.https

    @property
    def known_hosts(self) -> frozenset[str]:
        """Every name that the Host header may have, without a port."""
        return frozenset(name.lower() for name in (*LOOPBACK_NAMES, self._own_name, *self.hosts))

    @property
    def scheme(self) -> str:
        """How browsers reach it."""
        return "https" if self.https else "http"

    @property
    def url(self) -> str:
        """What a browser opens, without a slash at the end."""
        return f"https://{self.hosts[0]}" if self.https else f"http://{self._own_name}:{self.port}"

    @property
    def _own_name(self) -> str:
        return f"[{self.address}]" if ":" in self.address else self.address


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedEnvironment(Strict):
    """An environment that studies may be submitted for: a study file, and how many run in parallel.

    `study` is a path relative to the configuration; without one it is the built-in study on the
    machine of the service. `launcher` and `cluster` come before those of the file. Environments
    with the same `devices` share them; without a name they are this machine, or the launcher's.
    """

    study: str | None = None
    parallel_studies: Positive = 1
    devices: str = ""
    description: str = ""
    launcher: str | None = None
    cluster: Cluster | None = None

    def __post_init__(self) -> None:
        if self.launcher is not None and self.launcher not in LAUNCHERS:
            raise StudyError(
                f"[environment] launcher {shown(self.launcher)} is unknown; "
                f"{suggestion(self.launcher, LAUNCHERS)}"
            )
        if not self.devices:
            is_here = self.launcher in {None, LOCAL}
            devices = THIS_MACHINE if is_here else f"nodes of {self.launcher}"
            object.__setattr__(self, "devices", devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(Strict):
    """What one token may use; further requests are refused.

    `trials` and `cost_usd`, which is what the model may cost, are for each study, and
    `queued_studies` may wait or run for everyone together.
    """

    requests_per_s: Annotated[float, Field(gt=0)] = 100.0
    burst: Positive = 1000
    body_bytes: Positive = 1 << 20
    queued_studies: Positive = 100
    trials: Positive = 200
    cost_usd: Annotated[float, Field(ge=0)] | None = None
    event_streams: Positive = 200
    downloads: Positive = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook(Strict):
    """Where the end of every study is reported, signed with the secret in a file."""

    url: str
    secret_file: str

    def __post_init__(self) -> None:
        if not self.url.startswith(("https://", "http://")):
            raise StudyError(f"[webhook] url {self.url!r} is not a URL; it begins with https://")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig(Strict):
    """The whole configuration; the default is loopback with the built-in environment."""

    listen: Listen = field(default_factory=Listen)
    limits: Limits = field(default_factory=Limits)
    token: tuple[KnownToken, ...] = ()
    environment: Mapping[str, OfferedEnvironment] = field(
        default_factory=lambda: {BUILTIN: OfferedEnvironment()}
    )
    webhook: tuple[Webhook, ...] = ()

    def __post_init__(self) -> None:
        if not self.listen.is_private and not self.token:
            raise StudyError(
                f"[listen] {self.listen.url} is open to other machines, which needs tokens; give "
                "a [[token]] to every user: `cclsearch serve --new-token NAME:ROLE`"
            )
        _require_different("token", "name", [token.name for token in self.token])
        _require_different("webhook", "url", [webhook.url for webhook in self.webhook])


def _require_different(table: str, key: str, values: Sequence[str]) -> None:
    if len(set(values)) < len(values):
        raise StudyError(f"[[{table}]] two {table}s have the same {key}; give each a different one")


def read_config(path: Path | None) -> ServiceConfig:
    """Return the configuration in a TOML file, or the defaults without one."""
    if path is None:
        return ServiceConfig()
    try:
        document = tomllib.loads(read_text(path))
        return from_document(ServiceConfig, document)
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"{path}: cannot be read: {error}") from error
    except ValidationError as error:
        raise StudyError(f"{path}: {first_fault(error, ServiceConfig)}") from error
    except (StudyError, TypeError, ValueError, RecursionError) as error:
        raise StudyError(f"{path}: {error}") from error
