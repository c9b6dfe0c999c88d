"""The failures that `failures.py` provokes: what goes wrong, where and when, and its right kind."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, cycle, product
from typing import Literal

from records.trial import FailureKind

PHASES = ("setup", "warmup", "timed", "profile")
BOTH = (0, 1)
FAULTS = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS")
FROM_OUTSIDE = (
    *("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"),
    *("SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGPWR"),
)
EXCEPTIONS = (
    *("ValueError", "TypeError", "KeyError", "IndexError", "AttributeError", "ZeroDivisionError"),
    *("AssertionError", "AssertionError without words", "FileNotFoundError", "ImportError"),
    *("UnicodeDecodeError", "RecursionError", "RuntimeError of torch", "NotImplementedError"),
    *("StopIteration", "JSONDecodeError", "struct.error", "ExceptionGroup", "CalledProcessError"),
    *("ValueError of torch.distributed", "chain"),
)
STEPS_FILE, TRACE_FILE = "rank1.steps.json", "rank1_trace.json"
HARMS = (
    *("delete", "truncate", "replace by that of the other rank", "no JSON", "replace by a pipe"),
    *("empty", "replace by a folder", "replace by an endless file", "[]"),
)
MIB = 1 << 20
HANG_AFTER_S = 2.0

CRASH = FailureKind.CRASH
HANG = FailureKind.HANG
INFRASTRUCTURE = FailureKind.INFRASTRUCTURE
INVALID_CONFIG = FailureKind.INVALID_CONFIG
METRIC_ERROR = FailureKind.METRIC_ERROR
OUT_OF_MEMORY = FailureKind.OUT_OF_MEMORY


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One launch that fails: on `ranks`, in `phase` ("end" is when all is written).

    A command is a cold start, "{port}" in it a port that is in use; in a namespace, the job has a
    network and, with `disk_bytes`, a disk of its own; `outside` is done to a rank from here.
    """

    kind: FailureKind
    what: str = "slow down"
    argument: object = None
    ranks: Sequence[int] = (1,)
    phase: str = "timed"
    command: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 60.0
    memory_budget_bytes: int | None = None
    profiled: bool = False
    namespace: bool = False
    disk_bytes: int | None = None
    outside: Literal["SIGKILL", "SIGTERM", "lose the launcher"] | None = None

    @property
    def is_quick(self) -> bool:
        """Whether it takes about a second: no cold start, no profiler, no limit to wait for."""
        profiled = self.profiled or self.phase == "profile"
        awaited = self.kind is HANG or self.outside == "lose the launcher"
        return not (self.command or profiled or self.namespace or awaited)

    @property
    def name(self) -> str:
        """What goes wrong, in a few words."""
        if self.command:
            return " ".join(("cold:", *self.command))[:90]
        what = self.outside or self.what
        argument = "" if self.argument is None else f" {self.argument}"
        ranks = " and ".join(map(str, self.ranks))
        budget = self.memory_budget_bytes
        limit = "" if budget is None else f", budget {budget // MIB} MiB"
        disk = "" if self.disk_bytes is None else ", disk full"
        return f"{what}{argument} on {ranks} in {self.phase}{limit}{disk}"


