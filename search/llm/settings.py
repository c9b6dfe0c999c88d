"""How a language model is reached, as values; reads no environment."""

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Literal, NoReturn
from urllib.parse import urlsplit

from search.llm.errors import ProviderError

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
        if parts.scheme == "http" and not _is_loopback(parts.hostname):
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


def _is_loopback(host: str) -> bool:
    """Whether a host is this machine, by its name or number."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
