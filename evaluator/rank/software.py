"""What is installed in the Python that runs this file, printed as JSON; nothing of it is imported.

With the argument `torch`, what its torch can do is added, for which torch is imported.
"""

import json
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, distribution, distributions
from importlib.util import find_spec
from pathlib import Path

_TORCH_FACT = re.compile(r"^(cuda|hip|git_version)\b[^=\n]*= *'([^'\n]{1,100})'", re.MULTILINE)


def python_name() -> str:
    """Return the implementation and version of this Python."""
    return f"{platform.python_implementation()} {platform.python_version()}"


def packages() -> dict[str, str]:
    """Return the version of every package; of two of a name the one that would be imported."""
    found: dict[str, str] = {}
    for each in distributions():
        name = each.metadata["Name"]
        if name and each.version:
            found.setdefault(name.lower().replace("_", "-"), each.version)
    return dict(sorted(found.items()))


def torch_facts() -> dict[str, str]:
    """Return what torch was built with, from its own file: to import it takes seconds."""
    try:
        path = distribution("torch").locate_file("torch/version.py")
        text = Path(str(path)).read_text(encoding="utf-8", errors="replace")
    except (PackageNotFoundError, OSError):
        return {}
    return dict(_TORCH_FACT.findall(text))


def torch_backends() -> dict[str, str]:
    """Return the communication libraries that torch has, with the version of NCCL."""
    if find_spec("torch") is None:
        return {}
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        return {}
    nccl = ""
    if dist.is_nccl_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    there = {"gloo": dist.is_gloo_available(), "NCCL": nccl, "MPI": dist.is_mpi_available()}
    return {name: nccl if name == "NCCL" else "" for name, has in there.items() if has}


def installed() -> dict[str, object]:
    """Return all that is known without importing anything."""
    return {"python": python_name(), "packages": packages(), "torch_facts": torch_facts()}


if __name__ == "__main__":
    report = installed()
    if "torch" in sys.argv[1:]:
        report["backends"] = torch_backends()
    sys.stdout.write(json.dumps(report) + "\n")
