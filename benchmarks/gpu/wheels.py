"""Collects wheels of what cclsearch needs, for a machine that has only Python and torch.

    make gpu-wheels
    make gpu-wheels WHEELS_PYTHON=3.12 WHEELS_WITHOUT="numpy scipy pandas"

The packages and versions are those of the environment that runs this, torch and all that it brings
left out; the wheels are for Linux on x86-64 and the asked version of Python. Without those that the
other machine has, they are a fifth of the size.
"""

import argparse
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

PLATFORMS = (
    *("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_24_x86_64"),
    *("manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux_2_12_x86_64"),
    *("manylinux2010_x86_64", "manylinux_2_5_x86_64", "manylinux1_x86_64"),
)
_NAME = re.compile(r"[\w.-]+")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default="3.12", help="version of the other machine's Python")
    parser.add_argument("--without", nargs="*", default=[], help="packages that it has")
    parser.add_argument("--folder", type=Path, default=Path("build/wheels"))
    asked = parser.parse_args()
    wanted = closure("cclsearch") - closure("torch") - {"cclsearch", *map(plain, asked.without)}
    asked.folder.mkdir(parents=True, exist_ok=True)
    for wheel in asked.folder.glob("*.whl"):
        wheel.unlink()
    exact = sorted(f"{name}=={distribution(name).version}" for name in wanted)
    own = f"cp{asked.python.replace('.', '')}"
    pip = (
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"),
        *("--python-version", asked.python, "--implementation", "cp", "--dest", asked.folder),
        *(f"--abi={abi}" for abi in (own, "abi3", "none")),
        *(f"--platform={platform}" for platform in PLATFORMS),
    )
    done = subprocess.run([*map(str, pip), *exact], check=False).returncode
    size_bytes = sum(wheel.stat().st_size for wheel in asked.folder.glob("*.whl"))
    print(f"{len(exact)} wheels, {size_bytes / 1e6:.0f} MB in {asked.folder}")
    return done


def closure(name: str) -> set[str]:
    """A package and all that it needs on this system, by plain names."""
    found, waiting = set[str](), [plain(name)]
    while waiting:
        each = waiting.pop()
        if each in found:
            continue
        try:
            lines = distribution(each).requires or []
        except PackageNotFoundError:
            continue
        found.add(each)
        needed = (line for line in lines if "extra ==" not in line)
        waiting += [plain(match[0]) for line in needed if (match := _NAME.match(line))]
    return found


def plain(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main())
