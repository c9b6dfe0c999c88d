"""Run a policy, as hostile text, in processes that can compute and nothing else."""

import ctypes
import json
import os
import platform
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from policies import jail
from policies.replies import Ending, Refusal, SandboxLimits, Scalar, agreed_reply, refuse
from policies.seccomp import KEPT_CALLS, filter_program

__all__ = [
    "SANDBOX_RULES",
    "Refusal",
    "SandboxLimits",
    "SandboxUnavailable",
    "run_policy",
    "sandbox_level",
]

_DEFAULT_LIMITS = SandboxLimits()

SANDBOX_RULES = (
    f"The policy is Python {sys.version_info.major}.{sys.version_info.minor} and runs in a sandbox "
    "without files, network, processes, environment variables or clock. It may import only "
    f"{', '.join(jail.ALLOWED_MODULES)}; {', '.join(f'{n}()' for n in jail.REFUSED_CALLS)} are "
    "refused, and what it prints is dropped. generate_config(workload, environment) must return, "
    f"within {_DEFAULT_LIMITS.time_words} and in {_DEFAULT_LIMITS.memory_bytes >> 20} MiB, a flat "
    "dict from str to bool, int, finite float or str, and the same dict every time "
    "it is called with the same arguments."
)
"""What a policy may use, in words for its author."""

_RUN_COUNT = 2  # a policy that answers differently the second time is not a function
_START_TIME_S = 30.0
_SAME_ADDRESSES, _ASK = 0x0040000, 0xFFFFFFFF  # personality(2)


class SandboxUnavailable(Exception):
    """The machine cannot isolate policies; the message says what is missing and what to do."""


def run_policy(
    source: str,
    workload: Mapping[str, object],
    environment: Mapping[str, object],
    limits: SandboxLimits = _DEFAULT_LIMITS,
) -> dict[str, Scalar] | Refusal:
    """Give what the policy's generate_config returns for copies of both arguments.

    Raises SandboxUnavailable when nothing isolates the policy, which then has not been run, and
    TypeError or ValueError when an argument is not plain JSON.
    """
    fault = _source_fault(source, limits)
    if fault is not None:
        return fault
    words = set(re.findall(r"\w+", source))
    request = {
        "source": source,
        "workload": dict(workload),
        "environment": dict(environment),
        "modules": [name for name in jail.ALLOWED_MODULES if words.issuperset(name.split("."))],
        "limits": {
            "time_s": limits.time_s,
            "wall_time_s": limits.wall_time_s,
            "memory_bytes": limits.memory_bytes,
        },
        "filter": filter_program(_machine()).hex(),
        "parent_pid": os.getpid(),
    }
    endings = _run_jails(json.dumps(request, allow_nan=False).encode(), limits)
    for ending in endings:
        _require_confined(ending)
    return agreed_reply(endings, limits)


def sandbox_level() -> str:
    """Say what isolates policies here, once a policy has run so; raises SandboxUnavailable."""
    run_policy("def generate_config(workload, environment): return {}", {}, {})
    return (
        f"seccomp ({len(KEPT_CALLS[_machine()])} system calls kept), resource limits, "
        f"no new privileges, empty environment, on {platform.machine()} Linux {platform.release()}"
    )


def _source_fault(source: str, limits: SandboxLimits) -> Refusal | None:
    for broken, name in (("\0", "null byte"), ("[\ud800-\udfff]", "lone surrogate")):
        found = re.search(broken, source)
        if found:
            line = source.count("\n", 0, found.start()) + 1
            return refuse(f"the text holds a {name}; write plain UTF-8 text", line)
    size_bytes = len(source.encode())
    if size_bytes > limits.source_bytes:
        return refuse(f"the text is {size_bytes} bytes; write at most {limits.source_bytes}")
    return None


def _machine() -> str:
    machine = platform.machine()
    if sys.platform != "linux" or machine not in KEPT_CALLS:
        raise SandboxUnavailable(
            f"policies cannot be isolated on {sys.platform} {machine}; "
            f"search from a Linux machine ({' or '.join(KEPT_CALLS)})"
        )
    return machine


def _run_jails(request: bytes, limits: SandboxLimits) -> list[Ending]:
    """Run the same request in fresh processes side by side; none is left when this returns."""
    jails: list[subprocess.Popen[bytes]] = []
    try:
        with _held_in_memory(request) as request_fd, _uninterrupted(), _same_addresses():
            for _ in range(_RUN_COUNT):
                jails.append(_start(request_fd))
        deadline_s = time.monotonic() + _START_TIME_S + limits.wall_time_s
        return _collect(jails, deadline_s, len(jail.READY) + limits.output_bytes + 1)
    finally:
        for process in jails:
            process.kill()  # it cannot have children: the filter refuses every way to make one
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def _start(request_fd: int) -> subprocess.Popen[bytes]:
    # Not -I: that would ignore PYTHONHASHSEED, which fixes the order of sets of strings.
    flags = ("-s", "-P", "-S", "-B", "-Xutf8", "-Wignore")
    return subprocess.Popen(
        [sys.executable, *flags, str(Path(jail.__file__).resolve())],
        stdin=request_fd,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"PYTHONHASHSEED": "0", "GLIBC_TUNABLES": "glibc.pthread.rseq=0"},
        cwd="/",
        start_new_session=True,
    )


@contextmanager
def _held_in_memory(request: bytes) -> Iterator[int]:
    """Hold the request where every process can read it whole, without anyone writing to a pipe."""
    request_fd = os.memfd_create("policy")
    try:
        with open(request_fd, "wb", closefd=False) as file:
            file.write(request)
        yield request_fd
    finally:
        os.close(request_fd)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold back a request to stop until every process that was started is known, to be ended."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _same_addresses() -> Iterator[None]:
    """Let processes started by this thread lay out their memory alike, where the kernel allows.

    Then even an order by id() repeats. The setting belongs to the thread and is put back.
    """
    libc = ctypes.CDLL(None)
    before = libc.personality(ctypes.c_ulong(_ASK))
    libc.personality(ctypes.c_ulong(before | _SAME_ADDRESSES))
    try:
        yield
    finally:
        libc.personality(ctypes.c_ulong(before))


def _collect(
    jails: Sequence[subprocess.Popen[bytes]], deadline_s: float, most_bytes: int
) -> list[Ending]:
    """Read what each process writes until it ends, writes too much or the deadline passes."""
    received = {process.pid: bytearray() for process in jails}
    with selectors.DefaultSelector() as selector:
        for process in jails:
            assert process.stdout is not None
            selector.register(process.stdout, selectors.EVENT_READ, process.pid)
        while selector.get_map() and (left_s := deadline_s - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                chunk = os.read(key.fd, most_bytes)
                received[key.data] += chunk
                if not chunk or len(received[key.data]) >= most_bytes:
                    selector.unregister(key.fileobj)
        expired = {key.data for key in selector.get_map().values()}
    for process in jails:
        process.kill()
    return [
        Ending(
            received=bytes(received[process.pid]),
            exit_code=process.wait(),
            expired=process.pid in expired,
        )
        for process in jails
    ]


def _require_confined(ending: Ending) -> None:
    if ending.received.startswith(jail.READY):
        return
    reason = ending.received.decode(errors="replace") or f"it ended with {ending.exit_code}"
    raise SandboxUnavailable(
        f"the policy sandbox did not start ({reason[:500]}); policies need a kernel with seccomp "
        f"filters, /proc, and {sys.executable} starting with an empty environment"
    )
