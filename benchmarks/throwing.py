"""Exceptions that ranks throw on request, by a name for each: most of them as Python does it."""

import json
import os
import resource
import socket
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist


def _bind_a_port_twice() -> None:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        first.listen()
        second.bind(first.getsockname())


def _connect_to_nobody() -> None:
    with socket.socket() as first:
        first.bind(("127.0.0.1", 0))
        address = first.getsockname()
    socket.create_connection(address)


def _open_too_many() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    held = []
    while True:
        held.append(socket.socket())


def _use_a_gpu() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # noqa: TID251 - a rank without a device
    torch.ones(1, device="cuda")


def _fill_a_disk() -> None:
    with Path("/dev/full").open("w", encoding="ascii") as file:
        file.write("x")


def _recurse() -> None:
    _recurse()


def _raise(error: Exception) -> Callable[[], None]:
    def throw() -> None:
        raise error

    return throw


def _chain() -> None:
    try:
        [].pop()
    except IndexError as error:
        raise RuntimeError("stage 0 failed to run forward") from error


THROWING: dict[str, Callable[[], object]] = {
    "ValueError": lambda: int("x"),
    "TypeError": lambda: len(3),  # type: ignore[arg-type] # it is what goes wrong
    "KeyError": lambda: dict[str, int]()["x"],
    "IndexError": lambda: [][1],
    "AttributeError": lambda: None.shape,  # type: ignore[attr-defined] # it is what goes wrong
    "ZeroDivisionError": lambda: 1 // 0,
    "AssertionError": _raise(AssertionError("no stage left")),
    "AssertionError without words": _raise(AssertionError()),
    "FileNotFoundError": lambda: Path("no-such-file").read_text(encoding="utf-8"),
    "ImportError": lambda: __import__("no_such_module"),
    "UnicodeDecodeError": lambda: b"\xff".decode(),
    "RecursionError": _recurse,
    "RuntimeError of torch": lambda: torch.ones(2) @ torch.ones(3),
    "NotImplementedError": lambda: torch.ones(1, device="meta").item(),
    "StopIteration": lambda: next(iter(())),
    "JSONDecodeError": lambda: json.loads("{"),
    "struct.error": lambda: struct.unpack("i", b""),
    "ExceptionGroup": _raise(ExceptionGroup("stages failed", [ValueError("a"), KeyError("b")])),
    "CalledProcessError": lambda: subprocess.run(["false"], check=True),
    "ValueError of torch.distributed": lambda: dist.send(torch.ones(1), dst=dist.get_rank()),
    "chain": _chain,
    "not divisible": _raise(AssertionError("num_heads (30) must be divisible by tp (4)")),
    "refused option": _raise(ValueError("--sequence-parallel requires --tp greater than 1")),
    "bind a port twice": _bind_a_port_twice,
    "connect to nobody": _connect_to_nobody,
    "ask for an unknown host": lambda: socket.create_connection(("host.invalid", 80)),
    "open too many files": _open_too_many,
    "use a GPU that is not there": _use_a_gpu,
    "fill a disk": _fill_a_disk,
}