def cases() -> tuple[Case, ...]:
    """All cases, those that take long spread among the others."""
    slow, quick = [*_hangs(), *_cold(), *_in_namespaces()], [*_quick()]
    every = max(1, len(quick) // len(slow))
    mixed: list[Case] = []
    for number, case in enumerate(quick):
        mixed += [case] if number % every or not slow else [case, slow.pop(0)]
    return (*mixed, *slow)


def _quick() -> Iterator[Case]:
    return chain(
        _signals(), _exceptions(), _exits(), _memory(), _results(), _processes(), _outside()
    )


def _signals() -> Iterator[Case]:
    for kind, names in ((CRASH, FAULTS), (INFRASTRUCTURE, FROM_OUTSIDE)):
        for name, phase in product(names, ("setup", "warmup", "timed")):
            for rank in (0, 1) if phase == "timed" else (1,):
                yield Case(kind=kind, what="signal", argument=name, ranks=(rank,), phase=phase)
        for name in names[:2]:
            yield Case(kind=kind, what="signal", argument=name, phase="profile")


def _exceptions() -> Iterator[Case]:
    phase = cycle(PHASES[:3])
    for name in EXCEPTIONS:
        for ranks in ((1,), BOTH):
            yield Case(kind=CRASH, what="throw", argument=name, ranks=ranks, phase=next(phase))
    for name in ("not divisible", "refused option"):
        for ranks in ((0,), BOTH):
            yield Case(
                kind=INVALID_CONFIG, what="throw", argument=name, ranks=ranks, phase=next(phase)
            )
    for name in (
        *("bind a port twice", "connect to nobody", "ask for an unknown host"),
        *("open too many files", "use a GPU that is not there", "fill a disk"),
    ):
        for ranks in ((1,), BOTH):
            yield Case(
                kind=INFRASTRUCTURE, what="throw", argument=name, ranks=ranks, phase=next(phase)
            )


def _exits() -> Iterator[Case]:
    for status in (1, 2, 3, "no luck"):
        yield Case(kind=CRASH, what="exit", argument=status)
    for status in (0, 1, 7, 137):
        yield Case(kind=CRASH, what="exit at once", argument=status)
    yield Case(kind=CRASH, what="exit", argument=0, ranks=(0,), phase="warmup")
    yield Case(kind=CRASH, what="exit at once", argument=9, ranks=BOTH, phase="setup")
    yield Case(kind=METRIC_ERROR, what="exit at once", argument=0, ranks=BOTH, phase="setup")
    yield Case(kind=METRIC_ERROR, what="exit", argument=0, ranks=BOTH)


def _memory() -> Iterator[Case]:
    def case(what: str, argument: int, phase: str, budget: int | None, *ranks: int) -> Case:
        return Case(
            kind=OUT_OF_MEMORY,
            what=what,
            argument=argument,
            phase=phase,
            ranks=ranks or (1,),
            memory_budget_bytes=budget,
        )

    for phase in ("setup", "warmup", "timed"):
        yield case("allocate", 1 << 30, phase, 200 * MIB)
        yield case("allocate bytes", 1 << 30, phase, 200 * MIB)
        yield case("allocate bit by bit", 8 * MIB, phase, 200 * MIB)
    yield case("allocate", 1 << 30, "timed", 200 * MIB, *BOTH)
    yield case("allocate", 1 << 42, "timed", None)
    yield case("allocate bytes", 1 << 42, "warmup", None)
    for budget in (1, 3, 5):
        yield case("allocate", 32 * MIB, "timed", budget * MIB, *BOTH)


def _results() -> Iterator[Case]:
    for value in ("nan", "inf"):
        yield Case(kind=CRASH, what="lose number", argument=value, ranks=BOTH)
    for phase in ("setup", "timed"):
        yield Case(kind=INVALID_CONFIG, what="feed less", argument=16, phase=phase)
    for harm in HARMS:
        yield Case(
            kind=METRIC_ERROR, what="harm file", argument=f"{STEPS_FILE}: {harm}", phase="end"
        )
    for harm in HARMS[:5]:
        harmed = f"{TRACE_FILE}: {harm}"
        yield Case(kind=METRIC_ERROR, what="harm file", argument=harmed, phase="end", profiled=True)


def _processes() -> Iterator[Case]:
    for phase in PHASES[:3]:
        yield Case(kind=CRASH, what="leave children", argument="ValueError", phase=phase)
        yield Case(
            kind=CRASH, what="leave children", argument="RecursionError", ranks=BOTH, phase=phase
        )
    yield Case(kind=CRASH, what="write much", argument=80 * MIB)
    yield Case(kind=CRASH, what="write many", argument=12)


def _outside() -> Iterator[Case]:
    for phase in PHASES[1:]:
        for name in ("SIGKILL", "SIGTERM"):
            yield Case(kind=INFRASTRUCTURE, outside=name, phase=phase, ranks=BOTH, profiled=True)
    yield Case(kind=INFRASTRUCTURE, outside="lose the launcher", ranks=BOTH)


def _hangs() -> Iterator[Case]:
    for what in (
        *("sleep", "ignore signals", "leave for another session", "spin", "sleep in C"),
        *("lock twice", "receive what nobody sends"),
    ):
        yield Case(kind=HANG, what=what)
    yield Case(kind=HANG, what="sleep", ranks=BOTH)
    yield Case(kind=HANG, what="signal", argument="SIGSTOP", ranks=(0,))
    for phase in ("setup", "warmup"):
        yield Case(kind=HANG, what="ignore signals", phase=phase, timeout_s=6.0)
    yield Case(kind=HANG, what="sleep", phase="setup", ranks=BOTH, timeout_s=6.0)
    yield Case(kind=HANG, what="ignore signals", phase="profile")


def _cold() -> Iterator[Case]:
    torchrun = ("python", "-P", "-m", "torch.distributed.run", "--nproc-per-node=2")
    here = (*torchrun, "--standalone")

    def case(kind: FailureKind, *command: str, **files: str) -> Case:
        named = {f"{name}.py": text for name, text in files.items()}
        return Case(kind=kind, command=command, files=named, timeout_s=90.0)

    yield case(INFRASTRUCTURE, *torchrun, "--master-port={port}", "x.py", x="import torch")
    yield case(CRASH, *here, "x.py", x="import os\nif os.environ['RANK'] == '1':\n    [][1]\n")
    yield case(
        CRASH,
        *here,
        "x.py",
        x="import os\nif os.environ['RANK'] == '1':\n    os.kill(os.getpid(), 11)",
    )
    yield case(
        INVALID_CONFIG,
        *(*here, "x.py", "--tp=3"),
        x="import argparse\nargparse.ArgumentParser().parse_args()",
    )
    yield case(OUT_OF_MEMORY, *here, "x.py", x="x = bytearray(1 << 42)")
    yield case(CRASH, *here, "x.py", x="import sys\nsys.exit(4)")
    yield case(CRASH, "sh", "-c", "exit 3")
    yield case(CRASH, "no-such-program")
    yield case(INFRASTRUCTURE, "sh", "-c", "echo CANCELLED DUE TO TIME LIMIT; exit 1")


def _in_namespaces() -> Iterator[Case]:
    yield Case(kind=INFRASTRUCTURE, what="part networks", ranks=BOTH, namespace=True, timeout_s=30)
    yield Case(kind=HANG, what="take link down", namespace=True)
    for phase in ("setup", "timed"):
        yield Case(
            kind=INFRASTRUCTURE,
            what="write much",
            argument=4 * MIB,
            phase=phase,
            namespace=True,
            disk_bytes=1 * MIB,
        )
