"""The only reader of the process environment: store, model provider, what a trial may see."""

import os
from collections.abc import Mapping
from pathlib import Path

from records.errors import StudyError
from records.study import Llm
from search.llm.settings import LlmSettings, Secret

SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSW", "CREDENTIAL", "AUTH", "COOKIE", "ANTHROPIC")
DEFAULT_STORE = ".cclsearch"


def store_root(option: Path | None) -> Path:
    """Where records are kept: the option, CCLSEARCH_STORE, or `.cclsearch` here."""
    return option or Path(os.environ.get("CCLSEARCH_STORE", DEFAULT_STORE))


def has_key() -> bool:
    """Whether a model can be asked."""
    return bool(os.environ.get("ANTHROPIC_API_KEY"))


def llm_settings(llm: Llm) -> LlmSettings:
    """How to reach the model; raises `StudyError` when there is no key."""
    key = os.environ.get("ANTHROPIC_API_KEY")
    if not key:
        raise StudyError(
            "strategy 'llm' needs a key in ANTHROPIC_API_KEY: export it, "
            "or use --strategy coordinate"
        )
    return LlmSettings(
        api_key=Secret(key),
        model=llm.model,
        base_url=llm.base_url or os.environ.get("ANTHROPIC_BASE_URL"),
        timeout_s=llm.timeout_s,
        max_output_tokens=llm.max_output_tokens,
    )


def trial_environment() -> Mapping[str, str]:
    """Our environment without anything that looks like a secret, for the ranks."""
    key = os.environ.get("ANTHROPIC_API_KEY")
    return {
        name: value
        for name, value in os.environ.items()
        if not any(word in name.upper() for word in SECRET_WORDS) and not (key and key in value)
    }
