"""The only reader of the process environment: store, service, provider, what trials may see."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from records.errors import StudyError, shown
from records.scrub import Scrubber, own_home
from records.study import Llm
from search.llm.settings import (
    API_KEY,
    AUTH_TOKEN,
    DEFAULT_URL,
    LEAST_KEY_CHARS,
    LlmSettings,
    Secret,
    without_version,
)

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


def has_key() -> bool:
    """Whether a model can be asked."""
    return key_variable() is not None


def key_variable() -> str | None:
    """The variable that a key for a model is in; None where there is no key."""
    return next((name for name in (API_KEY, AUTH_TOKEN) if os.environ.get(name)), None)


def llm_settings(llm: Llm) -> LlmSettings:
    """How to reach the model; raises `StudyError` without a key, or for a host that is not ours."""
    variable = key_variable()
    if variable is None:
        raise StudyError(
            "to ask a model takes a key in ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN: "
            "export it, or use --strategy offline"
        )
    own = os.environ.get("ANTHROPIC_BASE_URL") or None
    _require_own_host(llm.base_url, own)
    return reached(llm, Secret(os.environ[variable], variable), own)


def _require_own_host(named: str | None, own: str | None) -> None:
    """Raise `StudyError` where a study names another address than the one the key is for.

    A study file or a bundle may come from anybody; the environment is the user's.
    """
    if named is not None and without_version(named) != without_version(own or DEFAULT_URL):
        url = shlex.quote(named) if named.isprintable() else "URL"
        raise StudyError(
            f"[llm] base_url of the study is {shown(named)}, and a study cannot decide where your "
            f"key is sent: if you trust that host, export ANTHROPIC_BASE_URL={url}; "
            "else remove base_url from the study, or use --strategy offline"
        )


def reached(llm: Llm, key: Secret, base_url: str | None) -> LlmSettings:
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


def scrubber() -> Scrubber:
    """What takes our secrets and home folder out of texts that go on record.

    A value that is a number or a path that exists is no secret, however its variable is called.
    """
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


def container_image() -> str | None:
    """The image of the container that we run in, where the environment tells it."""
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


def is_told_where_to_meet() -> bool:
    """Whether ranks of torch.distributed could find each other by their environment."""
    return "MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ
