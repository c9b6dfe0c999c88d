"""The only reader of the process environment: store, service, LLM provider, what trials may see.

Every command loads this module, so it imports the store only where one is opened.
"""

import os
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn
from urllib.parse import urlsplit

from records.errors import CclsearchError, StoreError, StudyError, shown

if TYPE_CHECKING:
    from records.scrub import Scrubber
    from records.store.rows import StudyRow
    from records.store.store import Store
    from records.study import Llm


def installed_version() -> str:
    """The version that is installed."""
    # Imported here: few commands need it, and all would wait for it.
    from importlib.metadata import version

    return version("cclsearch")


class Interrupted(CclsearchError):
    """The search was interrupted; the message says how to continue."""


class ProviderError(CclsearchError):
    """The key or the address cannot be used; nothing was sent."""


DEFAULT_URL = "https://api.anthropic.com"
API_KEY, AUTH_TOKEN = "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"
OFFLINE = "or use --strategy offline"
SHOWN = "[key]"
LEAST_KEY_CHARS = 8


class Secret:
    """A key that can be sent but not shown: not by repr, str, the codec or pickle.

    `variable` is where it came from.
    """

    __slots__ = ("_text", "variable")

    def __init__(self, text: str, variable: str = API_KEY) -> None:
        if not text or not text.isascii() or any(c.isspace() or not c.isprintable() for c in text):
            raise ProviderError(
                f"the key in {variable} is empty or holds a character that no key has: "
                f"set it again, {OFFLINE}"
            )
        self._text = text
        self.variable = variable

    @property
    def is_bearer(self) -> bool:
        """Whether it is sent as `Authorization: Bearer`, and not as `x-api-key`."""
        return self.variable == AUTH_TOKEN

    def reveal(self) -> str:
        """The key itself, for the request that needs it."""
        return self._text

    def scrub(self, text: str) -> str:
        """The text with every copy of the key taken out.

        A shorter one than any provider gives stays: servers that need none are told `none` or such
        a word, which a reply holds anyway.
        """
        if len(self._text) < LEAST_KEY_CHARS:
            return text
        return text.replace(self._text, SHOWN)

    def __repr__(self) -> str:
        return SHOWN

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key is not stored")


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmSettings:
    """One model at one provider; `retry_wait_s` is the first wait, doubled at each attempt.

    A reply that is cut is asked for again with `most_output_tokens`, where those are more.
    """

    api_key: Secret
    model: str = "claude-opus-5-5"
    base_url: str | None = None
    timeout_s: float = 600.0
    max_output_tokens: int = 8192
    most_output_tokens: int = 16384
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    thinking_tokens: int | None = None
    attempts: int = 4
    retry_wait_s: float = 1.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
            raise ProviderError(
                "the base URL of the model must read http(s)://host[:port][/path], "
                f"without a user name: set it again, {OFFLINE}"
            )
        with suppress(ValueError):  # a name instead of a number
            if ip_address(parts.hostname).is_loopback:
                return
        if parts.scheme == "http" and parts.hostname != "localhost":
            raise ProviderError(
                f"the key would cross the network unencrypted on its way to {parts.hostname}: "
                f"write https:// in ANTHROPIC_BASE_URL, {OFFLINE}"
            )

    @property
    def url(self) -> str:
        """Where requests go, which the path of the API is appended to."""
        return without_version(self.base_url or DEFAULT_URL)

    @property
    def host(self) -> str:
        """Name of the provider, for messages."""
        return urlsplit(self.url).hostname or self.url


