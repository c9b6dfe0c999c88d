"""Whether the commands and Python blocks of the documentation run as they are printed.

A small study is searched first (the example of `docs/examples/script`), in an empty folder. Then
every command of every page runs there, in the order of the page, with its id of a study replaced by
that one. Commands that need a file, a service or a key that the page only names are listed as left
out, with what is missing. Exits with 1 when a command fails in another way than its page says.

    python benchmarks/docs_commands.py
    python benchmarks/docs_commands.py --page export.md
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
STUDY_ID = re.compile(r"\b202601\d\d(-120000-ab12)?\b|\b2026042[0-9]\b|\b20260204\b|\bSTUDY\b")
NEEDS = {
    r"\b(serve|mcp)\b": "runs until it is stopped",
    r"card\.ya?ml|tuning\.ya?ml": "a card of yours",
    r"other-machine\.toml|service\.toml|mine\.py|--metrics-file": "a file of yours",
    r"optuna\.db|runs/|my_landscape": "a record of another tool",
    r"--strategy hybrid": "a model",
    r"--recipe ": "a framework",
    r"trace (whatif|critical-path|chakra)": "traces of accelerators",
    r"--launcher ssh": "nodes",
    r"import study\.cclsearch": "another machine",
    r"--workload llama-3": "a study of that model",
    r"--format entry -o": "facts of yours",
    r"corpus/": "data of yours",
    r"FOLDER|[|\[]|\\$|\.\.\.": "a placeholder",
    r"\b(before|after|before:a|a)/": "traces or results of two runs",
    r"objective copied_share": "a metric of yours",
    r"--fail-on": "two checkouts",
    r"cclsearch (run|resume|init)|--nproc-per-node|bench search|--mode measure": "takes minutes",
}
DECIDED = {0, 3, 5, 7}
"""Done; nothing measured or a rule is broken; undecided; differs. All of these are answers."""
TIMEOUT_S = 600


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--page", help="only this page of docs/")
    asked = parser.parse_args()
    failed, counts = 0, {"ran": 0, "left out": 0, "failed": 0}
    with tempfile.TemporaryDirectory(prefix="cclsearch-docs-") as folder:
        home = Path(folder)
        study = searched(home)
        for page, code in found(asked.page):
            why = next((why for need, why in NEEDS.items() if re.search(need, code)), None)
            said = "" if why else run(code, home, study)
            result = "left out" if why else "failed" if said else "ran"
            counts[result] += 1
            failed += result == "failed"
            print(f"{result:<9} {page:<18} {code.splitlines()[0][:90]}  {why or said}", flush=True)
    print(", ".join(f"{count} {result}" for result, count in counts.items()))
    return int(failed > 0)


def searched(home: Path) -> str:
    """Search the example in a folder; return the id of the study."""
    shutil.copytree(ROOT / "docs" / "examples" / "script", home, dirs_exist_ok=True)
    shell("cclsearch run -c study.toml --trials 3", home)
    (home / "traces").mkdir()
    shell("cclsearch trial files 1 --to kept", home)
    for trace in (each for each in home.glob("kept/**/rank*.json") if each.parent.name == "trace"):
        shutil.copy(trace, home / "traces")
    listed = shell("cclsearch list --json", home).stdout
    return re.findall(r"\d{8}-\d{6}-[0-9a-f]{4}", listed)[0]


def found(only: str | None) -> Iterator[tuple[str, str]]:
    """Yield the page and the text of each command and of each block of Python."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in (page for page in pages if only in {None, page.name}):
        for language, block in re.findall(r"```(\w*)\n(.*?)```", page.read_text("utf-8"), re.S):
            if language in {"", "bash"}:
                commands = (line.partition("  #")[0].strip() for line in block.splitlines())
                yield from ((page.name, line) for line in commands if line.startswith("cclsearch "))
            elif language == "python" and page.name == "python.md":
                yield page.name, block


def run(code: str, home: Path, study: str) -> str:
    """Run a command or a block; return what went wrong, or nothing."""
    code = re.sub(r"(trial [a-z]+) 3", r"\1 1", STUDY_ID.sub(study, code))
    for written in (*home.glob("[!.]*.cclsearch"), *home.glob("report.*")):
        written.unlink()  # by a page before
    is_command = code.startswith("cclsearch ")
    ended = shell(code, home) if is_command else shell("python -", home, code)
    if ended.returncode in (DECIDED if is_command else {0}):
        return ""
    said = (ended.stderr or ended.stdout).strip().splitlines()
    return f"status {ended.returncode}: {said[-1] if said else ''}"


def shell(command: str, home: Path, given: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a line of shell in a folder, with the programs of this Python first on the PATH."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # noqa: TID251 - of a benchmark
    environment = {**os.environ, "PATH": path}  # noqa: TID251
    environment.pop("ANTHROPIC_API_KEY", None)
    return subprocess.run(
        ["bash", "-c", command],
        cwd=home,
        env=environment,
        input=given or "",
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main())
