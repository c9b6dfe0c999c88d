"""Run a policy, as hostile text, in processes that can compute and do nothing else.

Every byte of a reply may come from the policy: any reply becomes a configuration or a refusal.
"""

import ctypes
import json
import os
import platform
import re
import selectors
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from policies import jail
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
    """Return a refusal whose message is one bounded, printable line that names its place."""
    text = "".join(c if c.isprintable() else "?" for c in " ".join(message.split()))
    if len(text) > _MESSAGE_LENGTH:
        text = text[:_MESSAGE_LENGTH] + " ..."
    return Refusal(text if line is None else f"line {line}: {text}", line)


def agreed_reply(endings: Sequence[Ending], limits: SandboxLimits) -> dict[str, Scalar] | Refusal:
    """Return the configuration that every run answered with, or the first refusal."""
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


KEPT_CALLS: Mapping[str, Mapping[str, int]] = {
    "x86_64": {
        "write": 1,
        "mmap": 9,
        "mprotect": 10,
        "munmap": 11,
        "brk": 12,
        "rt_sigreturn": 15,
        "mremap": 25,
        "exit_group": 231,
    },
    "aarch64": {
        "write": 64,
        "exit_group": 94,
        "rt_sigreturn": 139,
        "brk": 214,
        "munmap": 215,
        "mremap": 216,
        "mmap": 222,
        "mprotect": 226,
    },
}
"""What CPython needs to compute, to write to a descriptor it holds, and to end; by machine.

Not madvise: it does without, and a privileged caller could take pages from the whole machine.
"""

_AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_TAKES_PROTECTION = ("mmap", "mprotect")
_PROT_EXEC = 4
_EPERM = 1

# Offsets into struct seccomp_data; both machines are little-endian, so the low word comes first.
_NUMBER, _ARCHITECTURE, _THIRD_ARGUMENT = 0, 4, 32

_LOAD_WORD, _JUMP_IF_EQUAL, _JUMP_IF_SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _REFUSE, _KILL_PROCESS = 0x7FFF0000, 0x00050000 | _EPERM, 0x80000000

_Instruction = tuple[int, int, int, int]


def filter_program(machine: str) -> bytes:
    """Return the filter for a machine in KEPT_CALLS: any other call fails with EPERM.

    Memory can never be made executable. A call through another architecture's entry point, whose
    numbers mean other calls, ends the process.
    """
    program: list[_Instruction] = [
        (_LOAD_WORD, 0, 0, _ARCHITECTURE),
        (_JUMP_IF_EQUAL, 1, 0, _AUDIT_ARCHITECTURE[machine]),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD_WORD, 0, 0, _NUMBER),
    ]
    for name, number in KEPT_CALLS[machine].items():
        verdict = _unless_executable() if name in _TAKES_PROTECTION else [(_RETURN, 0, 0, _ALLOW)]
        program += [(_JUMP_IF_EQUAL, 0, len(verdict), number), *verdict]
    program.append((_RETURN, 0, 0, _REFUSE))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _unless_executable() -> list[_Instruction]:
    return [
        (_LOAD_WORD, 0, 0, _THIRD_ARGUMENT),
        (_JUMP_IF_SET, 0, 1, _PROT_EXEC),
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
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
"""What a policy may use, as text for its author."""

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
    """Return what the policy's generate_config returns for copies of both arguments.

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
    """Describe what isolates policies here, after running one; raises SandboxUnavailable."""
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
    except OSError as error:  # too many processes or files are open
        raise SandboxUnavailable(f"no process can be started for the policy: {error}") from error
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
