"""Starts `prove.py` with this Python, and with carried wheels for what it lacks.

    PYTHON benchmarks/gpu/start.py [--out FOLDER]

`make gpu-wheels` puts wheels into `build/wheels` where there is a package index. Here each is
unpacked into `build/gpu-packages-3.N` if this Python lacks the package or has an older one: nothing
is installed. Knows only the standard library.
"""

import os
import re
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parents[2]
WHEELS = ROOT / "build" / "wheels"
PACKAGES = ROOT / "build" / f"gpu-packages-{sys.version_info.major}.{sys.version_info.minor}"


def main() -> None:
    prepared = [str(PACKAGES)] if unpack() else []
    missing = [name for name in requirements() if found_version(name) is None]
    if missing:
        sys.exit(
            f"error: {sys.executable} lacks {', '.join(missing)}; run make gpu-wheels where there "
            "is a package index, and bring build/wheels here"
        )
    paths = [str(ROOT), str(ROOT / "benchmarks"), *prepared]
    environment = dict(os.environ)  # noqa: TID251 - a benchmark is started by hand
    paths += filter(None, [environment.get("PYTHONPATH")])
    script = str(Path(__file__).parent / "prove.py")
    words = [sys.executable, script, *sys.argv[1:]]
    os.execve(sys.executable, words, {**environment, "PYTHONPATH": os.pathsep.join(paths)})


def unpack() -> bool:
    """Unpack the wheels that are needed, and say whether there are any."""
    wheels = sorted(WHEELS.glob("*.whl"))
    if not wheels:
        return False
    sys.path.insert(0, str(PACKAGES))  # noqa: TID251 - nothing is installed
    for wheel in wheels:
        name, carried, python = fields(wheel)
        if not fits(python):
            print(f"note: {wheel.name} is not for this Python", file=sys.stderr)
            continue
        have = found_version(name)
        if have is None or numbers(have) < numbers(carried):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(PACKAGES)
    name_ourselves()
    return True


def name_ourselves() -> None:
    """Leave the metadata by which cclsearch, which is not installed, knows its version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder = PACKAGES / f"cclsearch-{project['version']}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    text = f"Metadata-Version: 2.1\nName: cclsearch\nVersion: {project['version']}\n"
    (folder / "METADATA").write_text(text, encoding="utf-8")


def requirements() -> list[str]:
    """Packages that cclsearch needs, and torch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in project["dependencies"]]
    return [*dict.fromkeys([*names, "torch"])]


def found_version(name: str) -> str | None:
    """The version of a package that this Python finds."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def fields(wheel: Path) -> tuple[str, str, str]:
    """Name, version and tag of the Python of a wheel, by its file's name."""
    name, carried, *_, python, _, _ = wheel.stem.split("-")
    return name, carried, python


def fits(python: str) -> bool:
    """Whether a wheel is for this Python, or for any."""
    own = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return any(tag in (own, "py3") or _is_older_abi3(tag) for tag in python.split("."))


def _is_older_abi3(tag: str) -> bool:
    minor = tag.removeprefix("cp3")
    return tag.startswith("cp3") and minor.isdecimal() and int(minor) <= sys.version_info.minor


def numbers(text: str) -> tuple[int, ...]:
    """A version to compare by."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


if __name__ == "__main__":
    main()
