"""The only reader of the process environment: store, service, provider, what trials may see."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from records.errors import StudyError
from records.scrub import Scrubber, own_home
from records.study import Llm
from search.llm.settings import LlmSettings, Secret

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
    return bool(os.environ.get("ANTHROPIC_API_KEY"))


def llm_settings(llm: Llm) -> LlmSettings:
    """How to reach the model; raises `StudyError` when there is no key."""
    key = os.environ.get("ANTHROPIC_API_KEY")
    if not key:
        raise StudyError(
            "to ask a model takes a key in ANTHROPIC_API_KEY: export it, or use --strategy offline"
        )
    return reached(llm, key, llm.base_url or os.environ.get("ANTHROPIC_BASE_URL"))


def reached(llm: Llm, key: str, base_url: str | None) -> LlmSettings:
    """How a model is reached with this key at this address."""
    return LlmSettings(
        api_key=Secret(key),
        model=llm.model,
        base_url=base_url,
        timeout_s=llm.timeout_s,
        max_output_tokens=llm.max_output_tokens,
        most_output_tokens=llm.most_output_tokens,
    )


def trial_environment() -> Mapping[str, str]:
    """Our environment without anything that looks like a secret, for the ranks."""
    key = os.environ.get("ANTHROPIC_API_KEY")
    return {
        name: value
        for name, value in os.environ.items()
        if not any(word in name.upper() for word in SECRET_WORDS) and not (key and key in value)
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
