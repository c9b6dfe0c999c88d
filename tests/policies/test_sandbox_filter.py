"""What the filter answers to each system call, on both machines, by running it here."""

import struct

import pytest

from policies.sandbox import KEPT_CALLS, filter_program

ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050001, 0x80000000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
READ_WRITE, EXECUTE = 3, 4
MACHINES = sorted(KEPT_CALLS)


def verdict(machine, number, protection=0, architecture=None):
    """Interpret the program over one struct seccomp_data, as the kernel would."""
    call = struct.pack(
        "=iIQ6Q", number, architecture or ARCHITECTURES[machine], 0, 0, 0, protection, 0, 0, 0
    )
    program = list(struct.iter_unpack("=HBBI", filter_program(machine)))
    position, accumulator = 0, 0
    while True:
        code, if_true, if_false, operand = program[position]
        position += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("=I", call, operand)
            case 0x15:
                position += if_true if accumulator == operand else if_false
            case 0x45:
                position += if_true if accumulator & operand else if_false
            case 0x06:
                return int(operand)


@pytest.mark.parametrize("machine", MACHINES)
def test_exactly_the_kept_calls_are_allowed(machine):
    allowed = {number for number in range(600) if verdict(machine, number) == ALLOW}
    assert allowed == set(KEPT_CALLS[machine].values())


@pytest.mark.parametrize("machine", MACHINES)
def test_any_other_call_fails_with_a_permission_error(machine):
    assert {
        verdict(machine, number)
        for number in range(600)
        if number not in KEPT_CALLS[machine].values()
    } == {REFUSE}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", ["mmap", "mprotect"])
def test_memory_never_becomes_executable(machine, name):
    number = KEPT_CALLS[machine][name]
    assert verdict(machine, number, READ_WRITE) == ALLOW
    assert verdict(machine, number, READ_WRITE | EXECUTE) == REFUSE


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_of_another_architecture_end_the_process(machine):
    i386 = 0x40000003
    assert verdict(machine, KEPT_CALLS[machine]["write"], architecture=i386) == KILL


def test_the_other_numbering_of_x86_64_is_refused():
    x32_bit = 0x40000000
    assert verdict("x86_64", x32_bit | KEPT_CALLS["x86_64"]["write"]) == REFUSE
