"""The program that shuts itself off from the machine and then runs one policy.

It is started as a script with the request on descriptor 0, and answers on descriptor 1: one line
once it is confined, then one line of JSON. It imports nothing of ours.
"""

import builtins
import ctypes
import json
import math
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable, Mapping
from types import FrameType, ModuleType, TracebackType

ALLOWED_MODULES = (
    *("__future__", "abc", "bisect", "cmath", "collections", "collections.abc", "contextlib"),
    *("copy", "dataclasses", "decimal", "enum", "fractions", "functools", "heapq", "itertools"),
    *("json", "math", "numbers", "operator", "random", "re", "statistics", "string", "textwrap"),
    *("types", "typing"),
)
REFUSED_CALLS = ("breakpoint", "input", "open")
POLICY_FILE = "<policy>"
READY = b"ready\n"

_REQUEST_FD, _REPLY_FD = 0, 1
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_PR_SET_DUMPABLE, _PR_SET_TSC, _PR_TSC_SIGSEGV = 4, 26, 2
_AT_RANDOM, _RANDOM_BYTES = 25, 16
_SECCOMP_MODE_FILTER = 2
_PROT_READ, _MAP_PRIVATE_ANONYMOUS_FIXED = 0x1, 0x32
_STACK_BYTES = 8 << 20
_INT64_SPAN = 2**63


class _ImportRefused(ModuleNotFoundError):
    """An ordinary import error, so that a policy may catch it and fall back."""


class _CallRefused(PermissionError):
    """An ordinary OSError, so that a policy may catch it and fall back."""


class _NotAPolicy(Exception):
    """The text runs, but defines nothing to call."""


