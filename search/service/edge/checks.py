"""What a request must look like before anything is done for it: pure questions about its head."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.types import Scope

from search.service.config import ServiceConfig

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
API_PATHS = "/api/"
MOST_HEADERS = 100
MOST_HEADER_BYTES = 1 << 14
MOST_ADDRESS_BYTES = 8192
ONCE = ("authorization", "content-length", "content-type", "host", "origin", "sec-fetch-site")
BEARER = re.compile(r"bearer +([A-Za-z0-9._~+/=-]{1,512}) *", re.IGNORECASE)
PORT = re.compile(r":[0-9]{1,5}")
FOREIGN = "another site asked for this; open the service itself"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing is done for a request; `wait_s` is when to ask again, where that helps."""

    status: int
    words: str
    wait_s: int | None = None


def refusal_of(scope: Scope, config: ServiceConfig) -> Refusal | None:
    """What is wrong with a request, whoever makes it; None where nothing is."""
    headers = Headers(scope=scope)
    return next(_problems(scope, headers, config), None)


def _problems(scope: Scope, headers: Headers, config: ServiceConfig) -> Iterator[Refusal]:
    """Only the first one counts."""
    if len(scope["raw_path"]) + len(scope["query_string"]) > MOST_ADDRESS_BYTES:
        yield Refusal(414, f"the address is longer than {MOST_ADDRESS_BYTES} bytes")
    sizes = [len(name) + len(value) for name, value in scope["headers"]]
    if len(sizes) > MOST_HEADERS or sum(sizes) > MOST_HEADER_BYTES:
        words = f"there are more than {MOST_HEADERS} headers or {MOST_HEADER_BYTES} bytes of them"
        yield Refusal(431, words)
    for name in ONCE:
        if len(headers.getlist(name)) > 1:
            yield Refusal(400, f"the header {name} is given twice; once is enough")
    if not is_known_host(headers.get("host", ""), config):
        yield Refusal(
            421,
            "this service is not called by that name; open it by its address, or name the "
            "host under [listen] hosts",
        )
    if is_foreign(scope, headers, config):
        yield Refusal(403, FOREIGN)
    length = headers.get("content-length", "0")
    if not (length.isdecimal() and len(length) < 20 and int(length) <= config.limits.body_bytes):
        yield Refusal(413, f"the body is larger than {config.limits.body_bytes} bytes")


def is_known_host(host: str, config: ServiceConfig) -> bool:
    """Whether a request calls the service by a name of its own.

    A page of another site can make its own name mean this machine, but no IP address.
    """
    port = PORT.search(host.rpartition("]")[2])
    name = host[: -len(port[0])] if port and host.endswith(port[0]) else host
    if name.lower() in config.listen.known_hosts:
        return True
    return not config.listen.is_loopback and _is_address(name)


def is_foreign(scope: Scope, headers: Headers, config: ServiceConfig) -> bool:
    """Whether a page of another site, or of another port of this host, makes the request.

    It may link to our pages, no more. What changes something and is not signed by a token in a
    header must tell that it comes from here: browsers add cookies by themselves.
    """
    changes = scope["method"] not in SAFE_METHODS
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    own = f"{config.listen.scheme}://{headers.get('host', '')}".lower()
    if origin is not None and origin.lower() != own:
        return True
    if site is not None and site not in {"same-origin", "none"}:
        linked = headers.get("sec-fetch-mode") == "navigate" and is_page(scope["path"])
        return changes or not linked
    told = origin is not None or site == "same-origin"
    by_browser = "cookie" in headers or is_page(scope["path"])
    return changes and by_browser and "authorization" not in headers and not told


def is_page(path: str) -> bool:
    """Whether an address is one for people."""
    return not path.startswith(API_PATHS)


def token_in(headers: Headers) -> str | None:
    """The token in the header; empty for a header that holds none, None without it."""
    header = headers.get("authorization")
    if header is None:
        return None
    match = BEARER.fullmatch(header)
    return "" if match is None else match[1]


def cookie_in(headers: Headers, name: str) -> str | None:
    """The value of a cookie; None without it, and where it is not clear which is meant."""
    pairs = (pair.partition("=") for line in headers.getlist("cookie") for pair in line.split(";"))
    values = [value.strip() for key, _, value in pairs if key.strip() == name]
    return values[0] if len(values) == 1 else None


def _is_address(name: str) -> bool:
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
