"""Every parallelism on 4 CPU ranks with several versions of torch: torches.py 2.6.0 2.9.1 2.13.0.

Makes an environment for each version from the package index, with torch alone: the ranks' own code
is all that it gets of cclsearch. Prints for each what trains, and what it lacks by rule.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="+", help="versions of torch, such as 2.6.0")
    parser.add_argument("--folder", type=Path, default=Path("build/torches"))
    parser.add_argument("--with-python", default=sys.executable, help="makes the environments")
    parser.add_argument("--axes", nargs="+", default=[], help="only layouts with all of these")
    given = parser.parse_args()
    found = {}
    for version in given.versions:
        python = make_environment(given.folder.absolute() / version, version, given.with_python)
        rows = given.folder / f"{version}.json"
        axes = ["--axes", *given.axes] if given.axes else []
        command = [HERE / "parallelism_matrix.py", "--world-sizes", "4", "--python", python, *axes]
        command += ["--allowed"]
        subprocess.run([sys.executable, *map(str, command), "--json", str(rows)], check=True)
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
    reasons = (row["rule"].split(": ", 2)[-1] for row in rows if row["rule"])
    for reason, count in Counter(reasons).items():
        print(f"  {count} not: {reason}")
    for row in wrong:
        print(f"  contradicts the rules: {row['axes']} {row['config']}: {row['reason']}")
    return not wrong


if __name__ == "__main__":
    raise SystemExit(main())