def main() -> None:
    """Read the request, confine this process, run the policy, answer and end."""
    request = json.loads(os.pread(_REQUEST_FD, os.fstat(_REQUEST_FD).st_size, 0))
    os.close(_REQUEST_FD)
    sys.stdout = sys.stderr
    try:
        for name in request["modules"]:
            builtins.__import__(name)
        _make_random_repeatable(sys.modules.get("random"))
        _confine(request["parent_pid"], request["limits"], bytes.fromhex(request["filter"]))
    except (OSError, ImportError, ValueError, MemoryError) as error:
        _send(f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    _send(READY)
    _send(_answer(request))
    os._exit(0)


def _make_random_repeatable(random: ModuleType | None) -> None:
    """Let every generator that is given no seed start from the same one."""
    if random is None:
        return
    seed, new = random.Random.seed, random.Random.__new__

    def repeatable_seed(self: object, a: object = None, version: int = 2) -> None:
        seed(self, 0 if a is None else a, version)

    random.Random.seed = repeatable_seed
    random.Random.__new__ = lambda kind, *_, **__: new(kind, 0)
    vars(random)["seed"] = random._inst.seed  # was bound to the former method
    random._inst.seed()


def _confine(parent_pid: int, limits: Mapping[str, float], filter_program: bytes) -> None:
    """Give up, for good, all but computing within the limits and writing to descriptors held."""
    libc = ctypes.CDLL(None, use_errno=True)
    _control(libc, _PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise ProcessLookupError("the process that asked is gone")
    _stop_clock(libc)
    _forget_chance(libc)
    _limit(limits)
    program = ctypes.create_string_buffer(filter_program, len(filter_program))
    header = struct.pack("@HP", len(filter_program) // 8, ctypes.addressof(program))
    _control(libc, _PR_SET_NO_NEW_PRIVS, 1)
    _control(libc, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.create_string_buffer(header))
    try:
        os.open("/", os.O_RDONLY)
    except PermissionError:
        for name in ("ctypes", "_ctypes", "resource", "signal"):
            del sys.modules[name]
    else:
        raise PermissionError("the system-call filter is installed but refuses nothing")


def _control(libc: ctypes.CDLL, option: int, first: int, second: object = None) -> None:
    zero = ctypes.c_ulong(0)
    if libc.prctl(option, ctypes.c_ulong(first), second or zero, zero, zero) != 0:
        raise OSError(ctypes.get_errno(), f"the kernel refuses prctl option {option}")


def _stop_clock(libc: ctypes.CDLL) -> None:
    """Lay empty memory over the page that lets a process read the clock without a system call.

    Then every reading asks the kernel, which the filter refuses. A kernel that seals the page
    keeps it: there a policy has to get round the import guard, and answer alike in two runs.
    """
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    with open("/proc/self/maps", encoding="ascii") as maps:  # noqa: PTH123  # pathlib loads slowly
        clock_pages = [line.split()[0].split("-") for line in maps if "[vvar" in line]
    for start, end in clock_pages:
        size_bytes = int(end, 16) - int(start, 16)
        flags = _MAP_PRIVATE_ANONYMOUS_FIXED
        libc.mmap(int(start, 16), size_bytes, _PROT_READ, flags, -1, 0)


def _forget_chance(libc: ctypes.CDLL) -> None:
    """Take away what differs between two runs and can be read from memory or by an instruction.

    The kernel gives every process 16 random bytes, and processors count cycles. Neither memory
    nor the pipe of a core pattern shows a dump of this process.
    """
    libc.getauxval.argtypes, libc.getauxval.restype = (ctypes.c_ulong,), ctypes.c_void_p
    address = libc.getauxval(_AT_RANDOM)
    if address:
        ctypes.memset(address, 0, _RANDOM_BYTES)
    if os.uname().machine == "x86_64":
        libc.prctl(_PR_SET_TSC, ctypes.c_ulong(_PR_TSC_SIGSEGV), *[ctypes.c_ulong(0)] * 3)
    _control(libc, _PR_SET_DUMPABLE, 0)


def _limit(limits: Mapping[str, float]) -> None:
    """Bound memory and time; the kernel keeps the timers, and the filter keeps them set."""
    time_s = limits["time_s"]
    cpu_s = math.ceil(time_s) + 1  # what a single long operation, deaf to SIGPROF, may take
    _lower(resource.RLIMIT_CPU, cpu_s, cpu_s + 1)
    _lower(resource.RLIMIT_STACK, _STACK_BYTES, _STACK_BYTES)
    for nothing in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC):
        _lower(nothing, 0, 0)

    def stop(_signal_number: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code.co_filename != POLICY_FILE:
            frame = frame.f_back
        _send(_refusal(out_of_time(time_s), None if frame is None else frame.f_lineno))
        os._exit(0)

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, time_s)
    signal.setitimer(signal.ITIMER_REAL, limits["wall_time_s"])
    memory_bytes = int(limits["memory_bytes"])
    _lower(resource.RLIMIT_AS, memory_bytes, memory_bytes)


def _lower(name: int, soft: int, hard: int) -> None:
    ceiling = resource.getrlimit(name)[1]
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(name, (soft, hard))


def _answer(request: Mapping[str, object]) -> bytes:
    """Run the policy: a line of JSON with its configuration, or with why there is none."""
    workload, environment = request["workload"], request["environment"]
    inputs = f"workload has {_names(workload)}; environment has {_names(environment)}"
    reserve = bytearray(1 << 20)  # so that running out of memory can still be reported
    try:
        config = _run(str(request["source"]), workload, environment)
        fault = config_fault(config)
        return _line({"config": config}) if fault is None else _refusal(fault, None)
    except BaseException as error:  # noqa: BLE001  # whatever it raises is reported
        del reserve
        try:
            return _refusal(_sentence(error, inputs), _policy_line(error))
        except BaseException:  # noqa: BLE001  # the text of its exception is its own program too
            return _refusal(f"{type(error).__name__}, whose message raises again", None)


def _run(source: str, workload: object, environment: object) -> object:
    policy = ModuleType("policy")
    sys.modules["policy"] = policy
    policy.__dict__["__builtins__"] = _policy_builtins()
    exec(compile(source, POLICY_FILE, "exec", dont_inherit=True), policy.__dict__)
    generate_config = policy.__dict__.get("generate_config")
    if not callable(generate_config):
        raise _NotAPolicy("the text defines no function generate_config(workload, environment)")
    return generate_config(workload, environment)


def _policy_builtins() -> dict[str, object]:
    allowed = {name: value for name, value in vars(builtins).items() if name not in REFUSED_CALLS}
    return {**allowed, "__import__": _import, **{name: _refuse(name) for name in REFUSED_CALLS}}


def _import(
    name: str,
    globals_: Mapping[str, object] | None = None,
    locals_: Mapping[str, object] | None = None,
    fromlist: tuple[str, ...] = (),
    level: int = 0,
) -> ModuleType:
    if level or name not in ALLOWED_MODULES or name not in sys.modules:
        raise _ImportRefused(
            f"import of {'.' * level + name!r} is not available in the sandbox; "
            f"a policy may import: {', '.join(ALLOWED_MODULES)}"
        )
    return builtins.__import__(name, globals_, locals_, fromlist)


def _refuse(name: str) -> Callable[..., object]:
    def refused(*_: object, **__: object) -> object:
        raise _CallRefused(
            f"{name}() is not available in the sandbox; "
            "compute from the workload and environment arguments alone"
        )

    return refused


def config_fault(config: object) -> str | None:
    """Return why a value is no configuration, or None when it is one."""
    if not isinstance(config, dict):
        return (
            f"generate_config returned {_kind(config)}; return a dict from setting names to "
            "bool, int, float or str"
        )
    for key, value in config.items():
        if not isinstance(key, str):
            return f"a key of the returned dict is {_kind(key)}; make every key a str"
        fault = "named with lone surrogates; use plain text" if _is_broken(key) else _fault(value)
        if fault is not None:
            return f"setting {key[:80]!r} is {fault}"
    return None


def _fault(value: object) -> str | None:
    match value:
        case float() if not math.isfinite(value):
            return f"{float(value)}; give a finite number, or leave the setting out"
        case int() if not -_INT64_SPAN <= value < _INT64_SPAN:
            return "an int outside 64 bits; give a smaller one"
        case str() if _is_broken(value):
            return "text with lone surrogates; use plain text"
        case bool() | int() | float() | str():
            return None
        case _:
            return f"{_kind(value)}; every value must be a bool, int, float or str"


def _kind(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__[:80]}"


def _is_broken(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def out_of_time(time_s: float) -> str:
    """Report that a policy has used up its time."""
    return (
        f"still running after {time_s:g} s of processor time; "
        "bound every loop and score fewer candidates"
    )


def _sentence(error: BaseException, inputs: str) -> str:
    """Report what a policy raised, and how to fix it."""
    match error:
        case _ImportRefused() | _CallRefused() | _NotAPolicy():
            return str(error)
        case SyntaxError(filename="<policy>", msg=message):
            return f"{type(error).__name__}: {message}"
        case KeyError():
            return f"KeyError: {str(error)[:200]}; {inputs}"
        case MemoryError():
            return "MemoryError: the policy needs more memory than it has; build smaller values"
        case TypeError() if _policy_line(error) is None:
            return f"TypeError: {error}; define generate_config(workload, environment)"
        case SystemExit():
            return "the policy ended itself with SystemExit; return a dict instead"
        case OSError():
            return (
                f"{type(error).__name__}: {error}; "
                "a policy has no files, network, processes or clock"
            )
        case _:
            return f"{type(error).__name__}: {error}"


def _policy_line(error: BaseException) -> int | None:
    """Find the innermost line of the policy that an exception came through."""
    if isinstance(error, SyntaxError) and error.filename == POLICY_FILE:
        return error.lineno
    line = None
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == POLICY_FILE:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def _names(inputs: object) -> str:
    names = list(inputs)[:40] if isinstance(inputs, dict) else []
    return ", ".join(map(repr, names)) or "no keys"


def _refusal(message: str, line: int | None) -> bytes:
    return _line({"refused": message[:2000], "line": line})


def _line(reply: dict[str, object]) -> bytes:
    return json.dumps(reply).encode() + b"\n"


def _send(payload: bytes) -> None:
    while payload:
        payload = payload[os.write(_REPLY_FD, payload) :]


if __name__ == "__main__":
    main()
