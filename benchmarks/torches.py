"""Every parallelism on 4 CPU ranks with several versions of torch: torches.py 2.6.0 2.9.1 2.13.0.

Makes an environment for each version from the package index, with torch alone: the ranks' own code
is all that it gets of cclsearch. Prints for each what trains, and what it lacks by rule. Every way
of a single axis is tried (schedules of pipelines, methods of attention over cut sequences), and
each pair of axes in one way, in turn; with `--all` in every way. Started again, it goes on where it
was ended: what was right is not launched again.
"""

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
LACKS = re.compile(r"\(([^()]+: it takes torch [\d.]+), and the ranks have [\d.]+\)")
"""Why a rule about the version of torch refuses a layout."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="+", help="versions of torch, such as 2.6.0")
    parser.add_argument("--folder", type=Path, default=Path("build/torches"))
    parser.add_argument("--with-python", default=sys.executable, help="makes the environments")
    parser.add_argument("--axes", nargs="+", default=[], help="only layouts with all of these")
    parser.add_argument("--all", action="store_true", help="every pair of axes in every way")
    given = parser.parse_args()
    found = {}
    for version in given.versions:
        python = make_environment(given.folder.absolute() / version, version, given.with_python)
        rows = given.folder / f"{version}.json"
        options = ["--axes", *given.axes] if given.axes else []
        options += [] if given.all else ["--one-way"]
        command = [HERE / "parallelism_matrix.py", "--world-sizes", "4", "--python", python]
        command += ["--allowed", "--resume", "--json", rows, *options]
        subprocess.run([sys.executable, *map(str, command)], check=True)
        found[version] = json.loads(rows.read_text(encoding="utf-8"))
    reports = [report(version, rows) for version, rows in found.items()]
    return 0 if all(reports) else 1


def make_environment(folder, version, with_python):
    """Make an environment with torch, a CPU build if there is one, once, and return its Python."""
    python = folder / "bin/python"
    if not (folder / "made").exists():
        subprocess.run([with_python, "-m", "venv", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet"]
        if subprocess.run([*install, f"torch=={version}+cpu"], check=False).returncode:
            print(f"no CPU build of torch {version} in the package index: gigabytes for CUDA's")
            subprocess.run([*install, f"torch=={version}"], check=True)
        (folder / "made").touch()
    return python


def report(version, rows):
    """Print what became of the layouts; return whether the rules say exactly what cannot run."""
    right = [row for row in rows if row["is_right"]]
    wrong = [row for row in rows if row["is_right"] == (row["rule"] is not None)]
    print(f"torch {version}: {len(right)} of {len(rows)} layouts train as one process does")
    lacks = Counter(reason for row in rows if row["rule"] for reason in LACKS.findall(row["rule"]))
    for reason, count in lacks.items():
        print(f"  {count} not: {reason}")
    for row in wrong:
        print(f"  contradicts the rules: {row['axes']} {row['config']}: {row['reason']}")
    return not wrong


if __name__ == "__main__":
    raise SystemExit(main())
