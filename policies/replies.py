"""What the processes that ran a policy left behind, read as a configuration or a refusal.

Every byte may have been written by the policy itself: whatever arrives gives one of the two.
"""

import json
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from policies.jail import READY, config_fault, out_of_time

Scalar = bool | int | float | str
_MESSAGE_LENGTH = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """What one policy may use; time_s is processor time, the sizes are of text and of result."""

    time_s: float = 2.0
    wall_time_s: float = 10.0
    memory_bytes: int = 512 << 20
    source_bytes: int = 1 << 18
    output_bytes: int = 1 << 16

    @property
    def time_words(self) -> str:
        """How long a policy may take, wherever it is said."""
        return f"{self.time_s:g} s of processor time and {self.wall_time_s:g} s in all"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a policy gave no configuration: one sentence for its author, and the line if known."""

    message: str
    line: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What one process wrote, and how it ended; exit_code is negative for a signal."""

    received: bytes
    exit_code: int
    expired: bool


def refuse(message: str, line: int | None = None) -> Refusal:
    """Give a refusal whose message is one bounded, printable line that names its place."""
    text = "".join(c if c.isprintable() else "?" for c in " ".join(message.split()))
    if len(text) > _MESSAGE_LENGTH:
        text = text[:_MESSAGE_LENGTH] + " ..."
    return Refusal(text if line is None else f"line {line}: {text}", line)


def agreed_reply(endings: Sequence[Ending], limits: SandboxLimits) -> dict[str, Scalar] | Refusal:
    """Give the configuration that every run answered with, or the first refusal."""
    first: dict[str, Scalar] | None = None
    for ending in endings:
        reply = _read_reply(ending, limits)
        if isinstance(reply, Refusal):
            return reply
        if first is not None and _spelled(first) != _spelled(reply):
            return refuse(_disagreement(first, reply))
        first = reply
    assert first is not None, "a policy is run at least once"
    return first


def _read_reply(ending: Ending, limits: SandboxLimits) -> dict[str, Scalar] | Refusal:
    payload = ending.received.removeprefix(READY)
    if len(payload) > limits.output_bytes:
        return refuse(
            f"the returned dict takes more than {limits.output_bytes} bytes as JSON; "
            "return the chosen settings only"
        )
    if ending.exit_code < 0:
        return refuse(_end_sentence(ending, limits))
    if not payload:
        return refuse("the policy ended its process without a result; return a dict instead")
    try:
        reply = json.loads(payload)
    except (ValueError, RecursionError):
        reply = None
    match reply:
        case {"refused": str(message), "line": int(line)} if (
            line is not True and 1 <= line <= limits.source_bytes
        ):
            return refuse(message, line)
        case {"refused": str(message)}:
            return refuse(message)
        case {"config": config}:
            fault = config_fault(config)
            return refuse(fault) if fault else dict(config)
        case _:
            return refuse("the policy wrote over its own result; return a dict and nothing else")


def _end_sentence(ending: Ending, limits: SandboxLimits) -> str:
    out_of_wall_time = -signal.SIGALRM
    if ending.exit_code == -signal.SIGXCPU:
        return out_of_time(limits.time_s)
    if ending.expired or ending.exit_code == out_of_wall_time:
        return (
            f"no result in time; a policy may take {limits.time_words}, so bound every loop and "
            "score fewer candidates"
        )
    return (
        f"the policy's process ended with {signal.strsignal(-ending.exit_code)!r}: it recursed "
        f"too deep, ran out of its {limits.memory_bytes >> 20} MiB, or used what the sandbox "
        "takes away; keep to plain computing"
    )


def _spelled(config: dict[str, Scalar]) -> str:
    return json.dumps(config, sort_keys=True)


def _disagreement(first: dict[str, Scalar], second: dict[str, Scalar]) -> str:
    absent = object()
    name = next(
        name
        for name in sorted({*first, *second})
        if repr(first.get(name, absent)) != repr(second.get(name, absent))
    )
    one, other = (repr(c[name])[:80] if name in c else "nothing" for c in (first, second))
    return (
        f"two runs with the same arguments disagree: setting {name[:80]!r} is {one} in one and "
        f"{other} in the other; depend on the arguments only, not on id() or the order of objects"
    )