def without_version(url: str) -> str:
    """A base URL without the `/v1` that some providers write at its end."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSW", "CREDENTIAL", "AUTH", "COOKIE", "ANTHROPIC")
DEFAULT_STORE = ".cclsearch"
DEFAULT_SERVICE = "http://127.0.0.1:8765"
SCHEDULER_JOBS = (
    ("slurm", "SLURM_JOB_ID"),
    ("pbs", "PBS_JOBID"),
    ("lsf", "LSB_JOBID"),
    ("flux", "FLUX_JOB_ID"),
)
IMAGES = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "CONTAINER_IMAGE")
_RANK_NUMBERS: Mapping[Literal["torchrun", "mpirun"], tuple[tuple[str, str], ...]] = {
    "torchrun": (("RANK", "WORLD_SIZE"),),
    "mpirun": (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")),
}


def store_root(option: Path | None) -> Path:
    """Where records are kept: the option, CCLSEARCH_STORE, or `.cclsearch` here."""
    return option or Path(os.environ.get("CCLSEARCH_STORE", DEFAULT_STORE))


def service_url(given: str | None) -> str:
    """Where the service is: what was given, CCLSEARCH_URL, or this machine."""
    return given or os.environ.get("CCLSEARCH_URL", DEFAULT_SERVICE)


def service_token() -> str | None:
    """What the service is asked with where no token was given: CCLSEARCH_TOKEN."""
    return os.environ.get("CCLSEARCH_TOKEN")


def key_variable() -> str | None:
    """The variable that a key for a model is in; None where there is no key."""
    return next((name for name in (API_KEY, AUTH_TOKEN) if os.environ.get(name)), None)


def has_key() -> bool:
    """Whether a model can be asked."""
    return key_variable() is not None


def llm_settings(llm: "Llm") -> LlmSettings:
    """How to reach the model; raises `StudyError` without a key, or for a host that is not ours."""
    variable = key_variable()
    if variable is None:
        raise StudyError(
            "to ask a model takes a key in ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN: "
            "export it, or use --strategy offline"
        )
    own, named = os.environ.get("ANTHROPIC_BASE_URL") or None, llm.base_url
    # A study file or a bundle may come from anybody; the environment is the user's.
    if named is not None and without_version(named) != without_version(own or DEFAULT_URL):
        url = shlex.quote(named) if named.isprintable() else "URL"
        raise StudyError(
            f"[llm] base_url of the study is {shown(named)}, and a study cannot decide where your "
            f"key is sent: if you trust that host, export ANTHROPIC_BASE_URL={url}; "
            "else remove base_url from the study, or use --strategy offline"
        )
    return settings_of(llm, Secret(os.environ[variable], variable), own)


def settings_of(llm: "Llm", key: Secret, base_url: str | None) -> LlmSettings:
    """How a model is reached with this key at this address."""
    return LlmSettings(
        api_key=key,
        model=llm.model,
        base_url=base_url,
        timeout_s=llm.timeout_s,
        max_output_tokens=llm.max_output_tokens,
        most_output_tokens=llm.most_output_tokens,
        effort=llm.effort,
        thinking_tokens=llm.thinking_tokens,
    )


def trial_environment() -> Mapping[str, str]:
    """Our environment without anything that looks like a secret, for the ranks."""
    given = (os.environ.get(name, "") for name in (API_KEY, AUTH_TOKEN))
    # Servers that need no key are given a word such as `ollama`, which paths hold by chance.
    keys = [key for key in given if len(key) >= LEAST_KEY_CHARS]
    return {
        name: value
        for name, value in os.environ.items()
        if not any(word in name.upper() for word in SECRET_WORDS)
        and not any(key in value for key in keys)
    }


def search_environment() -> Mapping[str, str]:
    """Our environment for a search in a process of its own: of all secrets, those of the model."""
    given = os.environ.items()
    return {**trial_environment(), **{n: v for n, v in given if n.startswith("ANTHROPIC_")}}


def scrubber() -> "Scrubber":
    """Return what removes our secrets and home folder from texts before they are recorded.

    A value that is a number or an existing path is not a secret, whatever its variable is called.
    """
    from records.scrub import Scrubber, own_home

    values = [
        value
        for name, value in os.environ.items()
        if any(word in name.upper() for word in SECRET_WORDS if word != "ANTHROPIC")
        and not _is_plain(value)
    ]
    return Scrubber(homes=filter(None, (os.environ.get("HOME"), own_home())), secrets=values)


def scheduler_job() -> str | None:
    """The job of a scheduler that we run in, as in `slurm 1234`; None outside of any."""
    found = ((kind, os.environ.get(name)) for kind, name in SCHEDULER_JOBS)
    return next((f"{kind} {number}" for kind, number in found if number), None)


def was_requeued() -> bool:
    """Whether the scheduler's job that we run in ran before: it was preempted, or a node failed."""
    return os.environ.get("SLURM_RESTART_COUNT", "0").lstrip("0").isdecimal()


def allocation_left_s() -> float | None:
    """The time that the scheduler leaves the job that we run in; None where it does not say."""
    end_s = os.environ.get("SLURM_JOB_END_TIME", "")
    return int(end_s) - time.time() if end_s.isdecimal() else None


def container_image() -> str | None:
    """The image of the container that we run in, if the environment names it."""
    return next((image for name in IMAGES if (image := os.environ.get(name))), None)


def _is_plain(value: str) -> bool:
    """Whether a value is a number, or names a file."""
    try:
        return value.replace(".", "").isdecimal() or Path(value).exists()
    except OSError:  # longer than a name may be
        return False


def started_as_rank_by() -> Literal["torchrun", "mpirun"] | None:
    """What started this process as one rank of several; None for a command typed by itself."""
    for launcher, numbers in _RANK_NUMBERS.items():
        if any(all(name in os.environ for name in pair) for pair in numbers):
            return launcher
    return None


def has_rendezvous() -> bool:
    """Whether ranks of torch.distributed could find each other by their environment."""
    return "MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ


def has_records(option: Path | None) -> bool:
    """Whether a store is where the option or the environment says."""
    from records.store.database import DATABASE_NAME
    from records.store.journal import journal_sizes

    root = store_root(option)
    return (root / DATABASE_NAME).is_file() or bool(journal_sizes(root))


@contextmanager
def open_store(option: Path | None) -> "Iterator[Store]":
    """The store that the option or the environment names; raises `StoreError` without one."""
    root = store_root(option).absolute()
    if not has_records(option):
        raise StoreError(
            f"no records in {root}; start with `cclsearch run --objective step_time`, "
            "or name their folder with --store"
        )
    from records.store.store import Store

    with closing(Store(root)) as store:
        yield store


def status(row: "StudyRow", store: "Store") -> str:
    """How far a study is; one whose process was killed is interrupted, whatever it wrote last."""
    if row.status != "running":
        return row.status
    return "interrupted" if store.holder(row.id) is None else "running"
