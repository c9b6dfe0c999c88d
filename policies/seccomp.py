"""The system calls that a policy's process keeps, as a seccomp filter program."""

import struct
from collections.abc import Mapping

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
    """Give the filter for a machine in KEPT_CALLS: any other call fails with EPERM.

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
