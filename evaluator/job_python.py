"""The Python that ranks run in, ours or another: what is installed there, and its torch."""

import functools
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import msgspec

from evaluator.rank import software
from records.errors import EnvironmentFault

LEAST_TORCH = (2, 6)
_ASKING_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPython:
    """What is installed in one Python.

    `backends` are the communication libraries of its torch, NCCL with its version; None where torch
    was not asked.
    """

    python: str
    packages: Mapping[str, str]
    torch_facts: Mapping[str, str]
    backends: Mapping[str, str] | None = None


def own_python() -> JobPython:
    """Return what is installed in the Python that runs us."""
    return JobPython(
        python=software.python_name(),
        packages=software.packages(),
        torch_facts=software.torch_facts(),
    )


def ask_python(python: str, *about: str) -> JobPython:
    """Return what is installed in another Python; about "torch" also what that can do.

    Raises `EnvironmentFault` where it cannot be asked.
    """
    try:
        done = subprocess.run(
            [python, software.__file__, *about],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASKING_TIMEOUT_S,
            check=True,
        )
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=JobPython)
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        reason = "".join(last) or str(error)
    except OSError as error:
        reason = error.strerror or str(error)
    except (subprocess.SubprocessError, IndexError, msgspec.MsgspecError) as error:
        reason = str(error)
    raise EnvironmentFault(f"{python} cannot be asked what is installed: {reason}")


@functools.cache
def torch_version(python: str | None) -> str | None:
    """Return the version of torch that ranks run; None where there is none, or no such Python.

    They run in our Python, or in the one that is named, which is asked once.
    """
    with suppress(PackageNotFoundError, EnvironmentFault):
        return version("torch") if python is None else ask_python(python).packages.get("torch")
    return None


def torch_release(python: str | None) -> tuple[int, int] | None:
    """Return the first two numbers of the version of torch that ranks run, if there is one."""
    return release_of(torch_version(python))


def release_of(text: str | None) -> tuple[int, int] | None:
    """Return the first two numbers of a version; None where it does not begin with them."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})", text or "")
    return (int(found[1]), int(found[2])) if found else None


def check_torch(python: str | None) -> None:
    """Raise `EnvironmentFault` where ranks of ours have no torch, or one that is too old."""
    release = torch_release(python)
    if release is None and python is None:
        raise EnvironmentFault(
            f'{sys.executable} has no torch, which ranks need: pip install "cclsearch[builtin]", '
            "or set python under [launch], or --python, to the path of a Python that has it"
        )
    if release is None or release < LEAST_TORCH:
        found = own_python() if python is None else ask_python(python)
        had = found.packages.get("torch")
        had = f"torch {had}" if had else "no torch"
        raise EnvironmentFault(
            f"{python or sys.executable} ({found.python}) has {had}; "
            f"ranks need torch {'.'.join(map(str, LEAST_TORCH))} or later"
        )
